//! [`Pairs`](super::Pairs) by the processors' own instruction.

use std::arch::x86_64::*;

use half::bf16;

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

    #[inline(always)]
    unsafe fn tile(self, s: Avx512, rows: usize, panels: usize, t: &Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { choose(s, self, rows, panels, t) }
    }

    #[inline(always)]
    fn pair(self, s: Avx512, even: __m512, odd: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let numbers = _mm512_castps_si512(self.narrow(s, even, odd));
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(order(), numbers))
        }
    }

    #[inline(always)]
    unsafe fn interleave(self, _: Avx512, even: *const bf16, odd: *const bf16) -> __m512 {
        // SAFETY: as above; the caller guarantees the numbers.
        unsafe {
            let even = _mm512_castsi256_si512(_mm256_loadu_si256(even.cast()));
            let odd = _mm256_loadu_si256(odd.cast());
            let numbers = _mm512_inserti64x4::<1>(even, odd);
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(order(), numbers))
        }
    }

    #[inline(always)]
    fn narrow(self, _: Avx512, low: __m512, high: __m512) -> __m512 {
        // SAFETY: as above; the types have the same representation.
        unsafe { std::mem::transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low)) }
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

/// Source index of each 16-bit number of the pairs: alternately from the lower and the upper half of a register.
static PAIRS: [u16; 32] = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        order[i] = (i / 2 + i % 2 * 16) as u16;
        i += 1;
    }
    order
};

#[inline(always)]
unsafe fn order() -> __m512i {
    // SAFETY: the array is as long as a register.
    unsafe { _mm512_loadu_si512(PAIRS.as_ptr().cast()) }
}
