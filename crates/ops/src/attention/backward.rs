//! Backward attention. Probabilities are computed again from the queries, the keys and the log-sum-exp, a tile of rows
//! at a time:
//!
//! `p = exp(s − lse)`, `ds = p · (d_out · v − delta)` with `delta = d_out · out` (16 lanes), then
//! `dq = (Σ_j ds_j k_j) · scale` over keys, `dk = (Σ_i ds_i q_i) · scale` and `dv = Σ_i p_i d_out_i` over queries: each
//! element one chain, ascending by token, the heads of a group in order within a token.

use super::kernels::{self, BLOCK, ROWS, Weighted};
use super::packed::Piece;
use super::tile::{self, Rows};
use super::{AttentionShape, blocks};
use crate::disjoint::Disjoint;
use crate::isa::Level;

/// Floats that the probabilities of one tile may take, and as many again for their gradients.
const TILE_FLOATS: usize = 32 * 1024;

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
    let (tile_rows, stride) = tile::size(piece.keys.len(), TILE_FLOATS);
    let copies = 2 + usize::from(gradients.dq.is_some()) + 2 * usize::from(gradients.dk_dv.is_some());
    copies * blocks::floats(piece.keys.len(), shape.head_dim)
        + 2 * tile_rows * (stride + shape.head_dim)
        + tile_rows
}

/// Writes the gradients of one piece.
///
/// # Safety
///
/// Nobody else may reach the rows of dq of the piece's queries, or of dk and dv of its keys, for its head, where
/// `gradients` has them.
pub(super) unsafe fn run(
    level: Level,
    x: &Inputs<'_>,
    piece: &Piece,
    gradients: Gradients<'_>,
    scratch: &mut [f32],
) {
    let (h, g, e, group) = (x.shape.heads, x.shape.kv_heads, x.shape.head_dim, x.shape.group());
    let keys = piece.keys.len();
    let (tile_rows, stride) = tile::size(keys, TILE_FLOATS);
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
    let (probs, ds) = (take(tile_rows * stride), take(tile_rows * stride));
    let (q_rows, d_out_rows) = (take(tile_rows * e), take(tile_rows * e));
    let deltas = take(tile_rows);

    let head = ((piece.start + piece.keys.start) * g + piece.kv_head) * e;
    blocks::transpose(k_columns, &x.k[head..], g * e, e, keys);
    blocks::transpose(v_columns, &x.v[head..], g * e, e, keys);
    if gradients.dq.is_some() {
        blocks::gather(k_rows, &x.k[head..], g * e, e, keys);
    }
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
    for tile in rows.tiles(tile_rows) {
        // How many of the piece's keys row r of the tile sees.
        let limit = |row: usize| {
            (piece.queries.start + (tile.start + row) / group + 1).min(piece.keys.end) - piece.keys.start
        };
        for (row, delta) in deltas[..tile.len()].iter_mut().enumerate() {
            let at = rows.offset(tile.start + row);
            let d_out = &x.d_out[at..][..e];
            q_rows[row * e..][..e].copy_from_slice(&x.q[at..][..e]);
            d_out_rows[row * e..][..e].copy_from_slice(d_out);
            *delta = kernels::dot(level, d_out, &x.out[at..][..e]);
        }
        let row_in = |rows: &[f32], row: usize| rows[row * e..][..e].as_ptr();
        // SAFETY: rows and blocks are copies of E floats each, made above.
        unsafe {
            let scale = x.shape.scale();
            tile::scores(
                level,
                tile.len(),
                |r| row_in(q_rows, r),
                &k_columns,
                e,
                scale,
                limit,
                probs,
                stride,
            );
            tile::scores(level, tile.len(), |r| row_in(d_out_rows, r), &v_columns, e, 1.0, limit, ds, stride);
        }
        let tile_keys = limit(tile.len() - 1);
        for (row, &delta) in deltas[..tile.len()].iter().enumerate() {
            let at = row * stride..row * stride + tile_keys.next_multiple_of(BLOCK);
            let (token, head) = ((tile.start + row) / group, (tile.start + row) % group);
            let lse = x.lse[(first_token + token) * h + piece.kv_head * group + head];
            kernels::softmax_backward(level, &mut probs[at.clone()], &mut ds[at], limit(row), lse, delta);
        }
        if let Some(dq) = gradients.dq {
            let out = |row: usize| tile::row_of(dq, rows.offset(tile.start + row));
            // SAFETY: these rows of dq are ours alone by the caller's word; the blocks are copies made above.
            unsafe {
                let scale = |_| x.shape.scale();
                tile::weighted_sums(level, tile.len(), ds, stride, &k_rows, e, limit, out, scale);
            }
        }
        if gradients.dk_dv.is_some() {
            let q_table = blocks::table(q_rows, e);
            let d_out_table = blocks::table(d_out_rows, e);
            for first in (0..tile_keys).step_by(ROWS) {
                let count = ROWS.min(tile_keys - first);
                // Earlier rows do not see any of these keys.
                let token = (piece.keys.start + first).saturating_sub(piece.queries.start);
                let from = (token * group).max(tile.start) - tile.start;
                for (sums, weights, summands) in
                    [(&mut *dv_sums, &*probs, &d_out_table), (&mut *dk_sums, &*ds, &q_table)]
                {
                    let sums = sums[first * e..][..count * e].as_mut_ptr();
                    let args = Weighted {
                        out: tile::each_row(0, count, |row| sums.wrapping_add(row * e)),
                        rows: count,
                        weights: weights[first..].as_ptr(),
                        row_step: 1,
                        summand_step: stride,
                        summands,
                        range: from..tile.len(),
                        head_dim: e,
                        from_zero: false,
                    };
                    // SAFETY: sums and rows are ours; all rows of the tile have weights for all of `tile_keys`.
                    unsafe { kernels::add_weighted(level, &args) };
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
