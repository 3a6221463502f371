//! Backward attention. Probabilities are computed again from the queries, the keys and the log-sum-exp, a
//! tile of rows at a time:
//!
//! - `p = exp(s − lse)` and `ds = p · (d_out · v − delta)`, with `delta = d_out · out` in 16 lanes;
//! - `dq = (Σ_j ds_j k_j) · scale` over keys;
//! - `dk = (Σ_i ds_i q_i) · scale` and `dv = Σ_i p_i d_out_i` over queries.
//!
//! Each element of a sum is one chain, ascending by token, the heads of a group in order within a token.

use std::ops::Range;

use super::kernels::{self, BLOCK, ROWS, Weighted};
use super::packed::Piece;
use super::tile::{self, MOST_ROWS, Rows, Tile};
use super::{AttentionShape, blocks};
use crate::disjoint::Disjoint;
use crate::isa::Level;

/// Keys that a tile's rows meet at a time. Unlike the forward, nothing needs all of a row's scores at once.
const WINDOW: usize = 16 * BLOCK;

/// Floats from one row's probabilities to the next row's: see [`tile::size`].
const STRIDE: usize = WINDOW + BLOCK;

/// What the backward reads.
pub(super) struct Inputs<'a> {
    pub(super) d_out: &'a [f32],
    pub(super) out: &'a [f32],
    pub(super) lse: &'a [f32],
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) shape: AttentionShape,
}

/// Which gradients a pass writes.
#[derive(Clone, Copy)]
pub(super) struct Gradients<'a> {
    pub(super) dq: Option<Disjoint<'a>>,
    pub(super) dk_dv: Option<(Disjoint<'a>, Disjoint<'a>)>,
}

/// Floats of scratch that [`run`] needs for `piece`.
pub(super) fn scratch_floats(piece: &Piece, shape: AttentionShape, gradients: Gradients<'_>) -> usize {
    let copies = 2 + usize::from(gradients.dq.is_some()) + 2 * usize::from(gradients.dk_dv.is_some());
    copies * blocks::floats(piece.keys.len(), shape.head_dim) + MOST_ROWS * (2 * STRIDE + 2 * shape.head_dim)
}

/// Writes the gradients of one piece.
///
/// # Safety
///
/// Nobody else may reach the rows of dq of the piece's queries, or of dk and dv of its keys, for its head,
/// where `gradients` has them.
pub(super) unsafe fn run(
    level: Level,
    x: &Inputs<'_>,
    piece: &Piece,
    gradients: Gradients<'_>,
    scratch: &mut [f32],
) {
    let (h, g, e, group) = (x.shape.heads, x.shape.kv_heads, x.shape.head_dim, x.shape.group());
    let keys = piece.keys.len();
    let copy = blocks::floats(keys, e);
    let mut rest = scratch;
    let mut take = |floats: usize| {
        let (taken, left) = std::mem::take(&mut rest).split_at_mut(floats);
        rest = left;
        taken
    };
    let (k_columns, v_columns) = (take(copy), take(copy));
    let k_rows = take(if gradients.dq.is_some() { copy } else { 0 });
    let sums = if gradients.dk_dv.is_some() { copy } else { 0 };
    let (dk_sums, dv_sums) = (take(sums), take(sums));
    let (probs, ds) = (take(MOST_ROWS * STRIDE), take(MOST_ROWS * STRIDE));
    let (q_rows, d_out_rows) = (take(MOST_ROWS * e), take(MOST_ROWS * e));
    let (q_table, d_out_table) = (blocks::table(q_rows, e), blocks::table(d_out_rows, e));
    let (mut lse, mut delta) = ([0.0; MOST_ROWS], [0.0; MOST_ROWS]);

    let head = ((piece.start + piece.keys.start) * g + piece.kv_head) * e;
    // Either of them is there, and not needed yet.
    let rows = if gradients.dq.is_some() { &mut *k_rows } else { &mut *dk_sums };
    blocks::gather(rows, &x.v[head..], g * e, e, keys);
    blocks::transpose(v_columns, rows, e, keys);
    blocks::gather(rows, &x.k[head..], g * e, e, keys);
    blocks::transpose(k_columns, rows, e, keys);
    dk_sums.fill(0.0);
    dv_sums.fill(0.0);
    let (k_columns, v_columns) = (blocks::table(k_columns, e), blocks::table(v_columns, e));
    let k_rows = blocks::table(k_rows, e);

    let first_token = piece.start + piece.queries.start;
    let rows = Rows {
        first: (first_token * h + piece.kv_head * group) * e,
        token_stride: h * e,
        group,
        head_dim: e,
        tokens: piece.queries.len(),
    };
    // How many of the piece's keys a token sees.
    let limit = |token: usize| (piece.queries.start + token + 1).min(piece.keys.end) - piece.keys.start;
    let scales = [x.shape.scale(); MOST_ROWS];
    for tile in rows.tiles(MOST_ROWS, limit) {
        let offsets = &tile.offset[..tile.len()];
        for (row, &at) in q_rows.chunks_exact_mut(e).zip(offsets) {
            row.copy_from_slice(&x.q[at..at + e]);
        }
        for (row, &at) in d_out_rows.chunks_exact_mut(e).zip(offsets) {
            row.copy_from_slice(&x.d_out[at..at + e]);
        }
        for (row, &at) in offsets.iter().enumerate() {
            delta[row] = kernels::dot(level, &d_out_rows[row * e..][..e], &x.out[at..at + e]);
            lse[row] = x.lse[(first_token + tile.token[row]) * h + piece.kv_head * group + tile.head[row]];
        }
        for start in (0..tile.keys).step_by(WINDOW) {
            let window = start..tile.keys.min(start + WINDOW);
            let q = |row: usize| q_rows[row * e..][..e].as_ptr();
            let d_out = |row: usize| d_out_rows[row * e..][..e].as_ptr();
            // SAFETY: rows and blocks are copies of E floats each, made above.
            unsafe {
                tile.scores(level, window.clone(), q, &k_columns, scales[0], probs, STRIDE);
                tile.scores(level, window.clone(), d_out, &v_columns, 1.0, ds, STRIDE);
            }
            for row in 0..tile.len() {
                let at = row * STRIDE..row * STRIDE + window.len().next_multiple_of(BLOCK);
                let seen = tile.limit[row].clamp(window.start, window.end) - window.start;
                let (probs, ds) = (&mut probs[at.clone()], &mut ds[at]);
                kernels::softmax_backward(level, probs, ds, seen, lse[row], delta[row]);
            }
            if let Some(dq) = gradients.dq {
                let out = |row: usize| dq.as_mut_ptr().wrapping_add(tile.offset[row]);
                // SAFETY: these rows of dq are ours alone by the caller's word; the blocks are copies made
                // above.
                unsafe { tile.weighted_sums(level, window.clone(), ds, STRIDE, &k_rows, out, &scales) };
            }
            if gradients.dk_dv.is_some() {
                // SAFETY: the tables are of this tile's rows.
                unsafe {
                    add_to_keys(level, &tile, window.clone(), probs, &d_out_table, dv_sums, e);
                    add_to_keys(level, &tile, window, ds, &q_table, dk_sums, e);
                }
            }
        }
    }
    if let Some((dk, dv)) = gradients.dk_dv {
        kernels::scale_row(level, dk_sums, x.shape.scale());
        for t in 0..keys {
            let at = head + t * g * e..head + t * g * e + e;
            // SAFETY: these rows are ours alone by the caller's word.
            let (dk, dv) = unsafe { (dk.slice(at.clone()), dv.slice(at)) };
            dk.copy_from_slice(&dk_sums[t * e..][..e]);
            dv.copy_from_slice(&dv_sums[t * e..][..e]);
        }
    }
}

/// For each key j of the window, `sums[j] += Σ_r weight[r][j] · row_r` over the rows of the tile that see it.
///
/// # Safety
///
/// `rows` must be blocks `[16][E]` that hold the rows of the tile.
unsafe fn add_to_keys(
    level: Level,
    tile: &Tile,
    window: Range<usize>,
    weights: &[f32],
    rows: &[*const f32],
    sums: &mut [f32],
    head_dim: usize,
) {
    let mut seen_from = 0;
    for first in window.clone().step_by(ROWS) {
        let keys = first..window.end.min(first + ROWS);
        while tile.limit[seen_from] <= first {
            seen_from += 1;
        }
        let sums = sums[..keys.end * head_dim].as_mut_ptr();
        let args = Weighted {
            out: tile::each_row(&keys, |key| sums.wrapping_add(key * head_dim)),
            rows: keys.len(),
            weights: weights[first - window.start..].as_ptr(),
            row_step: 1,
            summand_step: STRIDE,
            summands: rows,
            start: seen_from,
            ends: [tile.len(); ROWS],
            head_dim,
            from_zero: false,
            factors: None,
        };
        // SAFETY: the sums are `sums`; all rows of the tile have weights, if zero, for all keys of the
        // window.
        unsafe { kernels::add_weighted(level, &args) };
    }
}
