//! Keys and values of one head of a packed sequence, copied into blocks of 16 tokens: what a cache holds
//! anyway.

use std::ops::Range;

use super::kernels::BLOCK;
use super::pieces::View;
use super::{AttentionShape, rows};
use crate::Element;
use crate::isa::Level;

/// Floats of `tokens` tokens in whole blocks.
pub(super) fn floats(tokens: usize, head_dim: usize) -> usize {
    tokens.next_multiple_of(BLOCK) * head_dim
}

/// Where the rows of tensors `[tokens, G, E]` lie that are meant.
pub(super) struct Source<'a> {
    pub(super) view: &'a View,
    pub(super) kv_head: usize,
    pub(super) shape: AttentionShape,
}

impl Source<'_> {
    /// Where the row of a position begins.
    pub(super) fn at(&self, position: usize) -> usize {
        (self.view.row(position) * self.shape.kv_heads + self.kv_head) * self.shape.head_dim
    }
}

/// Copies the rows of these positions next to each other, as floats: blocks `[16][E]`, of which `to` begins with
/// position `base`.
pub(super) fn gather<T: Element>(
    level: Level,
    to: &mut [f32],
    from: &[T],
    source: &Source<'_>,
    positions: Range<usize>,
    base: usize,
) {
    let (e, stride) = (source.shape.head_dim, source.shape.kv_heads * source.shape.head_dim);
    for run in source.view.runs(positions) {
        let from = &from[source.at(run.start)..];
        rows::gather_stride(level, &mut to[(run.start - base) * e..], from, stride, e, run.len());
    }
}

/// Turns these tokens of blocks `[16][E]` into their places in blocks `[E][16]`; all other places are left as they
/// are.
///
/// Rows from afar are gathered first: a copy waits for many of them at a time, which this, with more work for
/// each row, does not.
pub(super) fn transpose(to: &mut [f32], from: &[f32], head_dim: usize, tokens: Range<usize>) {
    let (columns, _) = to.as_chunks_mut::<BLOCK>();
    for t in tokens {
        let row = &from[t * head_dim..][..head_dim];
        for (column, x) in columns[t / BLOCK * head_dim..].iter_mut().zip(row) {
            column[t % BLOCK] = *x;
        }
    }
}

/// The table of blocks that lie next to each other.
pub(super) fn table(blocks: &[f32], head_dim: usize) -> Vec<*const f32> {
    blocks.chunks(BLOCK * head_dim).map(<[f32]>::as_ptr).collect()
}
