//! Forward attention of rows against the blocks of their keys and values.

use super::blocks::Blocks;
use super::tile::{self, MOST_ROWS, Rows, Tile};
use super::words::{BLOCK, Layout};
use super::{rows, softmax};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::isa::Level;
use crate::simd::LANES;

/// Floats that the scores of one tile may take: they are gone over four times, so they should stay in a
/// second-level cache.
const TILE_FLOATS: usize = 64 * 1024;

/// What [`attend`], or [`token::attend`](super::token::attend), works with, made once for many calls of it.
pub(super) struct Space<'a> {
    tile: Tile,
    inverse: [f32; MOST_ROWS],
    pub(super) scratch: &'a mut [f32],
}

impl<'a> Space<'a> {
    /// `scratch` has the [`scratch_floats`] of as many keys as any call has, or of more.
    pub(super) fn new(scratch: &'a mut [f32]) -> Self {
        Self { tile: Tile::empty(), inverse: [0.0; MOST_ROWS], scratch }
    }
}

/// Floats of scratch that [`attend`] needs for `keys` keys, and for any fewer: fewer keys make a tile of more rows, so that
/// what it needs does not always grow with them.
pub(super) fn scratch_floats(keys: usize, head_dim: usize) -> usize {
    tile::most_floats(keys, TILE_FLOATS) + MOST_ROWS * head_dim + LANES
}

/// Attention of `queries` over the keys and values of these blocks. Token t of the queries sees keys
/// `0..limit(t)`, at most `keys`, and limits never descend; `out` receives the rows where they are in `q`,
/// and `lse`, `[tokens, H]`, each row's log-sum-exp where it is asked for.
///
/// # Safety
///
/// The blocks, of columns for the keys and of rows for the values, must hold all keys below the limits; `out` and
/// `lse` must hold the rows, and nobody else may reach them.
pub(super) unsafe fn attend<E: Element>(
    level: Level,
    queries: Rows,
    q: &[E],
    out: Disjoint<'_, E>,
    (k, v): (Blocks<'_>, Blocks<'_>),
    scale: f32,
    keys: usize,
    limit: impl Fn(usize) -> usize,
    space: &mut Space<'_>,
    lse: Option<Disjoint<'_>>,
) {
    let (tile_rows, stride) = tile::size(keys, TILE_FLOATS);
    let e = queries.head_dim;
    let layout = Layout::of::<E>(e);
    let Space { tile, inverse, scratch } = space;
    let (q_rows, scratch) = scratch.split_at_mut(tile_rows * e + LANES);
    assert!(scratch.len() >= tile_rows * stride, "attention: no room for the scores of {keys} keys");
    tile.restart();
    while tile.next(&queries, tile_rows, &limit) {
        let places = tile.offsets();
        // SAFETY: the rows of a tile have room; scores have theirs behind them, whole blocks for each row, as was just
        // compared. The blocks are there by the caller's word.
        unsafe {
            rows::along::<E, E>(level, q_rows, q, places, e);
            queries.prefetch(level, out.as_mut_ptr(), tile.here());
            queries.prefetch(level, q.as_ptr(), tile.behind());
            let query = |row: usize| q_rows.as_ptr().wrapping_add(row * layout.row());
            tile.scores::<E>(level, layout, 0..tile.keys(), query, k, scale, scratch.as_mut_ptr(), stride);
        }
        for (row, &n) in tile.limits().iter().enumerate() {
            let scores = &mut scratch[row * stride..][..n.next_multiple_of(BLOCK)];
            // SAFETY: it asks for nothing.
            let (max, sum) = unsafe { softmax::softmax::<E>(level, scores, n) };
            inverse[row] = 1.0 / sum;
            if let Some(lse) = lse {
                let at = places[row] / e;
                // SAFETY: this row's place, ours alone by the caller's word.
                unsafe { lse.slice(at..at + 1)[0] = max + sum.ln() };
            }
        }
        // The queries have done their part: their places take the sums, which come about in several passes.
        let sums = q_rows.as_mut_ptr();
        let place = |row: usize| sums.wrapping_add(row * e);
        // SAFETY: a row's place holds E floats, and the blocks are there by the caller's word. So are the rows of the
        // output, which are ours alone.
        unsafe {
            tile.weighted_sums::<E>(
                level,
                layout,
                0..tile.keys(),
                scratch.as_ptr(),
                stride,
                v,
                place,
                inverse,
            );
            rows::scatter::<E, E>(level, out, places, q_rows, e);
        }
    }
}
