//! Conversion of scores to probabilities, and its derivative.

use std::ops::Range;

use super::words::{BLOCK, Products, products};
use crate::gemm_tile::Arithmetic;
use crate::simd::{LANES, Simd, dispatch};

/// Gives the first `n` scores of a row the weight 0 in [`softmax`]: those of keys before the window.
#[inline]
pub(super) fn hide(scores: &mut [f32], n: usize) {
    scores[..n].fill(f32::NEG_INFINITY);
}

products! {
    /// Replaces the scores of keys `0..n` by `exp(score − max)` and those beyond by 0 (whatever their value: they may
    /// belong to uninitialised keys of a block). The results are words, written over the scores. The length is a whole
    /// number of blocks. Returns the maximum and the sum of the unrounded numbers.
    ///
    /// # Safety
    ///
    /// Only requires the instruction set, which the level proves.
    pub(super) unsafe fn softmax(scores: &mut [f32], n: usize) -> (f32, f32) = softmax_generic;
}

#[inline(always)]
unsafe fn softmax_generic<S: Simd, M: Products<S>>(s: S, m: M, scores: &mut [f32], n: usize) -> (f32, f32) {
    assert!(scores.len() == n.next_multiple_of(BLOCK));
    let (whole, rest) = scores.split_at(n / LANES * LANES);
    let mut max = s.splat(f32::NEG_INFINITY);
    for x in whole.chunks_exact(LANES) {
        max = s.max(s.load(x), max);
    }
    if !n.is_multiple_of(LANES) {
        max = s.max(first_lanes(s, n % LANES, s.load(rest), s.splat(f32::NEG_INFINITY)), max);
    }
    let max = s.max_lane(max);
    let subtrahend = s.splat(max);
    let mut sum = s.zero();
    let row = scores.as_mut_ptr();
    // SAFETY: the row has a whole number of vectors; words are written only where scores have been read.
    unsafe {
        for at in (0..n / LANES * LANES).step_by(LANES) {
            let p = s.exp(s.sub(s.load_ptr(row.add(at)), subtrahend));
            sum = s.add(sum, p);
            m.store(s, row, at, p);
        }
        if !n.is_multiple_of(LANES) {
            let at = n / LANES * LANES;
            let p = s.exp(s.sub(s.load_ptr(row.add(at)), subtrahend));
            let p = first_lanes(s, n % LANES, p, s.zero());
            sum = s.add(sum, p);
            m.store(s, row, at, p);
        }
    }
    (max, s.sum(sum))
}

/// Arguments of [`softmax_backward`]: for row r, `keys` floats at `r * 2 * stride`, and as many `stride` floats further
/// on.
pub(super) struct Backward<'a> {
    /// Address of row 0.
    pub(super) rows: *mut f32,
    /// Floats from a row's probabilities to its derivatives, and from there to the next row's probabilities.
    pub(super) stride: usize,
    /// Number of keys, whole blocks.
    pub(super) keys: usize,
    /// Keys that each row sees. The row that shares words with the last one has memory even if it is not listed.
    pub(super) visible: &'a [Range<usize>],
    /// Log-sum-exp of each row.
    pub(super) lse: &'a [f32],
    /// `d_out · out` of each row.
    pub(super) delta: &'a [f32],
}

/// Offset, in floats from a row's probabilities, of the words of derivatives that pair rows. Of the `group` rows that
/// share a word, the first row's memory takes the probabilities; the derivatives go to the next part that is no longer
/// needed.
pub(super) fn derivatives_across(group: usize, stride: usize) -> usize {
    if group == 1 { stride } else { 2 * stride }
}

products! {
    /// Computes the probabilities `p = exp(score − lse)` and the derivatives `ds = p · (product − delta)` from a row's
    /// scores and the products of its output's gradient with the values. Both are 0 for keys that are not visible. They are
    /// stored as words: `ds` paired along the keys, in place, and both paired along the queries, at
    /// [`derivatives_across`].
    ///
    /// # Safety
    ///
    /// The rows must be valid, and no other thread may access them.
    pub(super) unsafe fn softmax_backward(x: &Backward<'_>) = softmax_backward_generic;
}

#[inline(always)]
unsafe fn softmax_backward_generic<S: Simd, M: Products<S>>(s: S, m: M, x: &Backward<'_>) {
    let group = <M as Arithmetic<S>>::GROUP;
    // A missing row sees no keys.
    let row_of = |row: usize| match x.visible.get(row) {
        Some(visible) => (visible.start, visible.end, x.lse[row], x.delta[row]),
        None => (0, 0, 0.0, 0.0),
    };
    for first in (0..x.visible.len()).step_by(group) {
        let (even, odd) = (row_of(first), row_of(first + 1));
        // SAFETY: guaranteed by the caller.
        unsafe {
            let p = x.rows.add(first * 2 * x.stride);
            let across = p.add(derivatives_across(group, x.stride));
            for at in (0..x.keys).step_by(LANES) {
                let (probs, ds) = derivative(s, p.add(at), x.stride, at, even);
                m.store(s, p.add(x.stride), at, ds);
                if group == 1 {
                    s.store_ptr(p.add(at), probs);
                    continue;
                }
                let next = p.add(2 * x.stride);
                let (next_probs, next_ds) = derivative(s, next.add(at), x.stride, at, odd);
                m.store(s, next.add(x.stride), at, next_ds);
                s.store_ptr(p.add(at), s.pair(probs, next_probs));
                s.store_ptr(across.add(at), s.pair(ds, next_ds));
            }
        }
    }
}

/// `p` and `ds` of the 16 keys starting at `at`.
#[inline(always)]
unsafe fn derivative<S: Simd>(
    s: S,
    p: *const f32,
    stride: usize,
    at: usize,
    (start, end, lse, delta): (usize, usize, f32, f32),
) -> (S::V, S::V) {
    if at >= end || at + LANES <= start {
        return (s.zero(), s.zero());
    }
    // SAFETY: the caller guarantees 16 floats here and 16 more `stride` floats further on.
    let (score, product) = unsafe { (s.load_ptr(p), s.load_ptr(p.add(stride))) };
    let p = s.exp(s.sub(score, s.splat(lse)));
    let ds = s.mul(p, s.sub(product, s.splat(delta)));
    if at >= start && at + LANES <= end {
        return (p, ds);
    }
    let visible = start.saturating_sub(at)..(end - at).min(LANES);
    (lanes(s, visible.clone(), p), lanes(s, visible, ds))
}

/// `x` in these lanes, 0 in the others. A function, because a closure is not always inlined, and then lacks the
/// instruction set.
#[inline(always)]
fn lanes<S: Simd>(s: S, visible: Range<usize>, x: S::V) -> S::V {
    first_lanes(s, visible.start, s.zero(), first_lanes(s, visible.end, x, s.zero()))
}

/// `a` in the first `n` lanes, `b` in the others.
#[inline(always)]
fn first_lanes<S: Simd>(s: S, n: usize, a: S::V, b: S::V) -> S::V {
    const INDEX: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    s.select_gt(s.splat(n as f32), s.load(&INDEX), a, b)
}

dispatch! {
    /// `y *= factor`.
    pub(super) fn scale_row(y: &mut [f32], factor: f32) = scale_row_generic;
}

#[inline(always)]
fn scale_row_generic<S: Simd>(s: S, y: &mut [f32], factor: f32) {
    let factor = s.splat(factor);
    let mut chunks = y.chunks_exact_mut(LANES);
    for y in &mut chunks {
        s.store(y, s.mul(s.load(y), factor));
    }
    let tail = chunks.into_remainder();
    if !tail.is_empty() {
        s.store_tail(tail, s.mul(s.load_tail(tail), factor));
    }
}
