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

/// Query of one token over the keys of one kv head.
pub(super) struct Token<'a> {
    /// Contiguous queries of `group` heads, as words.
    pub(super) q: *const f32,
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

/// Attention of the token, whose heads start at `at` in `out`; bitwise identical to
/// [`forward`](super::forward::attend). `scratch` needs the [`scratch_floats`](super::forward::scratch_floats) of the
/// number of keys, or more.
///
/// # Safety
///
/// Queries (each starting at a word boundary), keys and values must be valid; so must the heads in `out`, which no
/// other thread may access.
pub(super) unsafe fn attend<E: Element>(
    level: Level,
    token: &Token<'_>,
    scratch: &mut [f32],
    out: Disjoint<'_, E>,
    at: usize,
) {
    let e = token.layout.head_dim;
    debug_assert!(token.q.is_aligned() && e.is_multiple_of(E::GROUP));
    // As many heads at a time as there is room for scores.
    let stride = tile::size(token.keys, 0).1;
    let most = ((scratch.len() - MAX_ROWS * e) / stride).min(MAX_ROWS);
    assert!(most >= ROWS, "attention: no room for the scores of {} keys", token.keys);
    let parts = token.group.div_ceil(most);
    for part in 0..parts {
        let heads = piece(token.group, parts, part);
        let token = Token {
            q: token.q.wrapping_add(heads.start * token.layout.row()),
            group: heads.len(),
            next: token.next.filter(|_| part + 1 == parts),
            ..*token
        };
        // SAFETY: guaranteed by the caller; there is room for the scores of these heads.
        unsafe { attend_heads(level, &token, scratch, stride, out, at + heads.start * e) };
    }
}

/// [`attend`] for heads whose scores, `stride` floats from one head to the next, have room in `scratch` besides
/// `MAX_ROWS` rows of results.
///
/// # Safety
///
/// As for [`attend`].
unsafe fn attend_heads<E: Element>(
    level: Level,
    token: &Token<'_>,
    scratch: &mut [f32],
    stride: usize,
    out: Disjoint<'_, E>,
    at: usize,
) {
    let &Token { q, group, layout, first, keys, k, v, scale, next } = token;
    let e = layout.head_dim;
    let (sums, scores) = scratch.split_at_mut(MAX_ROWS * e);
    let first_scores = scores.as_mut_ptr();
    // If several calls are needed for all heads, each of them reads some keys at a time, which stay in the cache.
    let pass = tile::pass_blocks(group, layout.columns());
    for blocks in passes(keys.div_ceil(BLOCK), pass) {
        for heads in groups(group) {
            let args = Scores {
                // A block of values has as many words as a block of keys.
                prefetch: (heads.start == 0).then_some(v),
                q: each_row(&heads, |head| q.wrapping_add(head * layout.row())),
                rows: heads.len(),
                k,
                blocks: (blocks.start, blocks.end),
                words: layout.row(),
                scale,
                out: first_scores.wrapping_add(heads.start * stride + blocks.start * BLOCK),
                stride,
            };
            // SAFETY: the caller guarantees queries and blocks, and room for the scores.
            unsafe { kernels::scores::<E>(level, &args) };
        }
    }
    let mut inverse = [0.0; MAX_ROWS];
    for (scores, inverse) in scores.chunks_mut(stride).zip(&mut inverse[..group]) {
        softmax::hide(scores, first);
        // SAFETY: `softmax` has no further requirements.
        *inverse = 1.0
            / unsafe { softmax::softmax::<E>(level, &mut scores[..keys.next_multiple_of(BLOCK)], keys) }.1;
    }
    let to = sums.as_mut_ptr();
    let pass = tile::pass_blocks(group, layout.rows());
    for blocks in passes(keys.div_ceil(BLOCK), pass) {
        let end = keys.min(blocks.end * BLOCK);
        for heads in groups(group) {
            let sum = Weighted {
                prefetch: next.filter(|_| heads.start == 0),
                out: each_row(&heads, |head| to.wrapping_add(head * e)),
                rows: heads.len(),
                weights: first_scores.wrapping_add(heads.start * stride),
                row_step: stride,
                word_step: 1,
                summands: v,
                start: first.max(blocks.start * BLOCK),
                ends: &[keys; ROWS][..heads.len()],
                end,
                head_dim: e,
                from_zero: blocks.start == 0,
                factors: (end == keys).then(|| &inverse[heads.clone()]),
            };
            // SAFETY: as above; there is room for the sums.
            unsafe { kernels::add_weighted::<E>(level, &sum) };
        }
    }
    // SAFETY: the caller guarantees the output.
    unsafe { rows::scatter::<E, E>(level, out, &[at], &sums[..group * e], group * e) }
}

/// Ranges of at most `size` of `count` blocks.
fn passes(count: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(size).map(move |first| first..count.min(first.saturating_add(size)))
}
