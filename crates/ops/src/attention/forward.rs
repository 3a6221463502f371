//! Forward attention of rows against the blocks of their keys and values.

use super::kernels::{self, BLOCK};
use super::rows;
use super::tile::{self, MOST_ROWS, Rows};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::isa::Level;

/// Floats that the scores of one tile may take: they are gone over four times, so they should stay in a
/// second-level cache.
const TILE_FLOATS: usize = 64 * 1024;

/// Floats of scratch that [`attend`] needs for at most `keys` keys.
pub(super) fn scratch_floats(keys: usize, head_dim: usize) -> usize {
    let (rows, stride) = tile::size(keys, TILE_FLOATS);
    rows * (stride + head_dim)
}

/// Attention of `queries` over keys and values given as tables of blocks. Token t of the queries sees keys
/// `0..limit(t)`, at most `keys`, and limits never descend; `out` receives the rows where they are in `q`,
/// and `lse` is told each row's log-sum-exp.
///
/// # Safety
///
/// The tables must point to whole blocks that hold all keys below the limits; `out` must hold the rows, and
/// nobody else may reach them.
pub(super) unsafe fn attend<E: Element, K: Element>(
    level: Level,
    queries: Rows,
    q: &[E],
    out: Disjoint<'_, E>,
    k: &[*const K],
    v: &[*const K],
    scale: f32,
    keys: usize,
    limit: impl Fn(usize) -> usize,
    scratch: &mut [f32],
    lse: impl Fn(usize, f32),
) {
    let (tile_rows, stride) = tile::size(keys, TILE_FLOATS);
    let mut inverse = [0.0; MOST_ROWS];
    let e = queries.head_dim;
    let (q_rows, scratch) = scratch.split_at_mut(tile_rows * e);
    let mut tiles = queries.tiles(tile_rows, limit).peekable();
    while let Some(tile) = tiles.next() {
        let places = &tile.offset[..tile.len()];
        rows::gather(level, q_rows, q, places, e);
        // Rows lie far apart: what will be needed soon is on its way while the processor is busy with the scores.
        rows::prefetch(level, out.as_mut_ptr(), places, e);
        if let Some(next) = tiles.peek() {
            rows::prefetch(level, q.as_ptr(), &next.offset[..next.len()], e);
        }
        let query = |row: usize| q_rows[row * e..][..e].as_ptr();
        // SAFETY: the queries are the copies; the blocks are there by the caller's word.
        unsafe { tile.scores(level, 0..tile.keys, query, k, scale, scratch, stride) };
        for (row, &n) in tile.limit[..tile.len()].iter().enumerate() {
            let scores = &mut scratch[row * stride..][..n.next_multiple_of(BLOCK)];
            let (max, sum) = kernels::softmax(level, scores, n);
            inverse[row] = 1.0 / sum;
            lse(tile.rows.start + row, max + sum.ln());
        }
        // The queries have done their part: their places take the sums, which come about in several passes.
        let sums = q_rows.as_mut_ptr();
        let place = |row: usize| sums.wrapping_add(row * e);
        // SAFETY: a row's place holds E floats, and the blocks are there by the caller's word.
        unsafe { tile.weighted_sums(level, 0..tile.keys, scratch, stride, v, place, &inverse) };
        // SAFETY: the rows of the output are there and ours alone by the caller's word.
        unsafe { rows::scatter(level, out, places, q_rows, e) };
    }
}
