//! [`Pairs`](super::Pairs) by the processors' own instruction.

use std::arch::x86_64::*;

use super::{Arithmetic, MulAdd, NativePairs, Tile, choose, tile};
use crate::simd_x86::Avx512;

impl NativePairs {
    /// # Safety
    /// The processor must have AVX-512 BF16.
    #[inline(always)]
    pub(crate) unsafe fn detected() -> Self {
        Self(())
    }
}

impl MulAdd<Avx512> for NativePairs {
    const FINISHES: bool = true;

    #[inline(always)]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(self, _: Avx512, t: &Tile) {
        // SAFETY: guaranteed by the caller; `detected` was called only where the instruction exists.
        unsafe { sized_tile::<ROWS, PANELS>(t) }
    }

    #[inline(always)]
    fn mul_add(self, _: Avx512, a: __m512, b: __m512, sum: __m512) -> __m512 {
        // SAFETY: `detected` was called only where the instruction exists; the types have the same representation.
        unsafe {
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512, __m512bh>(a),
                std::mem::transmute::<__m512, __m512bh>(b),
            )
        }
    }
}

impl Arithmetic<Avx512> for NativePairs {
    const GROUP: usize = 2;
    const FINISHES: bool = <Self as MulAdd<Avx512>>::FINISHES;
    type State = ();

    #[inline(always)]
    unsafe fn tile(self, s: Avx512, (): &mut (), rows: usize, panels: usize, t: &Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { choose(s, self, rows, panels, t) }
    }
}

/// As [`SizedTile`](super::SizedTile), with one more instruction set.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn sized_tile<const ROWS: usize, const PANELS: usize>(t: &Tile) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let s = Avx512::detected(crate::Isa::Avx512Bf16);
        tile::<Avx512, NativePairs, ROWS, PANELS>(s, NativePairs(()), t);
    }
}
