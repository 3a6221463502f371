//! Backward attention. Probabilities are computed again from the queries, the keys and the log-sum-exp, a
//! tile of rows at a time:
//!
//! - `p = exp(s − lse)` and `ds = p · (d_out · v − delta)`, with `delta = d_out · out` in 16 lanes;
//! - `dq = (Σ_j ds_j k_j) · scale` over keys;
//! - `dk = (Σ_i ds_i q_i) · scale` and `dv = Σ_i p_i d_out_i` over queries.
//!
//! Each element of a sum is one chain, ascending by token, the heads of a group in order within a token. The chain of
//! a key that several segments see runs through the tokens of all of them.
//!
//! In bf16 `d_out` is rounded for its products (not in `delta`), `p` and `ds` for the sums. Pairs are of numbers along E,
//! of keys by position, and of rows of queries: row n of a segment is head `n mod H/G` of its token `n / (H/G)`, and
//! rows 2i and 2i + 1 go together, however the queries are cut. A row without a partner has zeros beside it.

use std::ops::Range;

use super::blocks::{Blocks, Source};
use super::kernels::{self, ROWS, Weighted};
use super::pieces::{Piece, Visit};
use super::softmax::{self, Backward};
use super::tile::{self, MOST_ROWS, Tile};
use super::words::{BLOCK, Layout};
use super::{AttentionShape, blocks, packed, rows};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::isa::Level;
use crate::simd::LANES;

/// Keys that a tile's rows meet at a time. Unlike the forward, nothing needs all of a row's scores at once.
const WINDOW: usize = 16 * BLOCK;

/// Floats from one row's probabilities to its derivatives, and on to the next row's probabilities: see [`tile::size`].
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
pub(super) fn scratch_floats<E: Element>(
    piece: &Piece,
    shape: AttentionShape,
    gradients: Gradients<'_>,
) -> usize {
    Sizes::new(Layout::of::<E>(shape.head_dim), piece.keys(), gradients).total()
}

/// Floats of the parts of the scratch memory.
struct Sizes {
    columns: usize,
    rows: usize,
    sums: usize,
    /// Rows of the tile whose neighbours in a row share words, with some room behind.
    along: usize,
    /// Rows of the tile whose neighbouring rows share words, where these are others.
    across: usize,
}

impl Sizes {
    fn new(layout: Layout, keys: usize, gradients: Gradients<'_>) -> Self {
        let (blocks, sums) = (keys.div_ceil(BLOCK), gradients.dk_dv.is_some());
        Self {
            columns: blocks * layout.columns(),
            rows: if gradients.dq.is_some() { blocks * layout.rows() } else { 0 },
            sums: if sums { blocks * BLOCK * layout.head_dim } else { 0 },
            along: MOST_ROWS * layout.row() + LANES,
            across: if sums && layout.group > 1 { MOST_ROWS / BLOCK * layout.rows() } else { 0 },
        }
    }

    fn total(&self) -> usize {
        2 * (self.columns + self.sums + MOST_ROWS * STRIDE + self.along + self.across) + self.rows
    }
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
    /// Scores and what comes of them, `[MOST_ROWS][2][STRIDE]`: see [`Backward`].
    probs: &'a mut [f32],
    q: &'a mut [f32],
    d_out: &'a mut [f32],
    /// Empty where they would be as above, or are not needed.
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
        probs: take(2 * MOST_ROWS * STRIDE),
        q: take(sizes.along),
        d_out: take(sizes.along),
        q_across: take(sizes.across),
        d_out_across: take(sizes.across),
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
    let sizes = Sizes::new(Layout::of::<E>(x.shape.head_dim), piece.keys(), gradients);
    let (mut keys, mut rows) = divide(scratch, &sizes);
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
    blocks::columns(level, keys.v_columns, x.v, &source, new.clone(), base);
    blocks::columns(level, keys.k_columns, x.k, &source, new.clone(), base);
    if !keys.k_rows.is_empty() {
        blocks::rows(level, keys.k_rows, x.k, &source, new.clone(), base);
    }
    if !keys.dk_sums.is_empty() {
        let floats = (new.start - base) * e..(new.end - base) * e;
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
    softmax::scale_row(
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
    let e = x.shape.head_dim;
    let layout = Layout::of::<E>(e);
    let scales = [x.shape.scale(); MOST_ROWS];
    let (mut lse, mut delta) = ([0.0; MOST_ROWS], [0.0; MOST_ROWS]);
    let limit = |token: usize| visit.limit(visit.queries.start + token);
    let queries = packed::rows(visit, kv_head, x.shape);
    let mut tile = Tile::empty();
    while tile.next(&queries, MOST_ROWS, limit) {
        let offsets = tile.offsets();
        rows::deltas(level, &mut delta, x.d_out, x.out, offsets, e);
        for (lse, at) in lse.iter_mut().zip(offsets) {
            *lse = x.lse[at / e];
        }
        // SAFETY: there is space for the rows of a tile.
        unsafe { gather(level, x, offsets, space) };
        if let Some(dq) = dq {
            queries.prefetch(level, dq.as_mut_ptr(), tile.here());
        }
        queries.prefetch(level, x.q.as_ptr(), tile.behind());
        queries.prefetch(level, x.d_out.as_ptr(), tile.behind());
        queries.prefetch(level, x.out.as_ptr(), tile.behind());
        let probs = space.probs.as_mut_ptr();
        let ds = probs.wrapping_add(STRIDE);
        for start in (0..tile.keys()).step_by(WINDOW) {
            let window = start..tile.keys().min(start + WINDOW);
            let q = |row: usize| space.q.as_ptr().wrapping_add(row * layout.row());
            let d_out = |row: usize| space.d_out.as_ptr().wrapping_add(row * layout.row());
            let mut seen = [0; MOST_ROWS];
            for (seen, limit) in seen.iter_mut().zip(tile.limits()) {
                *seen = limit.clamp(&window.start, &window.end) - window.start;
            }
            let columns = |columns| Blocks::adjacent(columns, layout.columns());
            // SAFETY: rows and blocks are copies, made above and by `fill`; the scores have room.
            unsafe {
                let (k, v) = (columns(keys.k_columns), columns(keys.v_columns));
                tile.scores::<E>(level, layout, window.clone(), q, k, scales[0], probs, 2 * STRIDE);
                tile.scores::<E>(level, layout, window.clone(), d_out, v, 1.0, ds, 2 * STRIDE);
                let args = Backward {
                    rows: probs,
                    stride: STRIDE,
                    keys: window.len().next_multiple_of(BLOCK),
                    seen: &seen[..tile.len()],
                    lse: &lse[..tile.len()],
                    delta: &delta[..tile.len()],
                };
                softmax::softmax_backward::<E>(level, &args);
            }
            if let Some(dq) = dq {
                let out = |row: usize| dq.as_mut_ptr().wrapping_add(offsets[row]);
                let k = Blocks::adjacent(keys.k_rows, layout.rows());
                // SAFETY: these rows of dq are ours alone by the caller's word; the blocks are copies made
                // by `fill`.
                unsafe {
                    tile.weighted_sums::<E>(level, layout, window.clone(), ds, 2 * STRIDE, k, out, &scales);
                }
            }
            if !keys.dk_sums.is_empty() {
                let across = |across, along| if layout.group > 1 { across } else { along };
                let q = Blocks::adjacent(across(&*space.q_across, &*space.q), layout.rows());
                let d_out = Blocks::adjacent(across(&*space.d_out_across, &*space.d_out), layout.rows());
                let ds = probs.wrapping_add(softmax::derivatives_across(layout.group, STRIDE));
                // SAFETY: the blocks are of this tile's rows, and so are the weights.
                unsafe {
                    add_to_keys::<E>(level, layout, &tile, window.clone(), probs, d_out, keys.dv_sums);
                    add_to_keys::<E>(level, layout, &tile, window, ds, q, keys.dk_sums);
                }
            }
        }
    }
}

/// Copies the rows of a tile as words.
///
/// # Safety
///
/// There must be space for them.
unsafe fn gather<E: Element>(level: Level, x: &Inputs<'_, E>, offsets: &[usize], space: &mut TileRows<'_>) {
    let e = x.shape.head_dim;
    // SAFETY: the caller's word.
    unsafe {
        rows::along::<E, E>(level, space.q, x.q, offsets, e);
        rows::along::<E, f32>(level, space.d_out, x.d_out, offsets, e);
        if !space.q_across.is_empty() {
            rows::across::<E, E>(level, space.q_across, x.q, offsets, e);
            rows::across::<E, f32>(level, space.d_out_across, x.d_out, offsets, e);
        }
    }
}

/// For each key j of the window, `sums[j] += Σ_r weight[r][j] · row_r` over the rows of the tile that see it: the words
/// of row r's weights lie at `2 · STRIDE · r`.
///
/// # Safety
///
/// `rows` must be blocks of the rows of the tile; all of these, and what shares words with the last one, have weights,
/// if zero, for all keys of the window.
unsafe fn add_to_keys<E: Element>(
    level: Level,
    layout: Layout,
    tile: &Tile,
    window: Range<usize>,
    weights: *const f32,
    rows: Blocks<'_>,
    sums: &mut [f32],
) {
    let e = layout.head_dim;
    let end = tile.len().next_multiple_of(layout.group);
    let (ends, mut seen_from) = ([end; ROWS], 0);
    for first in window.clone().step_by(ROWS) {
        let keys = first..window.end.min(first + ROWS);
        while tile.limits()[seen_from] <= first {
            seen_from += 1;
        }
        let sums = sums[..keys.end * e].as_mut_ptr();
        let args = Weighted {
            ahead: None,
            out: tile::each_row(&keys, |key| sums.wrapping_add(key * e)),
            rows: keys.len(),
            weights: weights.wrapping_add(first - window.start),
            row_step: 1,
            word_step: layout.group * 2 * STRIDE,
            summands: rows,
            start: seen_from,
            ends: &ends,
            end,
            head_dim: e,
            from_zero: false,
            factors: None,
        };
        // SAFETY: the sums are `sums`; the rest is the caller's word.
        unsafe { kernels::add_weighted::<E>(level, &args) };
    }
}
