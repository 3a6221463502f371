//! Forward attention of rows over blocks of keys and values.

use std::ops::Range;

use super::AttentionShape;
use super::blocks::Blocks;
use super::tile::{self, MAX_ROWS, Rows, Tile};
use super::words::{BLOCK, Layout};
use super::{rows, softmax};
use crate::Element;
use crate::caches::Caches;
use crate::disjoint::Disjoint;
use crate::isa::Level;
use crate::simd::LANES;

/// Maximum floats for the scores of one tile: they are traversed four times and should stay in the second-level cache, of
/// which they take half.
fn tile_floats() -> usize {
    Caches::detect().second / 2 / size_of::<f32>()
}

/// Scratch workspace of [`attend`] and [`token::attend`](super::token::attend), reused across calls.
pub(super) struct Workspace<'a> {
    tile: Tile,
    inverse: [f32; MAX_ROWS],
    pub(super) scratch: &'a mut [f32],
}

impl<'a> Workspace<'a> {
    /// `scratch` must have at least the [`scratch_floats`] of the largest number of keys of any call.
    pub(super) fn new(scratch: &'a mut [f32]) -> Self {
        Self { tile: Tile::empty(), inverse: [0.0; MAX_ROWS], scratch }
    }
}

/// True if queries are words of format `L` in place, because none begins within a word.
pub(super) fn is_read_in_place<E: Element, L: Element>(head_dim: usize) -> bool {
    E::GROUP == L::GROUP && head_dim.is_multiple_of(E::GROUP)
}

/// Maximum difference between the positions of the rows of one call of [`attend`], plus one, if there is a window.
pub(super) const MAX_TOKENS: usize = 64;

/// Number of keys that the rows of a tile see together, from the beginning of a block, if each sees at most `keys`: with a
/// window, those of [`MAX_TOKENS`] consecutive tokens.
pub(super) fn span(shape: AttentionShape, keys: usize) -> usize {
    shape.window.map_or(keys, |window| keys.min(window.saturating_add(MAX_TOKENS + BLOCK)))
}

/// Floats of scratch that [`attend`] needs for `keys` keys or fewer. Fewer keys give a tile of more rows, so the
/// requirement is not monotonic in the number of keys.
pub(super) fn scratch_floats(keys: usize, head_dim: usize) -> usize {
    // Queries may be padded to whole words.
    tile::max_floats(keys, tile_floats()) + MAX_ROWS * head_dim.next_multiple_of(2) + LANES
}

/// Attention of `queries` over the keys and values of these blocks. Token t of the queries sees the keys `visible(t)`,
/// those of a tile together at most `keys` (see [`span`]); neither end of the range ever decreases. `out` has the layout
/// of `q`; `lse`, `[tokens, H]`, receives each row's log-sum-exp if given. `L` and `R` are the formats of left operands and of
/// the blocks.
///
/// # Safety
///
/// The blocks, of columns for the keys and of rows for the values, must hold all visible keys; `out` and `lse` must hold
/// the rows, and no other thread may access them.
pub(super) unsafe fn attend<E: Element, L: Element, R: Element>(
    level: Level,
    queries: Rows,
    q: &[E],
    out: Disjoint<'_, E>,
    (k, v): (Blocks<'_>, Blocks<'_>),
    scale: f32,
    keys: usize,
    visible: impl Fn(usize) -> Range<usize>,
    workspace: &mut Workspace<'_>,
    lse: Option<Disjoint<'_>>,
) {
    let (tile_rows, stride) = tile::size(keys, tile_floats());
    let e = queries.head_dim;
    let layout = Layout::of::<L, R>(e);
    let Workspace { tile, inverse, scratch } = workspace;
    let (q_rows, scratch) = scratch.split_at_mut(tile_rows * e.max(layout.left_row()) + LANES);
    assert!(scratch.len() >= tile_rows * stride, "attention: no room for the scores of {keys} keys");
    let reads_in_place = is_read_in_place::<E, L>(e);
    tile.restart();
    while tile.next(&queries, tile_rows, &visible) {
        let (places, tile_keys) = (tile.offsets(), tile.keys());
        assert!(tile_keys.len() <= keys, "attention: a tile of {tile_keys:?} for {keys} keys");
        // SAFETY: there is room for the rows of a tile and, as just checked, for whole blocks of scores for each row.
        // The caller guarantees the blocks.
        unsafe {
            if !reads_in_place {
                rows::along::<L, E>(level, q_rows, layout.left_row(), q, places, e);
            }
            queries.prefetch(level, out.as_mut_ptr(), tile.rows());
            queries.prefetch(level, q.as_ptr(), tile.next_rows());
            let query = |row: usize| {
                if reads_in_place {
                    q.as_ptr().wrapping_add(places[row]).cast()
                } else {
                    q_rows.as_ptr().wrapping_add(row * layout.left_row())
                }
            };
            let scores = scratch.as_mut_ptr();
            tile.scores::<L, R>(level, layout, tile_keys.clone(), query, k, scale, scores, stride);
        }
        for (row, (&start, &limit)) in tile.starts().iter().zip(tile.limits()).enumerate() {
            let n = limit - tile_keys.start;
            let scores = &mut scratch[row * stride..][..n.next_multiple_of(BLOCK)];
            softmax::hide(scores, start - tile_keys.start);
            // SAFETY: `softmax` has no further requirements.
            let (max, sum) = unsafe { softmax::softmax::<L>(level, scores, n) };
            inverse[row] = 1.0 / sum;
            if let Some(lse) = lse {
                let at = places[row] / e;
                // SAFETY: the caller guarantees exclusive access to this row's `lse`.
                unsafe { lse.slice(at..at + 1)[0] = max + sum.ln() };
            }
        }
        // The queries are no longer needed: their memory takes the sums, which are accumulated in several passes and rounded
        // at the end. Those in f32 are accumulated in the output.
        let sums = q_rows.as_mut_ptr();
        let place = |row: usize| {
            if E::GROUP == 1 {
                out.as_mut_ptr().wrapping_add(places[row]).cast()
            } else {
                sums.wrapping_add(row * e)
            }
        };
        // SAFETY: each row has room for E floats; the caller guarantees the blocks and exclusive access to the rows of
        // the output.
        unsafe {
            let weights = scratch.as_ptr();
            tile.weighted_sums::<L, R>(level, layout, tile_keys, weights, stride, v, place, inverse);
            if E::GROUP > 1 {
                rows::scatter::<E, E>(level, out, places, q_rows, e);
            }
        }
    }
}
