//! Attention of one token of a decoding sequence: the query heads of one kv head. The work is so small that gathering rows
//! into tiles, as [`forward`](super::forward) does for many tokens, would add a third to its time.

use std::ops::Range;

use super::blocks::Blocks;
use super::kernels::{self, ROWS, Scores, Weighted};
use super::tile::{self, MAX_ROWS, each_row, groups};
use super::words::{BLOCK, Layout};
use super::{rows, softmax};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::gemm::piece;
use crate::isa::Level;
use crate::simd::LANES;

/// One token over the keys of one kv head.
pub(super) struct Token<'a> {
    /// Number of query heads.
    pub(super) group: usize,
    pub(super) layout: Layout,
    /// First key that the token sees, in the first block.
    pub(super) first: usize,
    /// Number of keys, from the beginning of the first block.
    pub(super) keys: usize,
    /// Blocks of columns.
    pub(super) k: Blocks<'a>,
    /// Blocks of rows.
    pub(super) v: Blocks<'a>,
    pub(super) scale: f32,
    /// Keys of the next call, to prefetch; must have at least as many blocks as these.
    pub(super) next: Option<Blocks<'a>>,
}

/// Attention of the token, whose heads start at `at` in `q` and `out`, each at a word boundary; bitwise identical to
/// [`forward`](super::forward::attend). `scratch` needs the [`scratch_floats`](super::forward::scratch_floats) of the
/// number of keys, or more.
///
/// # Safety
///
/// Keys and values must be valid; so must the heads in `out`, which no other thread may access.
pub(super) unsafe fn attend<E: Element, L: Element>(
    level: Level,
    token: &Token<'_>,
    q: &[E],
    scratch: &mut [f32],
    out: Disjoint<'_, E>,
    at: usize,
) {
    let e = token.layout.head_dim;
    debug_assert!(e.is_multiple_of(E::GROUP));
    // As many heads at a time as there is room for scores.
    let stride = tile::size(token.keys, 0).1;
    let most = ((scratch.len() - MAX_ROWS * e - LANES) / stride).min(MAX_ROWS);
    assert!(most >= ROWS, "attention: no room for the scores of {} keys", token.keys);
    let parts = token.group.div_ceil(most);
    for part in 0..parts {
        let heads = piece(token.group, parts, part);
        let token = Token { group: heads.len(), next: token.next.filter(|_| part + 1 == parts), ..*token };
        // SAFETY: guaranteed by the caller; there is room for the scores of these heads.
        unsafe { attend_heads::<E, L>(level, &token, q, scratch, stride, out, at + heads.start * e) };
    }
}

/// [`attend`] for heads whose scores, `stride` floats from one head to the next, have room in `scratch` besides
/// `MAX_ROWS` rows of queries, then of results.
///
/// # Safety
///
/// As for [`attend`].
unsafe fn attend_heads<E: Element, L: Element>(
    level: Level,
    token: &Token<'_>,
    q: &[E],
    scratch: &mut [f32],
    stride: usize,
    out: Disjoint<'_, E>,
    at: usize,
) {
    let e = token.layout.head_dim;
    let (rows, scores) = scratch.split_at_mut(MAX_ROWS * e + LANES);
    let (mut inverse, numbers) = ([0.0; MAX_ROWS], token.group * e);
    // The queries are no longer needed when their memory takes the sums.
    let q = words::<E, L>(level, &q[at..at + numbers], rows);
    // SAFETY: the caller guarantees queries, blocks and the output; there is room for the scores and the sums.
    unsafe {
        token.scores::<L, E>(level, q.as_ptr(), 0..token.keys.div_ceil(BLOCK), scores.as_mut_ptr(), stride);
        for (scores, inverse) in scores.chunks_mut(stride).zip(&mut inverse[..token.group]) {
            *inverse = token.softmax::<L>(level, scores);
        }
        token.sums::<L, E>(level, 0..e, scores.as_ptr(), stride, &inverse, rows.as_mut_ptr());
        rows::scatter::<E, E>(level, out, &[at], &rows[..numbers], numbers);
    }
}

/// Adjacent queries, none of which begins within a word, as words of format `L`: in place, or a copy in `to`, which needs
/// room for 16 more numbers.
pub(super) fn words<'a, E: Element, L: Element>(level: Level, q: &'a [E], to: &'a mut [f32]) -> &'a [f32] {
    let (from, count) = (q.as_ptr().cast::<f32>(), q.len() / L::GROUP);
    if E::GROUP == L::GROUP {
        assert!(from.is_aligned() && q.len().is_multiple_of(E::GROUP), "attention: queries within a word");
        // SAFETY: the numbers are whole words, aligned as just checked; any bits are a valid f32.
        return unsafe { std::slice::from_raw_parts(from, count) };
    }
    assert!(to.len() >= q.len() + LANES, "attention: no room for {} numbers of queries", q.len());
    // SAFETY: there is room, as just checked.
    unsafe { rows::along::<L, E>(level, to, count, q, &[0], q.len()) };
    &to[..count]
}

impl Token<'_> {
    /// Scores of all heads, whose queries are adjacent [`words`] at `q`, for the keys of some blocks, written where those of
    /// all keys would be; `stride` floats from one head to the next.
    ///
    /// # Safety
    ///
    /// As for [`attend`]; the queries must be readable, `to` must have room, and no other thread may access the scores of these blocks.
    pub(super) unsafe fn scores<L: Element, R: Element>(
        &self,
        level: Level,
        q: *const f32,
        blocks: Range<usize>,
        to: *mut f32,
        stride: usize,
    ) {
        let &Self { group, layout, k, v, scale, .. } = self;
        // If several calls are needed for all heads, each of them reads some keys at a time, which stay in the cache.
        let pass = tile::pass_blocks(group, layout.columns());
        for blocks in passes(blocks, pass) {
            for heads in groups(group) {
                let args = Scores {
                    // A block of values has as many words as a block of keys.
                    prefetch: (heads.start == 0).then_some(v),
                    q: each_row(&heads, |head| q.wrapping_add(head * layout.left_row())),
                    rows: heads.len(),
                    k,
                    blocks: (blocks.start, blocks.end),
                    words: layout.row(),
                    scale,
                    out: to.wrapping_add(heads.start * stride + blocks.start * BLOCK),
                    stride,
                };
                // SAFETY: guaranteed by the caller.
                unsafe { kernels::scores::<L, R>(level, &args) };
            }
        }
    }

    /// Replaces the scores of a head by unnormalized probabilities, as words; returns 1 over their sum.
    pub(super) fn softmax<L: Element>(&self, level: Level, scores: &mut [f32]) -> f32 {
        softmax::hide(scores, self.first);
        let scores = &mut scores[..self.keys.next_multiple_of(BLOCK)];
        // SAFETY: `softmax` only requires the instruction set.
        1.0 / unsafe { softmax::softmax::<L>(level, scores, self.keys) }.1
    }

    /// Weighted sums of some columns of the values for all heads, E floats from one head to the next; `columns` as in
    /// [`Weighted`].
    ///
    /// # Safety
    ///
    /// As for [`attend`]; `weights` are those of [`softmax`](Self::softmax), `to` must have room, and no other thread may
    /// access the columns.
    pub(super) unsafe fn sums<L: Element, R: Element>(
        &self,
        level: Level,
        columns: Range<usize>,
        weights: *const f32,
        stride: usize,
        inverse: &[f32],
        to: *mut f32,
    ) {
        let &Self { group, layout, first, keys, v, next, .. } = self;
        let e = layout.head_dim;
        let pass = tile::pass_blocks(group, layout.rows());
        for blocks in passes(0..keys.div_ceil(BLOCK), pass) {
            let end = keys.min(blocks.end * BLOCK);
            for heads in groups(group) {
                let sum = Weighted {
                    prefetch: next.filter(|_| heads.start == 0),
                    out: each_row(&heads, |head| to.wrapping_add(head * e)),
                    rows: heads.len(),
                    weights: weights.wrapping_add(heads.start * stride),
                    row_step: stride,
                    word_step: 1,
                    summands: v,
                    start: first.max(blocks.start * BLOCK),
                    ends: &[keys; ROWS][..heads.len()],
                    end,
                    head_dim: e,
                    columns: columns.clone(),
                    from_zero: blocks.start == 0,
                    factors: (end == keys).then(|| &inverse[heads.clone()]),
                };
                // SAFETY: guaranteed by the caller.
                unsafe { kernels::add_weighted::<L, R>(level, &sum) };
            }
        }
    }
}

/// Consecutive ranges of at most `size` of the blocks.
fn passes(blocks: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    blocks.clone().step_by(size).map(move |first| first..blocks.end.min(first.saturating_add(size)))
}
