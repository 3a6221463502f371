//! Attention of one token of a decoding sequence: the few query heads of one kv head. The work is so small that
//! gathering rows into tiles, as [`forward`](super::forward) does for many tokens, would add a third to its time.

use super::blocks::Blocks;
use super::kernels::{self, ROWS, Scores, Weighted};
use super::tile::{self, each_row};
use super::words::{BLOCK, Layout};
use super::{rows, softmax};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::isa::Level;

/// Query of one token over the keys of one kv head.
pub(super) struct Token<'a> {
    /// Contiguous queries of `group` heads, as words.
    pub(super) q: *const f32,
    /// Number of query heads, at most [`ROWS`].
    pub(super) group: usize,
    pub(super) layout: Layout,
    /// Number of keys that the token sees.
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
    let &Token { q, group, layout, keys, k, v, scale, next } = token;
    let e = layout.head_dim;
    debug_assert!(q.is_aligned() && e.is_multiple_of(E::GROUP) && group <= ROWS);
    let stride = tile::size(keys, 0).1;
    let (sums, scores) = scratch.split_at_mut(ROWS * e);
    assert!(scores.len() >= ROWS * stride, "attention: no room for the scores of {keys} keys");
    let score_args = Scores {
        // A block of values has as many words as a block of keys.
        prefetch: Some(v),
        q: each_row(&(0..group), |head| q.wrapping_add(head * layout.row())),
        rows: group,
        k,
        blocks: (0, keys.div_ceil(BLOCK)),
        words: layout.row(),
        scale,
        out: scores.as_mut_ptr(),
        stride,
    };
    // SAFETY: the caller guarantees queries and blocks, and there is room for the scores.
    unsafe { kernels::scores::<E>(level, &score_args) };
    let mut inverse = [0.0; ROWS];
    for (scores, inverse) in scores.chunks_mut(stride).zip(&mut inverse[..group]) {
        // SAFETY: `softmax` has no further requirements.
        *inverse = 1.0
            / unsafe { softmax::softmax::<E>(level, &mut scores[..keys.next_multiple_of(BLOCK)], keys) }.1;
    }
    let to = sums.as_mut_ptr();
    let sum = Weighted {
        prefetch: next,
        out: each_row(&(0..group), |row| to.wrapping_add(row * e)),
        rows: group,
        weights: scores.as_ptr(),
        row_step: stride,
        word_step: 1,
        summands: v,
        start: 0,
        ends: &[keys; ROWS][..group],
        end: keys,
        head_dim: e,
        from_zero: true,
        factors: Some(&inverse[..group]),
    };
    // SAFETY: as above; there is room for the sums, and the caller guarantees the output.
    unsafe {
        kernels::add_weighted::<E>(level, &sum);
        rows::scatter::<E, E>(level, out, &[at], &sums[..group * e], group * e);
    }
}
