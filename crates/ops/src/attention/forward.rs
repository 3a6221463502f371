//! Forward attention of rows against the blocks of their keys and values.

use super::kernels::{self, BLOCK};
use super::tile::{self, MOST_ROWS, Rows};
use crate::disjoint::Disjoint;
use crate::isa::Level;

/// Floats that the scores of one tile may take: they are gone over four times, so they should stay in a second-level
/// cache.
const TILE_FLOATS: usize = 64 * 1024;

/// Floats of scratch that [`attend`] needs for at most `keys` keys.
pub(super) fn scratch_floats(keys: usize) -> usize {
    let (rows, stride) = tile::size(keys, TILE_FLOATS);
    rows * stride
}

/// Attention of `rows` over keys and values given as tables of blocks. Token t of the rows sees keys `0..limit(t)`, at
/// most `keys`; `out` receives the rows where they are in `q`, and `lse` is told each row's log-sum-exp.
///
/// # Safety
///
/// The tables must point to whole blocks that hold all keys below the limits; `out` must hold the rows, and nobody else
/// may reach them.
pub(super) unsafe fn attend(
    level: Level,
    rows: Rows,
    q: &[f32],
    out: Disjoint<'_>,
    k: &[*const f32],
    v: &[*const f32],
    scale: f32,
    keys: usize,
    limit: impl Fn(usize) -> usize,
    scratch: &mut [f32],
    lse: impl Fn(usize, f32),
) {
    let e = rows.head_dim;
    let (tile_rows, stride) = tile::size(keys, TILE_FLOATS);
    let mut inverse = [0.0; MOST_ROWS];
    for tile in rows.tiles(tile_rows) {
        let limit = |row: usize| limit((tile.start + row) / rows.group);
        let query = |row: usize| q[rows.offset(tile.start + row)..][..e].as_ptr();
        // SAFETY: queries are cut out of `q`; the blocks are there by the caller's word.
        unsafe { tile::scores(level, tile.len(), query, k, e, scale, limit, scratch, stride) };
        for row in 0..tile.len() {
            let n = limit(row);
            let scores = &mut scratch[row * stride..][..n.next_multiple_of(BLOCK)];
            let (max, sum) = kernels::softmax(level, scores, n);
            inverse[row] = 1.0 / sum;
            lse(tile.start + row, max + sum.ln());
        }
        let out = |row: usize| tile::row_of(out, rows.offset(tile.start + row));
        // SAFETY: outputs and blocks are there, and the outputs ours alone, by the caller's word.
        unsafe {
            tile::weighted_sums(level, tile.len(), scratch, stride, v, e, limit, out, |row| inverse[row]);
        }
    }
}
