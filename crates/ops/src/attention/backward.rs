//! Backward attention. Probabilities are computed again from the queries, the keys and the log-sum-exp, a
//! tile of rows at a time:
//!
//! - `p = exp(s − lse)` and `ds = p · (d_out · v − delta)`, with `delta = d_out · out` in 16 lanes;
//! - `dq = (Σ_j ds_j k_j) · scale` over keys;
//! - `dk = (Σ_i ds_i q_i) · scale` and `dv = Σ_i p_i d_out_i` over queries.
//!
//! Each element of a sum is one chain, ascending by token, the heads of a group in order within a token. The chain of
//! a key that several segments see runs through the tokens of all of them.

use std::ops::Range;

use super::blocks::Source;
use super::kernels::{self, BLOCK, ROWS, Weighted};
use super::pieces::{Piece, Visit};
use super::tile::{self, MOST_ROWS, Tile};
use super::{AttentionShape, blocks, packed, rows};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::isa::Level;

/// Keys that a tile's rows meet at a time. Unlike the forward, nothing needs all of a row's scores at once.
const WINDOW: usize = 16 * BLOCK;

/// Floats from one row's probabilities to the next row's: see [`tile::size`].
const STRIDE: usize = WINDOW + BLOCK;

/// What the backward reads.
pub(super) struct Inputs<'a, E: Element> {
    pub(super) d_out: &'a [f32],
    pub(super) out: &'a [E],
    pub(super) lse: &'a [f32],
    pub(super) q: &'a [E],
    pub(super) k: &'a [E],
    pub(super) v: &'a [E],
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
    copies * blocks::floats(piece.keys(), shape.head_dim) + MOST_ROWS * (2 * STRIDE + 2 * shape.head_dim)
}

/// Copies of the keys and values of a visit, and the sums of their gradients, in blocks that begin with the piece's
/// first key.
struct Keys<'a> {
    k_columns: &'a mut [f32],
    v_columns: &'a mut [f32],
    /// Empty when dq is not asked for.
    k_rows: &'a mut [f32],
    /// Empty when dk and dv are not asked for; so is the next.
    dk_sums: &'a mut [f32],
    dv_sums: &'a mut [f32],
}

/// Space for the rows of a tile.
struct TileRows<'a> {
    probs: &'a mut [f32],
    ds: &'a mut [f32],
    q: &'a mut [f32],
    d_out: &'a mut [f32],
}

fn divide<'a>(
    scratch: &'a mut [f32],
    keys: usize,
    head_dim: usize,
    gradients: Gradients<'_>,
) -> (Keys<'a>, TileRows<'a>) {
    let copy = blocks::floats(keys, head_dim);
    let mut rest = scratch;
    let mut take = |floats: usize| {
        let (taken, left) = std::mem::take(&mut rest).split_at_mut(floats);
        rest = left;
        taken
    };
    let rows = if gradients.dq.is_some() { copy } else { 0 };
    let sums = if gradients.dk_dv.is_some() { copy } else { 0 };
    let keys = Keys {
        k_columns: take(copy),
        v_columns: take(copy),
        k_rows: take(rows),
        dk_sums: take(sums),
        dv_sums: take(sums),
    };
    let tile = TileRows {
        probs: take(MOST_ROWS * STRIDE),
        ds: take(MOST_ROWS * STRIDE),
        q: take(MOST_ROWS * head_dim),
        d_out: take(MOST_ROWS * head_dim),
    };
    (keys, tile)
}

/// Writes the gradients of one piece, for one kv head.
///
/// # Safety
///
/// Nobody else may reach the rows of dq of the piece's queries, or of dk and dv of its keys, for this head, where
/// `gradients` has them.
pub(super) unsafe fn run<E: Element>(
    level: Level,
    x: &Inputs<'_, E>,
    piece: &Piece,
    kv_head: usize,
    gradients: Gradients<'_>,
    scratch: &mut [f32],
) {
    let (mut keys, mut rows) = divide(scratch, piece.keys(), x.shape.head_dim, gradients);
    let mut done: Option<&Visit> = None;
    for visit in &piece.visits {
        if let Some(done) = done {
            // SAFETY: the caller's word.
            unsafe { write_sums(level, x, done, kv_head, visit.new..done.keys.end, &mut keys, gradients) };
        }
        fill(level, x, visit, kv_head, &mut keys);
        // SAFETY: the caller's word.
        unsafe { visit_rows(level, x, visit, kv_head, &mut keys, &mut rows, gradients.dq) };
        done = Some(visit);
    }
    if let Some(done) = done {
        // SAFETY: the caller's word.
        unsafe { write_sums(level, x, done, kv_head, done.keys.clone(), &mut keys, gradients) };
    }
}

/// Copies the visit's new keys and values, and begins their sums.
fn fill<E: Element>(level: Level, x: &Inputs<'_, E>, visit: &Visit, kv_head: usize, keys: &mut Keys<'_>) {
    let (e, base) = (x.shape.head_dim, visit.keys.start);
    let source = Source { view: &visit.view, kv_head, shape: x.shape };
    let new = visit.new..visit.keys.end;
    let tokens = new.start - base..new.end - base;
    // Either of them is there, and not needed yet.
    let rows = if keys.k_rows.is_empty() { &mut *keys.dk_sums } else { &mut *keys.k_rows };
    blocks::gather(level, rows, x.v, &source, new.clone(), base);
    blocks::transpose(keys.v_columns, rows, e, tokens.clone());
    blocks::gather(level, rows, x.k, &source, new, base);
    blocks::transpose(keys.k_columns, rows, e, tokens.clone());
    if !keys.dk_sums.is_empty() {
        let floats = tokens.start * e..tokens.end * e;
        keys.dk_sums[floats.clone()].fill(0.0);
        keys.dv_sums[floats].fill(0.0);
    }
}

/// Writes the sums of the keys at these positions, which are complete, as dk and dv.
///
/// # Safety
///
/// Nobody else may reach these rows of dk and dv.
unsafe fn write_sums<E: Element>(
    level: Level,
    x: &Inputs<'_, E>,
    visit: &Visit,
    kv_head: usize,
    positions: Range<usize>,
    keys: &mut Keys<'_>,
    gradients: Gradients<'_>,
) {
    let Some((dk, dv)) = gradients.dk_dv else { return };
    let (e, base) = (x.shape.head_dim, visit.keys.start);
    let source = Source { view: &visit.view, kv_head, shape: x.shape };
    kernels::scale_row(
        level,
        &mut keys.dk_sums[(positions.start - base) * e..(positions.end - base) * e],
        x.shape.scale(),
    );
    for position in positions {
        let (at, sums) = (source.at(position), (position - base) * e..(position - base + 1) * e);
        // SAFETY: the caller's word.
        let (dk, dv) = unsafe { (dk.slice(at..at + e), dv.slice(at..at + e)) };
        dk.copy_from_slice(&keys.dk_sums[sums.clone()]);
        dv.copy_from_slice(&keys.dv_sums[sums]);
    }
}

/// Adds up the gradients of the visit's queries, a tile at a time.
///
/// # Safety
///
/// Nobody else may reach the rows of dq of the visit's queries, for this head.
unsafe fn visit_rows<E: Element>(
    level: Level,
    x: &Inputs<'_, E>,
    visit: &Visit,
    kv_head: usize,
    keys: &mut Keys<'_>,
    space: &mut TileRows<'_>,
    dq: Option<Disjoint<'_>>,
) {
    let (e, group) = (x.shape.head_dim, x.shape.group());
    let (k_columns, v_columns) = (blocks::table(keys.k_columns, e), blocks::table(keys.v_columns, e));
    let k_rows = blocks::table(keys.k_rows, e);
    let first = visit.view.row(visit.queries.start);
    let scales = [x.shape.scale(); MOST_ROWS];
    let (mut lse, mut delta) = ([0.0; MOST_ROWS], [0.0; MOST_ROWS]);
    let limit = |token: usize| visit.limit(visit.queries.start + token);
    let queries = packed::rows(visit, kv_head, x.shape);
    let mut tiles = queries.tiles(MOST_ROWS, limit).peekable();
    while let Some(tile) = tiles.next() {
        let offsets = &tile.offset[..tile.len()];
        rows::gather(level, space.q, x.q, offsets, e);
        rows::gather(level, space.d_out, x.d_out, offsets, e);
        rows::deltas(level, &mut delta, space.d_out, x.out, offsets, e);
        for (row, lse) in lse[..tile.len()].iter_mut().enumerate() {
            *lse = x.lse[(first + tile.token[row]) * x.shape.heads + kv_head * group + tile.head[row]];
        }
        // Rows lie far apart: what will be needed soon is on its way while the processor is busy with the scores.
        if let Some(dq) = dq {
            rows::prefetch(level, dq.as_mut_ptr(), offsets, e);
        }
        if let Some(next) = tiles.peek() {
            let offsets = &next.offset[..next.len()];
            rows::prefetch(level, x.q.as_ptr(), offsets, e);
            rows::prefetch(level, x.d_out.as_ptr(), offsets, e);
            rows::prefetch(level, x.out.as_ptr(), offsets, e);
        }
        let (q_table, d_out_table) = (blocks::table(space.q, e), blocks::table(space.d_out, e));
        for start in (0..tile.keys).step_by(WINDOW) {
            let window = start..tile.keys.min(start + WINDOW);
            let q = |row: usize| space.q[row * e..][..e].as_ptr();
            let d_out = |row: usize| space.d_out[row * e..][..e].as_ptr();
            let (probs, ds) = (&mut *space.probs, &mut *space.ds);
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
            if let Some(dq) = dq {
                let out = |row: usize| dq.as_mut_ptr().wrapping_add(tile.offset[row]);
                // SAFETY: these rows of dq are ours alone by the caller's word; the blocks are copies made
                // above.
                unsafe { tile.weighted_sums(level, window.clone(), ds, STRIDE, &k_rows, out, &scales) };
            }
            if !keys.dk_sums.is_empty() {
                // SAFETY: the tables are of this tile's rows.
                unsafe {
                    add_to_keys(level, &tile, window.clone(), probs, &d_out_table, keys.dv_sums, e);
                    add_to_keys(level, &tile, window, ds, &q_table, keys.dk_sums, e);
                }
            }
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
