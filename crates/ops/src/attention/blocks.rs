//! Keys and values of one head in blocks of 16 tokens: cache blocks, and copies of packed sequences.

use std::ops::Range;

use super::pieces::View;
use super::words::BLOCK;
use super::{AttentionShape, rows};
use crate::Element;
use crate::isa::Level;

/// Locations of a sequence's blocks.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    /// Address of block 0.
    first: *const f32,
    /// Words from one block to the next.
    step: usize,
    /// Block numbers of the sequence; consecutive if `None`.
    table: Option<&'a [u32]>,
}

impl<'a> Blocks<'a> {
    /// Contiguous blocks of `words` words.
    pub(super) fn adjacent(blocks: &'a [f32], words: usize) -> Self {
        Self { first: blocks.as_ptr(), step: words, table: None }
    }

    /// Cache blocks given by `table`, `step` words apart, counted from `first`.
    pub(crate) fn cached(first: *const f32, step: usize, table: &'a [u32]) -> Self {
        Self { first, step, table: Some(table) }
    }

    /// Address of the sequence's n-th block.
    #[inline(always)]
    pub(super) fn at(&self, n: usize) -> *const f32 {
        let place = self.table.map_or(n, |table| table[n] as usize);
        self.first.wrapping_add(place * self.step)
    }
}

/// Location of one kv head's rows in tensors `[tokens, G, E]`.
pub(super) struct Source<'a> {
    pub(super) view: &'a View,
    pub(super) kv_head: usize,
    pub(super) shape: AttentionShape,
}

impl Source<'_> {
    /// Offset of the row of a position.
    pub(super) fn at(&self, position: usize) -> usize {
        (self.view.row(position) * self.shape.kv_heads + self.kv_head) * self.shape.head_dim
    }

    /// Calls `f` for the blocks that contain these positions, where the first block begins with position `base`, with
    /// the block's number and the offsets of its rows. Includes rows before the first of the positions.
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

/// Copies the rows of these positions, as columns of format F, into blocks of which the first begins with position `base`.
pub(super) fn columns<F: Element, E: Element>(
    level: Level,
    to: &mut [f32],
    from: &[E],
    source: &Source<'_>,
    positions: Range<usize>,
    base: usize,
) {
    let e = source.shape.head_dim;
    let words = super::words::Layout::of::<F, F>(e).columns();
    if positions.is_empty() {
        return;
    }
    source.blocks(positions, base, |block, at| {
        // SAFETY: only the instruction set is required.
        unsafe { rows::columns::<F, E>(level, &mut to[block * words..], from, at, e) };
    });
}

/// Copies the rows of these positions, in format F, into blocks of which the first begins with position `base`.
pub(super) fn rows<F: Element, E: Element>(
    level: Level,
    to: &mut [f32],
    from: &[E],
    source: &Source<'_>,
    positions: Range<usize>,
    base: usize,
) {
    let e = source.shape.head_dim;
    let words = super::words::Layout::of::<F, F>(e).rows();
    if positions.is_empty() {
        return;
    }
    source.blocks(positions, base, |block, at| {
        // SAFETY: a block has room for its rows.
        unsafe { rows::across::<F, E>(level, &mut to[block * words..][..words], from, at, e) };
    });
}
