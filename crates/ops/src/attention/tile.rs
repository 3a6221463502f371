//! A tile: a few rows of queries, whose scores against all of their keys fit into the cache.

use std::ops::Range;

use super::kernels::{self, BLOCK, ROWS, Scores, Weighted};
use crate::disjoint::Disjoint;
use crate::isa::Level;

/// The most rows of a tile.
pub(super) const MOST_ROWS: usize = 8 * ROWS;

/// Floats of keys (and of values) that a tile's rows go over before the next: a first-level cache, half filled.
const PASS_FLOATS: usize = 4 * 1024;

/// The query heads that share a kv head, for consecutive tokens: row r is head `r % group` of token `r / group`.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Where row 0 begins in tensors `[tokens, H, E]`.
    pub(super) first: usize,
    /// Floats from a token to the next.
    pub(super) token_stride: usize,
    /// Heads.
    pub(super) group: usize,
    /// E.
    pub(super) head_dim: usize,
    /// Tokens.
    pub(super) tokens: usize,
}

impl Rows {
    /// Where row `row` begins.
    pub(super) fn offset(&self, row: usize) -> usize {
        self.first + row / self.group * self.token_stride + row % self.group * self.head_dim
    }

    /// Consecutive tiles of at most `rows` rows.
    pub(super) fn tiles(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.tokens * self.group;
        (0..all).step_by(rows).map(move |first| first..all.min(first + rows))
    }
}

/// The number of rows of a tile whose scores for `keys` keys take about `floats` floats, and the floats from one row's
/// scores to the next row's.
pub(super) fn size(keys: usize, floats: usize) -> (usize, usize) {
    // An odd number of cache lines, so that the rows do not fall into the same sets of the cache.
    let stride = (keys.div_ceil(BLOCK) | 1) * BLOCK;
    ((floats / stride / ROWS * ROWS).clamp(ROWS, MOST_ROWS), stride)
}

/// Blocks in one pass over the keys.
fn pass_blocks(head_dim: usize) -> usize {
    (PASS_FLOATS / (BLOCK * head_dim)).max(4)
}

/// Rows of a tile that kernels take together: the first and the count, counted from the tile's first row.
fn groups(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(ROWS).map(move |first| (first, ROWS.min(rows - first)))
}

/// What `f` says of `count` rows from `first` on, in the form that kernels take; places beyond `count` are not used.
pub(super) fn each_row<T>(first: usize, count: usize, f: impl Fn(usize) -> T) -> [T; ROWS] {
    std::array::from_fn(|i| f(first + i.min(count - 1)))
}

/// Scores of `rows` rows of a tile. Row r has its query at `q(r)` and sees keys `0..limit(r)`; its scores go to
/// `out[r * stride..]`, whole blocks. Rows and limits are counted from the tile's first row.
///
/// # Safety
///
/// `q` must give queries, and `k` blocks of keys, of `head_dim`; the blocks must hold all keys below the limits.
pub(super) unsafe fn scores(
    level: Level,
    rows: usize,
    q: impl Fn(usize) -> *const f32,
    k: &[*const f32],
    head_dim: usize,
    scale: f32,
    limit: impl Fn(usize) -> usize,
    out: &mut [f32],
    stride: usize,
) {
    let blocks =
        |first: usize, count: usize| (first..first + count).map(&limit).max().unwrap_or(0).div_ceil(BLOCK);
    let pass = pass_blocks(head_dim);
    for start in (0..blocks(0, rows)).step_by(pass) {
        for (first, count) in groups(rows) {
            let end = blocks(first, count).min(start + pass);
            if start >= end {
                continue;
            }
            let out = &mut out[first * stride + start * BLOCK..(first + count - 1) * stride + end * BLOCK];
            let args = Scores {
                q: each_row(first, count, &q),
                rows: count,
                k: &k[start..end],
                head_dim,
                scale,
                out: out.as_mut_ptr(),
                stride,
            };
            // SAFETY: queries and blocks are there by the caller's word, and the outputs are `out`.
            unsafe { kernels::scores(level, &args) };
        }
    }
}

/// For row r of a tile, `out(r) = (Σ_j weights[r * stride + j] · summand_j) · factor(r)` over keys `0..limit(r)`.
///
/// # Safety
///
/// `out` must give places for E floats that nobody else reaches, and `summands` blocks `[16][E]` that hold all keys
/// below the limits.
pub(super) unsafe fn weighted_sums(
    level: Level,
    rows: usize,
    weights: &[f32],
    stride: usize,
    summands: &[*const f32],
    head_dim: usize,
    limit: impl Fn(usize) -> usize,
    out: impl Fn(usize) -> *mut f32,
    factor: impl Fn(usize) -> f32,
) {
    let most = (0..rows).map(&limit).max().unwrap_or(0);
    let pass = pass_blocks(head_dim) * BLOCK;
    for start in (0..most).step_by(pass) {
        for (first, count) in groups(rows) {
            let limits = (first..first + count).map(&limit);
            let (least, most) = limits.fold((usize::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
            let keys = start..most.min(start + pass);
            if keys.is_empty() {
                continue;
            }
            // Keys that all of the rows see go together; then each row has a few of its own.
            let shared = least.clamp(keys.start, keys.end);
            let mut args = Weighted {
                out: each_row(first, count, &out),
                rows: count,
                weights: weights[first * stride..(first + count - 1) * stride + keys.end].as_ptr(),
                row_step: stride,
                summand_step: 1,
                summands,
                range: keys.start..shared,
                head_dim,
                from_zero: start == 0,
            };
            // SAFETY: the weights are in the slice; outputs and summands are there by the caller's word.
            unsafe { kernels::add_weighted(level, &args) };
            args.from_zero = false;
            args.rows = 1;
            for row in first..first + count {
                args.range = shared..limit(row).min(keys.end);
                if !args.range.is_empty() {
                    args.out = each_row(row, 1, &out);
                    args.weights = weights[row * stride..].as_ptr();
                    // SAFETY: as above.
                    unsafe { kernels::add_weighted(level, &args) };
                }
            }
        }
    }
    for row in 0..rows {
        // SAFETY: the place is there, and reached by nobody else, by the caller's word.
        let out = unsafe { std::slice::from_raw_parts_mut(out(row), head_dim) };
        kernels::scale_row(level, out, factor(row));
    }
}

/// Where row `offset` of a shared tensor begins, for writing through a pointer.
pub(super) fn row_of(tensor: Disjoint<'_>, offset: usize) -> *mut f32 {
    tensor.as_mut_ptr().wrapping_add(offset)
}
