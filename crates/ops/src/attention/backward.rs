//! Backward attention. Probabilities are recomputed from the queries, the keys and the log-sum-exp, one tile of rows at
//! a time:
//!
//! - `p = exp(s − lse)` and `ds = p · (d_out · v − delta)`, with `delta = d_out · out` in 16 lanes;
//! - `dq = (Σ_j ds_j k_j) · scale` over keys;
//! - `dk = (Σ_i ds_i q_i) · scale` and `dv = Σ_i p_i d_out_i` over queries.
//!
//! Each element of a sum is one chain over the visible keys, or the queries that see the key, ascending by token and,
//! within a token, by head of the group. If several segments see a key, its chain runs through the tokens of all of them.
//!
//! In dot pairs of bf16 `d_out` is rounded for its products (not in `delta`), `p` and `ds` for the sums. Pairs are formed along E,
//! along keys by position, and along rows of queries: row n of a segment is head `n mod H/G` of its token `n / (H/G)`,
//! and rows 2i and 2i + 1 form a pair wherever the queries are cut. An unpaired row is padded with zeros, and so is one
//! whose partner does not see the key any more.

use std::ops::Range;

use super::blocks::{Blocks, Source};
use super::kernels::{self, ROWS, Weighted};
use super::pieces::{Piece, Visit};
use super::softmax::{self, Backward};
use super::tile::{self, MAX_ROWS, Tile};
use super::words::{BLOCK, Layout};
use super::{AttentionShape, blocks, packed, rows};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::isa::Level;
use crate::simd::LANES;

/// Keys processed per step of a tile. Unlike the forward pass, no step needs all scores of a row at once.
const STEP: usize = 16 * BLOCK;

/// Floats from a row's probabilities to its derivatives, and from there to the next row's probabilities: see
/// [`tile::size`].
const STRIDE: usize = STEP + BLOCK;

/// Inputs of the backward pass.
pub(super) struct Inputs<'a, E: Element> {
    pub(super) d_out: &'a [f32],
    pub(super) out: &'a [E],
    pub(super) lse: &'a [f32],
    pub(super) q: &'a [E],
    pub(super) k: &'a [E],
    pub(super) v: &'a [E],
    pub(super) shape: AttentionShape,
}

/// Gradients to compute; `None` is skipped.
#[derive(Clone, Copy)]
pub(super) struct Gradients<'a> {
    pub(super) dq: Option<Disjoint<'a>>,
    pub(super) dk_dv: Option<(Disjoint<'a>, Disjoint<'a>)>,
}

/// Floats of scratch that [`run`] needs for `piece`, with words of format `F`.
pub(super) fn scratch_floats<F: Element>(
    piece: &Piece,
    shape: AttentionShape,
    gradients: Gradients<'_>,
) -> usize {
    Sizes::new(Layout::of::<F, F>(shape.head_dim), piece.keys(), gradients).total()
}

/// [`scratch_floats`] of a piece with all keys of a segment and all gradients.
pub(super) fn most_scratch_floats(layout: Layout, keys: usize) -> usize {
    Sizes::of_keys(layout, keys, true, true).total()
}

/// Sizes of the parts of the scratch memory, in floats.
struct Sizes {
    columns: usize,
    rows: usize,
    sums: usize,
    /// Rows of the tile with words that hold neighbours within a row, plus padding.
    along: usize,
    /// Rows of the tile with words that hold neighbouring rows; 0 where both layouts are the same.
    across: usize,
}

impl Sizes {
    fn new(layout: Layout, keys: usize, gradients: Gradients<'_>) -> Self {
        Self::of_keys(layout, keys, gradients.dq.is_some(), gradients.dk_dv.is_some())
    }

    /// With derivatives of queries, and sums of those of keys and values.
    fn of_keys(layout: Layout, keys: usize, queries: bool, sums: bool) -> Self {
        let blocks = keys.div_ceil(BLOCK);
        Self {
            columns: blocks * layout.columns(),
            rows: if queries { blocks * layout.rows() } else { 0 },
            sums: if sums { blocks * BLOCK * layout.head_dim } else { 0 },
            along: MAX_ROWS * layout.row() + LANES,
            across: if sums && layout.group > 1 { MAX_ROWS / BLOCK * layout.rows() } else { 0 },
        }
    }

    fn total(&self) -> usize {
        2 * (self.columns + self.sums + MAX_ROWS * STRIDE + self.along + self.across) + self.rows
    }
}

/// Copies of a visit's keys and values and their gradient sums, in blocks that begin with the piece's first key.
struct Keys<'a> {
    k_columns: &'a mut [f32],
    v_columns: &'a mut [f32],
    /// Empty if dq is not requested.
    k_rows: &'a mut [f32],
    /// Empty if dk and dv are not requested; so is `dv_sums`.
    dk_sums: &'a mut [f32],
    dv_sums: &'a mut [f32],
}

/// Scratch memory for the rows of a tile.
struct TileRows<'a> {
    /// Scores and their derivatives, `[MAX_ROWS][2][STRIDE]`: see [`Backward`].
    probs: &'a mut [f32],
    q: &'a mut [f32],
    d_out: &'a mut [f32],
    /// Empty if identical to `q` and `d_out`, or not needed.
    q_across: &'a mut [f32],
    d_out_across: &'a mut [f32],
}

fn divide<'a>(scratch: &'a mut [f32], sizes: &Sizes) -> (Keys<'a>, TileRows<'a>) {
    let mut rest = scratch;
    let mut take = |floats: usize| {
        let (taken, left) = std::mem::take(&mut rest).split_at_mut(floats);
        rest = left;
        taken
    };
    let keys = Keys {
        k_columns: take(sizes.columns),
        v_columns: take(sizes.columns),
        k_rows: take(sizes.rows),
        dk_sums: take(sizes.sums),
        dv_sums: take(sizes.sums),
    };
    let tile = TileRows {
        probs: take(2 * MAX_ROWS * STRIDE),
        q: take(sizes.along),
        d_out: take(sizes.along),
        q_across: take(sizes.across),
        d_out_across: take(sizes.across),
    };
    (keys, tile)
}

/// Writes the gradients of one piece, for one kv head, from products of words of format `F`.
///
/// # Safety
///
/// No other thread may access the rows of dq of the piece's queries, or of dk and dv of its keys, for this head, as far
/// as `gradients` requests them.
pub(super) unsafe fn run<E: Element, F: Element>(
    level: Level,
    x: &Inputs<'_, E>,
    piece: &Piece,
    kv_head: usize,
    gradients: Gradients<'_>,
    scratch: &mut [f32],
) {
    let sizes = Sizes::new(Layout::of::<F, F>(x.shape.head_dim), piece.keys(), gradients);
    let (mut keys, mut rows) = divide(scratch, &sizes);
    let mut done: Option<&Visit> = None;
    for visit in &piece.visits {
        if let Some(done) = done {
            // SAFETY: guaranteed by the caller.
            unsafe { write_sums(level, x, done, kv_head, visit.new..done.keys.end, &mut keys, gradients) };
        }
        fill::<E, F>(level, x, visit, kv_head, &mut keys);
        // SAFETY: guaranteed by the caller.
        unsafe { visit_rows::<E, F>(level, x, visit, kv_head, &mut keys, &mut rows, gradients.dq) };
        done = Some(visit);
    }
    if let Some(done) = done {
        // SAFETY: guaranteed by the caller.
        unsafe { write_sums(level, x, done, kv_head, done.keys.clone(), &mut keys, gradients) };
    }
}

/// Copies the visit's new keys and values, and initialises their sums.
fn fill<E: Element, F: Element>(
    level: Level,
    x: &Inputs<'_, E>,
    visit: &Visit,
    kv_head: usize,
    keys: &mut Keys<'_>,
) {
    let (e, base) = (x.shape.head_dim, visit.keys.start);
    let source = Source { view: &visit.view, kv_head, shape: x.shape };
    let new = visit.new..visit.keys.end;
    blocks::columns::<F, E>(level, keys.v_columns, x.v, &source, new.clone(), base);
    blocks::columns::<F, E>(level, keys.k_columns, x.k, &source, new.clone(), base);
    if !keys.k_rows.is_empty() {
        blocks::rows::<F, E>(level, keys.k_rows, x.k, &source, new.clone(), base);
    }
    if !keys.dk_sums.is_empty() {
        let floats = (new.start - base) * e..(new.end - base) * e;
        keys.dk_sums[floats.clone()].fill(0.0);
        keys.dv_sums[floats].fill(0.0);
    }
}

/// Writes the completed sums of the keys at these positions to dk and dv.
///
/// # Safety
///
/// No other thread may access these rows of dk and dv.
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
    softmax::scale_row(
        level,
        &mut keys.dk_sums[(positions.start - base) * e..(positions.end - base) * e],
        x.shape.scale(),
    );
    for position in positions {
        let (at, sums) = (source.at(position), (position - base) * e..(position - base + 1) * e);
        // SAFETY: guaranteed by the caller.
        let (dk, dv) = unsafe { (dk.slice(at..at + e), dv.slice(at..at + e)) };
        dk.copy_from_slice(&keys.dk_sums[sums.clone()]);
        dv.copy_from_slice(&keys.dv_sums[sums]);
    }
}

/// Accumulates the gradients of the visit's queries, one tile at a time.
///
/// # Safety
///
/// No other thread may access the rows of dq of the visit's queries, for this head.
unsafe fn visit_rows<E: Element, F: Element>(
    level: Level,
    x: &Inputs<'_, E>,
    visit: &Visit,
    kv_head: usize,
    keys: &mut Keys<'_>,
    workspace: &mut TileRows<'_>,
    dq: Option<Disjoint<'_>>,
) {
    let e = x.shape.head_dim;
    let layout = Layout::of::<F, F>(e);
    let scales = [x.shape.scale(); MAX_ROWS];
    let (mut lse, mut delta) = ([0.0; MAX_ROWS], [0.0; MAX_ROWS]);
    let visible = |token: usize| visit.visible(visit.queries.start + token);
    let queries = packed::rows(visit, kv_head, x.shape);
    let mut tile = Tile::empty();
    while tile.next(&queries, MAX_ROWS, visible) {
        let offsets = tile.offsets();
        rows::deltas(level, &mut delta, x.d_out, x.out, offsets, e);
        for (lse, at) in lse.iter_mut().zip(offsets) {
            *lse = x.lse[at / e];
        }
        // SAFETY: `workspace` is sized for the rows of a tile.
        unsafe { gather::<E, F>(level, x, offsets, workspace) };
        if let Some(dq) = dq {
            queries.prefetch(level, dq.as_mut_ptr(), tile.rows());
        }
        queries.prefetch(level, x.q.as_ptr(), tile.next_rows());
        queries.prefetch(level, x.d_out.as_ptr(), tile.next_rows());
        queries.prefetch(level, x.out.as_ptr(), tile.next_rows());
        let probs = workspace.probs.as_mut_ptr();
        let ds = probs.wrapping_add(STRIDE);
        let tile_keys = tile.keys();
        for start in tile_keys.clone().step_by(STEP) {
            let step = start..tile_keys.end.min(start + STEP);
            let q = |row: usize| workspace.q.as_ptr().wrapping_add(row * layout.row());
            let d_out = |row: usize| workspace.d_out.as_ptr().wrapping_add(row * layout.row());
            let of_step = |key: &usize| key.clamp(&step.start, &step.end) - step.start;
            let mut visible = [const { 0..0 }; MAX_ROWS];
            for (row, visible) in visible[..tile.len()].iter_mut().enumerate() {
                *visible = of_step(&tile.starts()[row])..of_step(&tile.limits()[row]);
            }
            let columns = |columns| Blocks::adjacent(columns, layout.columns());
            // SAFETY: rows and blocks are copies, made above and by `fill`; there is room for the scores.
            unsafe {
                let (k, v) = (columns(keys.k_columns), columns(keys.v_columns));
                tile.scores::<F, F>(level, layout, step.clone(), q, k, scales[0], probs, 2 * STRIDE);
                tile.scores::<F, F>(level, layout, step.clone(), d_out, v, 1.0, ds, 2 * STRIDE);
                let args = Backward {
                    rows: probs,
                    stride: STRIDE,
                    keys: step.len().next_multiple_of(BLOCK),
                    visible: &visible[..tile.len()],
                    lse: &lse[..tile.len()],
                    delta: &delta[..tile.len()],
                };
                softmax::softmax_backward::<F>(level, &args);
            }
            if let Some(dq) = dq {
                let out = |row: usize| dq.as_mut_ptr().wrapping_add(offsets[row]);
                let k = Blocks::adjacent(keys.k_rows, layout.rows());
                // SAFETY: the caller guarantees exclusive access to these rows of dq; the blocks are copies made by
                // `fill`.
                unsafe {
                    tile.weighted_sums::<F, F>(level, layout, step.clone(), ds, 2 * STRIDE, k, out, &scales);
                }
            }
            if !keys.dk_sums.is_empty() {
                let across = |across, along| if layout.group > 1 { across } else { along };
                let q = Blocks::adjacent(across(&*workspace.q_across, &*workspace.q), layout.rows());
                let d_out =
                    Blocks::adjacent(across(&*workspace.d_out_across, &*workspace.d_out), layout.rows());
                let ds = probs.wrapping_add(softmax::derivatives_across(layout.group, STRIDE));
                // SAFETY: the blocks and the weights are of this tile's rows.
                unsafe {
                    add_to_keys::<F>(level, layout, &tile, step.clone(), probs, d_out, keys.dv_sums);
                    add_to_keys::<F>(level, layout, &tile, step, ds, q, keys.dk_sums);
                }
            }
        }
    }
}

/// Copies the rows of a tile as words.
///
/// # Safety
///
/// `workspace` must have room for them.
unsafe fn gather<E: Element, F: Element>(
    level: Level,
    x: &Inputs<'_, E>,
    offsets: &[usize],
    workspace: &mut TileRows<'_>,
) {
    let e = x.shape.head_dim;
    let stride = Layout::of::<F, F>(e).row();
    // SAFETY: guaranteed by the caller.
    unsafe {
        rows::along::<F, E>(level, workspace.q, stride, x.q, offsets, e);
        rows::along::<F, f32>(level, workspace.d_out, stride, x.d_out, offsets, e);
        if !workspace.q_across.is_empty() {
            rows::across::<F, E>(level, workspace.q_across, x.q, offsets, e);
            rows::across::<F, f32>(level, workspace.d_out_across, x.d_out, offsets, e);
        }
    }
}

/// For each key j of `part`, `sums[j] += Σ_r weight[r][j] · row_r` over the rows of the tile that see it. The words
/// of row r's weights start at `2 · STRIDE · r`.
///
/// # Safety
///
/// `rows` must be blocks of the tile's rows; all of these, and the padding row that shares words with the last one,
/// must have weights (possibly zero) for all keys of the part.
unsafe fn add_to_keys<F: Element>(
    level: Level,
    layout: Layout,
    tile: &Tile,
    part: Range<usize>,
    weights: *const f32,
    rows: Blocks<'_>,
    sums: &mut [f32],
) {
    let e = layout.head_dim;
    let padded = tile.len().next_multiple_of(layout.group);
    let (mut visible_from, mut visible_to) = (0, 0);
    for first in (part.start.max(tile.starts()[0])..part.end).step_by(ROWS) {
        let keys = first..part.end.min(first + ROWS);
        while tile.limits()[visible_from] <= first {
            visible_from += 1;
        }
        let mut ends = [padded; ROWS];
        for (end, key) in ends.iter_mut().zip(keys.clone()) {
            while tile.starts().get(visible_to).is_some_and(|&start| start <= key) {
                visible_to += 1;
            }
            if visible_to < tile.len() {
                *end = visible_to;
            }
        }
        let sums = sums[..keys.end * e].as_mut_ptr();
        let args = Weighted {
            prefetch: None,
            out: tile::each_row(&keys, |key| sums.wrapping_add(key * e)),
            rows: keys.len(),
            weights: weights.wrapping_add(first - part.start),
            row_step: 1,
            word_step: layout.group * 2 * STRIDE,
            summands: rows,
            start: visible_from,
            ends: &ends,
            end: ends[keys.len() - 1],
            head_dim: e,
            columns: 0..e,
            from_zero: false,
            factors: None,
        };
        // SAFETY: the outputs are in `sums`; the rest is guaranteed by the caller.
        unsafe { kernels::add_weighted::<F, F>(level, &args) };
    }
}
