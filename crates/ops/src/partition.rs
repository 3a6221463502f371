//! Cutting outputs into pieces that threads write at the same time.

use crate::disjoint::Disjoint;
use crate::{Ctx, Element};

/// Calls `f(first, count, y)` for consecutive pieces of rows, where `y` holds `count` rows of `width` elements
/// from row `first` on. How many pieces there are depends on the thread count: `f` must treat every row on
/// its own.
pub(crate) fn for_rows<E: Element>(
    ctx: &Ctx,
    y: &mut [E],
    width: usize,
    f: impl Fn(usize, usize, &mut [E]) + Sync,
) {
    for_rows2(ctx, y, width, &mut [0.0_f32; 0], 0, |first, count, y, _| f(first, count, y));
}

/// [`for_rows`] over two outputs that have the same rows.
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

/// Below this many floats a piece costs less than waking a thread for it.
const SMALLEST_PIECE: usize = 8 * 1024;

/// Rows in a piece: several pieces for each thread, so that one that is held up does not hold up all, but not
/// so small that handing them out costs more than they do.
pub(crate) fn rows_per_piece(ctx: &Ctx, rows: usize, width: usize) -> usize {
    let smallest = SMALLEST_PIECE.div_ceil(width.max(1));
    if ctx.threads() == 1 { rows.max(1) } else { rows.div_ceil(4 * ctx.threads()).max(smallest).max(1) }
}

/// Calls `f(first, count)` for pieces of `columns`, cut at multiples of 16. For sums over rows, where
/// parallelism may only be over the columns.
pub(crate) fn for_columns(ctx: &Ctx, columns: usize, rows: usize, f: impl Fn(usize, usize) + Sync) {
    let smallest = SMALLEST_PIECE.div_ceil(rows.max(1));
    let step = columns.div_ceil(ctx.threads()).max(smallest).next_multiple_of(16);
    ctx.parallel_for(columns.div_ceil(step), |piece| {
        let first = piece * step;
        f(first, step.min(columns - first));
    });
}
