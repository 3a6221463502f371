//! Rows of one head between tensors, where they lie apart, and the floats that the inner loops work on.

use crate::Element;
use crate::disjoint::Disjoint;
use crate::simd::{LANES, Simd, dispatch};

dispatch! {
    /// Copies rows of `len` numbers, which begin so many numbers into `from`, next to each other as floats.
    pub(super) fn gather[E: Element](to: &mut [f32], from: &[E], at: &[usize], len: usize) = gather_generic;
}

#[inline(always)]
fn gather_generic<S: Simd, E: Element>(s: S, to: &mut [f32], from: &[E], at: &[usize], len: usize) {
    for (to, &at) in to.chunks_exact_mut(len).zip(at) {
        copy(s, to, &from[at..at + len]);
    }
}

dispatch! {
    /// Copies `tokens` rows of `len` numbers, the first of which begins `from`, next to each other as floats.
    pub(super) fn gather_stride[E: Element](to: &mut [f32], from: &[E], stride: usize, len: usize, tokens: usize)
        = gather_stride_generic;
}

#[inline(always)]
fn gather_stride_generic<S: Simd, E: Element>(
    s: S,
    to: &mut [f32],
    from: &[E],
    stride: usize,
    len: usize,
    tokens: usize,
) {
    for (t, to) in to.chunks_exact_mut(len).take(tokens).enumerate() {
        copy(s, to, &from[t * stride..][..len]);
        // The next head's row is likely to be the next that is asked for.
        prefetch_row(s, from.as_ptr().wrapping_add(t * stride + len), len);
    }
}

dispatch! {
    /// Writes rows of `len` floats, which lie next to each other, as the nearest numbers of the format to where they
    /// belong.
    ///
    /// # Safety
    ///
    /// Nobody else may reach these rows of `to`.
    pub(super) unsafe fn scatter[E: Element](to: Disjoint<'_, E>, at: &[usize], from: &[f32], len: usize)
        = scatter_generic;
}

#[inline(always)]
unsafe fn scatter_generic<S: Simd, E: Element>(
    s: S,
    to: Disjoint<'_, E>,
    at: &[usize],
    from: &[f32],
    len: usize,
) {
    for (from, &at) in from.chunks_exact(len).zip(at) {
        // SAFETY: the caller's word.
        copy(s, unsafe { to.slice(at..at + len) }, from);
    }
}

#[inline(always)]
fn copy<S: Simd, A: Element, B: Element>(s: S, to: &mut [A], from: &[B]) {
    assert_eq!(to.len(), from.len());
    let whole = to.len() / LANES * LANES;
    let rest = to.len() - whole;
    // SAFETY: both have `whole` numbers in whole vectors, and `rest` behind them.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            A::store(s, to.as_mut_ptr().add(i), B::load(s, from.as_ptr().add(i)));
        }
        if rest > 0 {
            A::store_n(s, to.as_mut_ptr().add(whole), rest, B::load_n(s, from.as_ptr().add(whole), rest));
        }
    }
}

dispatch! {
    /// `Σ d_out · out` of rows of `len` numbers, in 16 lanes, then the tree: those of `out` begin so many numbers into
    /// it, those of `d_out` lie next to each other.
    pub(super) fn deltas[E: Element](delta: &mut [f32], d_out: &[f32], out: &[E], at: &[usize], len: usize)
        = deltas_generic;
}

#[inline(always)]
fn deltas_generic<S: Simd, E: Element>(
    s: S,
    delta: &mut [f32],
    d_out: &[f32],
    out: &[E],
    at: &[usize],
    len: usize,
) {
    let whole = len / LANES * LANES;
    for ((delta, d_out), &at) in delta.iter_mut().zip(d_out.chunks_exact(len)).zip(at) {
        let out = &out[at..at + len];
        let mut sum = s.zero();
        // SAFETY: both have `len` numbers, `whole` of them in whole vectors.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                sum = s.fma(s.load_ptr(d_out.as_ptr().add(i)), E::load(s, out.as_ptr().add(i)), sum);
            }
            if whole < len {
                let (a, b) = (d_out.as_ptr().add(whole), out.as_ptr().add(whole));
                sum = s.fma(s.load_ptr_n(a, len - whole), E::load_n(s, b, len - whole), sum);
            }
        }
        *delta = s.sum(sum);
    }
}

dispatch! {
    /// Asks for rows of `len` numbers that begin so many numbers behind `x`. A hint: they need not be readable.
    pub(super) fn prefetch[E: Element](x: *const E, at: &[usize], len: usize) = prefetch_generic;
}

#[inline(always)]
fn prefetch_generic<S: Simd, E: Element>(s: S, x: *const E, at: &[usize], len: usize) {
    for &at in at {
        prefetch_row(s, x.wrapping_add(at), len);
    }
}

#[inline(always)]
fn prefetch_row<S: Simd, E: Element>(s: S, x: *const E, len: usize) {
    const LINE_BYTES: usize = 64;
    for i in (0..len).step_by(LINE_BYTES / size_of::<E>()) {
        s.prefetch(x.wrapping_add(i).cast());
    }
}
