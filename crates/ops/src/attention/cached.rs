//! Attention over the cache: groups the rows of a step and divides them among the threads, by rows and kv heads. Where that
//! leaves threads without work, as for one long sequence on few kv heads, [`divided`] divides the keys too.

use std::ops::Range;

use super::forward::Workspace;
use super::tile::Rows;
use super::token::{self, Token};
use super::words::{Layout, widens};
use super::{AttentionShape, CachedRow, divided, forward};
use crate::cache::KvLayer;
use crate::disjoint::Disjoint;
use crate::{Ctx, Element, KV_BLOCK};

/// Maximum rows of one unit of work; more would only make the pieces uneven.
const MAX_ROWS: usize = forward::MAX_TOKENS;

/// Multiply-adds below which a piece costs less than waking a thread for it.
pub(super) const MIN_PIECE_FLOPS: usize = 128 * 1024;

/// Fixed cost of a row, expressed in keys.
const ROW_KEYS: usize = 32;

/// Consecutive rows that share cache blocks and have non-decreasing lengths: one row of a decoding sequence, or the
/// rows of a prefill chunk. With a window, lengths differ by less than [`MAX_ROWS`].
type Run = Range<usize>;

pub(super) fn forward<E: Element>(
    ctx: &Ctx,
    out: &mut [E],
    q: &[E],
    cache: &KvLayer<E>,
    rows: &[CachedRow<'_>],
) {
    let g = cache.shape.kv_heads;
    let runs = runs(cache.shape, rows);
    let pieces = pieces(ctx, cache.shape, &runs, rows);
    if pieces.len() < ctx.threads() && divided::pays_off::<E>(ctx, cache.shape, rows) {
        return divided::forward(ctx, out, q, cache, rows);
    }
    let keys = rows.iter().map(|row| row.len).max().map_or(0, |keys| forward::span(cache.shape, keys));
    let (out, widens) = (Disjoint::new(out), widens::<E>(ctx.level()));
    ctx.parallel_for(pieces.len(), |i| {
        ctx.with_scratch(forward::scratch_floats(keys, cache.shape.head_dim), |scratch| {
            let mut workspace = Workspace::new(scratch.as_mut_slice());
            for unit in pieces[i].clone() {
                let run = runs[unit / g].clone();
                // SAFETY: a unit is a pair of a run and a head, and belongs to one piece.
                unsafe {
                    if widens {
                        attend::<E, f32>(ctx, run, unit % g, rows, q, out, cache, &mut workspace);
                    } else {
                        attend::<E, E>(ctx, run, unit % g, rows, q, out, cache, &mut workspace);
                    }
                }
            }
        });
    });
}

/// Attention of one run and one kv head, with left operands of format `L`.
///
/// # Safety
///
/// `out` must hold the run's rows, no other thread may access this head of them, and the rows' blocks must be in the
/// cache.
unsafe fn attend<E: Element, L: Element>(
    ctx: &Ctx,
    run: Run,
    kv_head: usize,
    all: &[CachedRow<'_>],
    q: &[E],
    out: Disjoint<'_, E>,
    cache: &KvLayer<E>,
    workspace: &mut Workspace<'_>,
) {
    let shape = cache.shape;
    let (h, e, group) = (shape.heads, shape.head_dim, shape.group());
    let first = (run.start * h + kv_head * group) * e;
    if run.len() == 1 && e.is_multiple_of(E::GROUP) {
        let token = token::<E, L>(cache, all, run.start, kv_head);
        // SAFETY: the table has the row's blocks, all inside the cache; the output is guaranteed by the caller.
        return unsafe { token::attend::<E, L>(ctx.level(), &token, q, workspace.scratch, out, first) };
    }
    let last = &all[run.end - 1];
    let skip = skipped(shape, &all[run.start]);
    let table = &last.blocks[skip..last.len.div_ceil(KV_BLOCK)];
    let visible = |row: &CachedRow<'_>| visible(shape, row, skip);
    let (keys, (k, v)) = (visible(last).end, cache.head_blocks(kv_head, table));
    let rows = Rows { first, token_stride: h * e, group, head_dim: e, tokens: run.len() };
    let visible = |token: usize| visible(&all[run.start + token]);
    let keys = forward::span(shape, keys);
    // SAFETY: the table has the blocks of the run's last row, whose prefix is the longest, from the first one that a row
    // sees, all inside the cache; the outputs are guaranteed by the caller.
    unsafe {
        let (level, kv, scale) = (ctx.level(), (k, v), shape.scale());
        forward::attend::<E, L, E>(level, rows, q, out, kv, scale, keys, visible, workspace, None);
    }
}

/// Blocks before the row's window, which are skipped.
fn skipped(shape: AttentionShape, row: &CachedRow<'_>) -> usize {
    shape.first_key(row.len) / KV_BLOCK
}

/// Keys that the row sees, counted from the first one of block `skip`.
fn visible(shape: AttentionShape, row: &CachedRow<'_>, skip: usize) -> Range<usize> {
    shape.first_key(row.len) - skip * KV_BLOCK..row.len - skip * KV_BLOCK
}

/// Row `r` over the keys of one kv head, with queries of format `L`.
pub(super) fn token<'a, E: Element, L: Element>(
    cache: &'a KvLayer<E>,
    all: &'a [CachedRow<'_>],
    r: usize,
    kv_head: usize,
) -> Token<'a> {
    let (shape, row) = (cache.shape, &all[r]);
    let layout = Layout::of::<L, E>(shape.head_dim);
    let skip = skipped(shape, row);
    let table = &row.blocks[skip..row.len.div_ceil(KV_BLOCK)];
    let (k, v) = cache.head_blocks(kv_head, table);
    let next = if kv_head + 1 < shape.kv_heads {
        Some(cache.head_blocks(kv_head + 1, table).0)
    } else {
        let after = all.get(r + 1).map(|after| &after.blocks[skipped(shape, after)..]);
        after.filter(|after| after.len() >= table.len()).map(|after| cache.head_blocks(0, after).0)
    };
    let Range { start: first, end: keys } = visible(shape, row, skip);
    Token { group: shape.group(), layout, first, keys, k, v, scale: shape.scale(), next }
}

fn runs(shape: AttentionShape, rows: &[CachedRow<'_>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (r, row) in rows.iter().enumerate() {
        if let Some(run) = runs.last_mut() {
            let last = &rows[r - 1];
            let shared = last.len.div_ceil(KV_BLOCK);
            let is_near = shape.window.is_none() || row.len < rows[run.start].len + MAX_ROWS;
            if run.len() < MAX_ROWS
                && is_near
                && row.len >= last.len
                && row.blocks[..shared] == last.blocks[..shared]
            {
                run.end = r + 1;
                continue;
            }
        }
        runs.push(r..r + 1);
    }
    runs
}

/// Ranges of units (unit u is kv head `u % G` of run `u / G`) of about equal work, a few per thread.
fn pieces(ctx: &Ctx, shape: AttentionShape, runs: &[Run], rows: &[CachedRow<'_>]) -> Vec<Range<usize>> {
    let cost = |run: &Run| {
        let last = rows[run.end - 1].len;
        let keys = last - shape.first_key(last);
        2 * run.len() * shape.group() * shape.head_dim * (keys + ROW_KEYS)
    };
    let total = runs.iter().map(cost).sum::<usize>() * shape.kv_heads;
    let target =
        if ctx.threads() == 1 { usize::MAX } else { (total / (4 * ctx.threads())).max(MIN_PIECE_FLOPS) };
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
