//! Products of bf16 numbers by f32 fused multiply-adds: [`Order::Widened`](crate::Order::Widened).
//!
//! A tile reads a packed B as words, two numbers in 32 bits, and widens them in registers, once for all of its rows: half
//! the bytes of f32 at one more instruction per vector of B. A, which a tile would widen once per panel of B, is widened
//! when it is copied; so is a B that has to be copied, or that enough tiles share, whose tiles are then those of f32.

use std::ops::Range;

use crate::Element;
use crate::gemm_kernel::{Block, Pass, Source, load};
use crate::gemm_left::{numbers, rounded};
use crate::gemm_tile::{Arithmetic, Chains, MulAdd, Singles, Strides, Tile, choose};
use crate::simd::{LANES, Simd};

/// bf16 numbers: one fused multiply-add each, ascending.
#[derive(Clone, Copy)]
pub(crate) struct Widened;

impl<S: Simd> MulAdd<S> for Widened {
    const LEFT: usize = 2;
    const PACKS: bool = true;
    const FINISHES: bool = <Singles as MulAdd<S>>::FINISHES;

    #[inline(always)]
    fn mul_add(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V {
        let sum = s.fma(s.low_half(a), s.low_half(b), sum);
        s.fma(s.high_half(a), s.high_half(b), sum)
    }

    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "constant bounds, which unroll and leave no array behind")]
    unsafe fn step<const ROWS: usize, const PANELS: usize>(
        self,
        s: S,
        strides: Strides,
        a: *const f32,
        b: *const f32,
        mut chains: Chains<S::V, ROWS, PANELS>,
    ) -> Chains<S::V, ROWS, PANELS> {
        // The two halves of the words are loaded separately: AVX2 has too few registers for both.
        let mut right = [s.zero(); PANELS];
        // SAFETY: guaranteed by the caller.
        unsafe {
            for j in 0..PANELS {
                right[j] = s.load_low(b.add(j * strides.b_panel));
            }
            for i in 0..ROWS {
                let left = s.splat(*a.add(i * strides.a_row));
                for j in 0..PANELS {
                    chains[i][j] = s.fma(left, right[j], chains[i][j]);
                }
            }
            for j in 0..PANELS {
                right[j] = s.load_high(b.add(j * strides.b_panel));
            }
            for i in 0..ROWS {
                let left = s.splat(*a.add(i * strides.a_row + strides.a_step));
                for j in 0..PANELS {
                    chains[i][j] = s.fma(left, right[j], chains[i][j]);
                }
            }
        }
        chains
    }
}

impl<S: Simd> Arithmetic<S> for Widened {
    const GROUP: usize = 2;
    const WIDENS: bool = true;
    const PACKS: bool = <Self as MulAdd<S>>::PACKS;
    const FINISHES: bool = <Self as MulAdd<S>>::FINISHES;
    type State = ();

    #[inline(always)]
    unsafe fn tile(self, s: S, (): &mut (), rows: usize, panels: usize, t: &Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { if t.wide { choose(s, Singles, rows, panels, t) } else { choose(s, self, rows, panels, t) } }
    }
}

/// Rounds and widens some panels of B, as [`copy_right`](crate::gemm_copy::copy_right).
///
/// # Safety
/// As for [`copy_right`](crate::gemm_copy::copy_right).
#[inline(always)]
pub(crate) unsafe fn widen_right<S: Simd>(
    s: S,
    pass: &Pass<'_>,
    panels: Range<usize>,
    last: usize,
) -> (*const f32, usize, usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match pass.block.b {
            Source::Words(b) => unpack_panels(s, pass, b, panels),
            Source::F32(b) => widen_panels(s, pass, b, panels, last),
            Source::Bf16(b) => widen_panels(s, pass, b, panels, last),
        }
    }
}

/// Widens the words of packed panels.
///
/// # Safety
/// As for [`widen_right`].
#[inline(always)]
unsafe fn unpack_panels<S: Simd>(
    s: S,
    pass: &Pass<'_>,
    b: *const f32,
    panels: Range<usize>,
) -> (*const f32, usize, usize) {
    let (block, panel) = (pass.block, 2 * pass.steps * LANES);
    for (j, index) in panels.enumerate() {
        // SAFETY: the scratch is large enough; packed panels are padded to whole vectors.
        unsafe {
            let from = b.add(index * block.b_panel + pass.start * block.b_step);
            let to = block.right.add(j * panel);
            for step in 0..pass.steps {
                let words = from.add(step * block.b_step);
                s.store_ptr(to.add(2 * step * LANES), s.load_low(words));
                s.store_ptr(to.add((2 * step + 1) * LANES), s.load_high(words));
            }
        }
    }
    (block.right, panel, LANES)
}

/// # Safety
/// As for [`widen_right`].
#[inline(always)]
unsafe fn widen_panels<S: Simd, E: Element>(
    s: S,
    pass: &Pass<'_>,
    b: *const E,
    panels: Range<usize>,
    last: usize,
) -> (*const f32, usize, usize) {
    let (block, (all, count)): (&Block, _) = (pass.block, numbers::<S, Widened>(pass));
    let panel = all * LANES;
    let columns = (panels.len() - 1) * LANES + last;
    for i in 0..all {
        // SAFETY: the scratch is large enough, and B is read only where it has columns, panels being adjacent.
        unsafe {
            let to = block.right.add(i * LANES);
            if i < count {
                let from = b.add((2 * pass.start + i) * block.b_step + panels.start * LANES);
                widen(s, from, columns, to, panel);
            } else {
                for j in 0..panels.len() {
                    s.store_ptr(to.add(j * panel), s.zero());
                }
            }
        }
    }
    (block.right, panel, LANES)
}

/// Writes `count` numbers, rounded and widened, in vectors `vector_stride` floats from one another. The last vector is
/// zero-padded if vectors are not adjacent.
///
/// # Safety
/// The numbers must be readable, and there must be room for them.
#[inline(always)]
unsafe fn widen<S: Simd, E: Element>(s: S, from: *const E, count: usize, to: *mut f32, vector_stride: usize) {
    let (whole, width) = (count / LANES, count % LANES);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for i in 0..whole {
            s.store_ptr(
                to.add(i * vector_stride),
                rounded::<S, Widened, E>(s, load(s, from.add(i * LANES), LANES)),
            );
        }
        if width > 0 {
            let v = rounded::<S, Widened, E>(s, load(s, from.add(whole * LANES), width));
            let to = to.add(whole * vector_stride);
            if vector_stride == LANES { s.store_ptr_n(to, width, v) } else { s.store_ptr(to, v) }
        }
    }
}
