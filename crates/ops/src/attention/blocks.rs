//! Keys and values of one head in blocks of 16 tokens: those of a cache, and copies of those of a packed sequence.

use std::ops::Range;

use super::pieces::View;
use super::words::BLOCK;
use super::{AttentionShape, rows};
use crate::Element;
use crate::isa::Level;

/// Where blocks lie.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    /// The first of all.
    first: *const f32,
    /// Words from one to the next.
    step: usize,
    /// Which of them the sequence's are; they follow each other where there is no table.
    table: Option<&'a [u32]>,
}

impl<'a> Blocks<'a> {
    /// Blocks of `words` words next to each other.
    pub(super) fn adjacent(blocks: &'a [f32], words: usize) -> Self {
        Self { first: blocks.as_ptr(), step: words, table: None }
    }

    /// Blocks of a cache: those at these places, `step` words apart from `first` on.
    pub(crate) fn cached(first: *const f32, step: usize, table: &'a [u32]) -> Self {
        Self { first, step, table: Some(table) }
    }

    /// Where the n-th block begins.
    #[inline(always)]
    pub(super) fn at(&self, n: usize) -> *const f32 {
        let place = self.table.map_or(n, |table| table[n] as usize);
        self.first.wrapping_add(place * self.step)
    }
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

    /// The blocks with these positions, of which the first begins with position `base`: for each its number and where
    /// its rows begin. Rows before the first of the positions are among them.
    fn blocks(&self, positions: Range<usize>, base: usize, mut f: impl FnMut(usize, &[usize])) {
        let mut at = [0; BLOCK];
        for block in (positions.start - base) / BLOCK..(positions.end - base).div_ceil(BLOCK) {
            let first = base + block * BLOCK;
            let count = BLOCK.min(positions.end - first);
            for (i, at) in at[..count].iter_mut().enumerate() {
                *at = self.at(first + i);
            }
            f(block, &at[..count]);
        }
    }
}

/// Copies the rows of these positions as columns into blocks, of which the first begins with position `base`.
pub(super) fn columns<E: Element>(
    level: Level,
    to: &mut [f32],
    from: &[E],
    source: &Source<'_>,
    positions: Range<usize>,
    base: usize,
) {
    let e = source.shape.head_dim;
    let words = super::words::Layout::of::<E>(e).columns();
    if positions.is_empty() {
        return;
    }
    source.blocks(positions, base, |block, at| rows::columns(level, &mut to[block * words..], from, at, e));
}

/// Copies the rows of these positions into blocks, of which the first begins with position `base`.
pub(super) fn rows<E: Element>(
    level: Level,
    to: &mut [f32],
    from: &[E],
    source: &Source<'_>,
    positions: Range<usize>,
    base: usize,
) {
    let e = source.shape.head_dim;
    let words = super::words::Layout::of::<E>(e).rows();
    if positions.is_empty() {
        return;
    }
    source.blocks(positions, base, |block, at| {
        // SAFETY: a block has its rows.
        unsafe { rows::across::<E, E>(level, &mut to[block * words..][..words], from, at, e) };
    });
}
