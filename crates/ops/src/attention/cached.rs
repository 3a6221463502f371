//! Attention against the cache: how the rows of a step are gathered and shared out. The threads share rows
//! and kv heads; the keys of a row are never divided, so one long row on few kv heads keeps few threads busy.

use std::ops::Range;

use super::forward::Space;
use super::kernels::ROWS;
use super::tile::Rows;
use super::token::{self, Token};
use super::words::Layout;
use super::{AttentionShape, CachedRow, forward};
use crate::cache::KvLayer;
use crate::disjoint::Disjoint;
use crate::{Ctx, Element, KV_BLOCK};

/// The most rows of one unit of work: more would only make the pieces uneven.
const MOST_ROWS: usize = 64;

/// Below this many multiply-adds a piece costs less than waking a thread for it.
const SMALLEST_PIECE: usize = 128 * 1024;

/// What a row costs whatever its length, in keys.
const ROW_KEYS: usize = 32;

/// Consecutive rows whose keys lie in the same blocks, no row with fewer than the one before: one row of a
/// decoding sequence, or the rows of a prefill chunk.
type Run = Range<usize>;

pub(super) fn forward<E: Element>(
    ctx: &Ctx,
    out: &mut [E],
    q: &[E],
    cache: &KvLayer<E>,
    rows: &[CachedRow<'_>],
) {
    let g = cache.shape.kv_heads;
    let runs = runs(rows);
    let pieces = pieces(ctx, cache.shape, &runs, rows);
    let keys = rows.iter().map(|row| row.len).max().unwrap_or(0);
    let out = Disjoint::new(out);
    ctx.parallel_for(pieces.len(), |i| {
        ctx.with_scratch(forward::scratch_floats(keys, cache.shape.head_dim), |scratch| {
            let mut space = Space::new(scratch.as_mut_slice());
            for unit in pieces[i].clone() {
                let run = runs[unit / g].clone();
                // SAFETY: units are pairs of a run and a head, each in one piece.
                unsafe { attend(ctx, run, unit % g, rows, q, out, cache, &mut space) };
            }
        });
    });
}

/// One run and one kv head.
///
/// # Safety
///
/// Nobody else may reach this head of the run's rows in `out`, which must hold them; the rows' blocks must be
/// in the cache.
unsafe fn attend<E: Element>(
    ctx: &Ctx,
    run: Run,
    kv_head: usize,
    all: &[CachedRow<'_>],
    q: &[E],
    out: Disjoint<'_, E>,
    cache: &KvLayer<E>,
    space: &mut Space<'_>,
) {
    let shape = cache.shape;
    let (h, e, group) = (shape.heads, shape.head_dim, shape.group());
    let last = &all[run.end - 1];
    let table = &last.blocks[..last.len.div_ceil(KV_BLOCK)];
    let first = (run.start * h + kv_head * group) * e;
    let (k, v) = cache.head_blocks(kv_head, table);
    // Queries are words in place where none begins within one; more heads than a kernel takes are better off in a tile,
    // which comes back to keys while they are near.
    if run.len() == 1 && group <= ROWS && e.is_multiple_of(E::GROUP) {
        let q = q[first..first + group * e].as_ptr().cast();
        let (layout, scale) = (Layout::of::<E>(e), shape.scale());
        let next = if kv_head + 1 < shape.kv_heads {
            Some(cache.head_blocks(kv_head + 1, table).0)
        } else {
            let after = all.get(run.end).filter(|after| after.blocks.len() >= table.len());
            after.map(|after| cache.head_blocks(0, after.blocks).0)
        };
        let token = Token { q, group, layout, keys: last.len, k, v, scale, next };
        // SAFETY: the table has the row's blocks, all inside of the cache; the output is the caller's word.
        return unsafe { token::attend(ctx.level(), &token, space.scratch, out, first) };
    }
    let rows = Rows { first, token_stride: h * e, group, head_dim: e, tokens: run.len() };
    let limit = |token: usize| all[run.start + token].len;
    // SAFETY: the table has the run's last row's blocks, which has the longest prefix, all inside of the cache; the
    // outputs are the caller's word.
    unsafe {
        forward::attend(ctx.level(), rows, q, out, (k, v), shape.scale(), last.len, limit, space, None);
    }
}

fn runs(rows: &[CachedRow<'_>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (r, row) in rows.iter().enumerate() {
        if let Some(run) = runs.last_mut() {
            let last = &rows[r - 1];
            let shared = last.len.div_ceil(KV_BLOCK);
            if run.len() < MOST_ROWS && row.len >= last.len && row.blocks[..shared] == last.blocks[..shared] {
                run.end = r + 1;
                continue;
            }
        }
        runs.push(r..r + 1);
    }
    runs
}

/// Ranges of units (unit u is kv head `u % G` of run `u / G`) of about equal work, a few for each thread.
fn pieces(ctx: &Ctx, shape: AttentionShape, runs: &[Run], rows: &[CachedRow<'_>]) -> Vec<Range<usize>> {
    let cost =
        |run: &Run| 2 * run.len() * shape.group() * shape.head_dim * (rows[run.end - 1].len + ROW_KEYS);
    let total = runs.iter().map(cost).sum::<usize>() * shape.kv_heads;
    let target =
        if ctx.threads() == 1 { usize::MAX } else { (total / (4 * ctx.threads())).max(SMALLEST_PIECE) };
    let mut pieces = Vec::new();
    let (mut first, mut sum) = (0, 0);
    for (r, run) in runs.iter().enumerate() {
        for head in 0..shape.kv_heads {
            sum += cost(run);
            if sum >= target {
                let end = r * shape.kv_heads + head + 1;
                pieces.push(first..end);
                (first, sum) = (end, 0);
            }
        }
    }
    let units = runs.len() * shape.kv_heads;
    if first < units {
        pieces.push(first..units);
    }
    pieces
}
