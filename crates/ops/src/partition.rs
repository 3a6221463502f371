//! Division of outputs into pieces that threads write concurrently.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::gemm::piece;
use crate::{Ctx, Element};

/// Calls `f(first, count, y)` for consecutive pieces of rows, where `y` holds `count` rows of `width` elements starting
/// at row `first`. The number of pieces depends on the thread count: `f` must process every row independently.
#[track_caller]
pub(crate) fn for_rows<E: Element>(
    ctx: &Ctx,
    y: &mut [E],
    width: usize,
    f: impl Fn(usize, usize, &mut [E]) + Sync,
) {
    for_rows2(ctx, y, width, &mut [0.0_f32; 0], 0, |first, count, y, _| f(first, count, y));
}

/// [`for_rows`] over two outputs with the same number of rows.
#[track_caller]
pub(crate) fn for_rows2<A: Element, B: Element>(
    ctx: &Ctx,
    a: &mut [A],
    width_a: usize,
    b: &mut [B],
    width_b: usize,
    f: impl Fn(usize, usize, &mut [A], &mut [B]) + Sync,
) {
    if a.is_empty() {
        return;
    }
    let rows = a.len() / width_a;
    assert_eq!(rows * width_a, a.len(), "the output is not a whole number of rows");
    assert_eq!(rows * width_b, b.len(), "both outputs must have the same rows");
    let step = rows_per_piece(ctx, rows, width_a + width_b);
    let (a, b) = (Disjoint::new(a), Disjoint::new(b));
    ctx.parallel_for(rows.div_ceil(step), |piece| {
        let first = piece * step;
        let count = step.min(rows - first);
        // SAFETY: pieces are disjoint ranges of rows, each visited once.
        let (a, b) = unsafe {
            (
                a.slice(first * width_a..(first + count) * width_a),
                b.slice(first * width_b..(first + count) * width_b),
            )
        };
        f(first, count, a, b);
    });
}

/// Floats below which a piece costs less than waking a thread for it.
const MIN_PIECE_FLOATS: usize = 8 * 1024;

/// Rows per piece: several pieces per thread, so that a delayed thread does not delay all, but large enough that
/// scheduling them costs less than their work.
pub(crate) fn rows_per_piece(ctx: &Ctx, rows: usize, width: usize) -> usize {
    let smallest = MIN_PIECE_FLOATS.div_ceil(width.max(1));
    if ctx.threads() == 1 { rows.max(1) } else { rows.div_ceil(4 * ctx.threads()).max(smallest).max(1) }
}

/// Minimum rows of a block.
const MIN_ROWS: usize = 32;
/// Blocks per thread, to balance threads of unequal speed.
const BLOCKS_PER_THREAD: usize = 4;

/// Calls `f(rows, units)` for blocks of an output that is `units` wide. A block has at most `max_rows` rows and, as
/// long as all threads have work, all units, since a block prepares its rows once; if units must be divided, a block
/// has `wide` of them, or fewer if there are few rows. Runs on the calling thread alone if the output is `small`.
#[track_caller]
pub(crate) fn for_blocks(
    ctx: &Ctx,
    small: bool,
    (rows, max_rows): (usize, usize),
    (units, wide): (usize, usize),
    f: impl Fn(Range<usize>, Range<usize>) + Sync,
) {
    let target = if small || ctx.threads() == 1 { 1 } else { BLOCKS_PER_THREAD * ctx.threads() };
    if rows == 0 || units == 0 {
        return;
    }
    let (mut across, mut down) = (1, rows.div_ceil(max_rows));
    while across * down < target && units >= 2 * across * wide {
        across *= 2;
    }
    while across * down < target && rows >= 2 * down * MIN_ROWS {
        down *= 2;
    }
    while across * down < target && units >= 2 * across {
        across *= 2;
    }
    // Neighbouring blocks share units, and with them the other operand.
    let run = |i: usize| f(piece(rows, down, i % down), piece(units, across, i / down));
    if small { (0..across * down).for_each(run) } else { ctx.parallel_for(across * down, run) }
}

/// Calls `f(first, count)` for pieces of `columns`, cut at multiples of 16. For sums over rows, where only the columns
/// may be divided.
#[track_caller]
pub(crate) fn for_columns(ctx: &Ctx, columns: usize, rows: usize, f: impl Fn(usize, usize) + Sync) {
    let smallest = MIN_PIECE_FLOATS.div_ceil(rows.max(1));
    let step = columns.div_ceil(ctx.threads()).max(smallest).next_multiple_of(16);
    ctx.parallel_for(columns.div_ceil(step), |piece| {
        let first = piece * step;
        f(first, step.min(columns - first));
    });
}
