//! A tile: a few rows of queries, whose scores against all of their keys fit into the cache.

use std::ops::Range;

use super::kernels::{self, BLOCK, ROWS, Scores, Weighted};
use crate::Element;
use crate::isa::Level;

/// The most rows of a tile.
pub(super) const MOST_ROWS: usize = 8 * ROWS;

/// Floats of keys (and of values) that a tile's rows go over before the next: a first-level cache, half
/// filled.
const PASS_FLOATS: usize = 4 * 1024;

/// The query heads that share a kv head, for consecutive tokens: row r is head `r % group` of token `r /
/// group`.
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

/// Some consecutive rows.
pub(super) struct Tile {
    /// Which rows.
    pub(super) rows: Range<usize>,
    /// The token of each row.
    pub(super) token: [usize; MOST_ROWS],
    /// The head of each row, within the group.
    pub(super) head: [usize; MOST_ROWS],
    /// Where each row begins in tensors `[tokens, H, E]`.
    pub(super) offset: [usize; MOST_ROWS],
    /// How many keys each row sees; never descends.
    pub(super) limit: [usize; MOST_ROWS],
    /// The largest limit, the last row's.
    pub(super) keys: usize,
    head_dim: usize,
}

impl Rows {
    /// Consecutive tiles of at most `size` rows; token t sees keys `0..limit(t)`, at least one, and limits
    /// never descend.
    pub(super) fn tiles(&self, size: usize, limit: impl Fn(usize) -> usize) -> impl Iterator<Item = Tile> {
        let (all, rows) = (self.tokens * self.group, *self);
        debug_assert!((1..self.tokens).all(|t| limit(t - 1) <= limit(t)), "limits descend");
        (0..all).step_by(size).map(move |first| rows.tile(first..all.min(first + size), &limit))
    }

    fn tile(&self, rows: Range<usize>, limit: impl Fn(usize) -> usize) -> Tile {
        let (mut token, mut head) = (rows.start / self.group, rows.start % self.group);
        let zero = [0; MOST_ROWS];
        let mut tile = Tile {
            rows,
            token: zero,
            head: zero,
            offset: zero,
            limit: zero,
            keys: 0,
            head_dim: self.head_dim,
        };
        for row in 0..tile.len() {
            tile.token[row] = token;
            tile.head[row] = head;
            tile.offset[row] = self.first + token * self.token_stride + head * self.head_dim;
            tile.limit[row] = limit(token);
            tile.keys = tile.limit[row];
            head += 1;
            if head == self.group {
                (token, head) = (token + 1, 0);
            }
        }
        tile
    }
}

impl Tile {
    /// How many rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Rows that kernels take together.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.len();
        (0..all).step_by(ROWS).map(move |first| first..all.min(first + ROWS))
    }

    /// Scores of the rows for the keys of `window`, which begins with a block: row r has its query at `q(r)`,
    /// its scores go to `out[r * stride..]`, whole blocks, the window's first key first.
    ///
    /// # Safety
    ///
    /// `q` must give queries of E floats, and `k` blocks `[E][16]` that hold all keys below the limits.
    pub(super) unsafe fn scores<E: Element>(
        &self,
        level: Level,
        window: Range<usize>,
        q: impl Fn(usize) -> *const f32,
        k: &[*const E],
        scale: f32,
        out: &mut [f32],
        stride: usize,
    ) {
        let pass = pass_blocks(self.head_dim);
        let first = window.start / BLOCK;
        for start in (first..self.keys.min(window.end).div_ceil(BLOCK)).step_by(pass) {
            for rows in self.groups() {
                let last = self.limit[rows.end - 1].min(window.end).div_ceil(BLOCK);
                let blocks = start..last.min(start + pass);
                if blocks.is_empty() {
                    continue;
                }
                let out = &mut out[rows.start * stride + (blocks.start - first) * BLOCK
                    ..(rows.end - 1) * stride + (blocks.end - first) * BLOCK];
                let args = Scores {
                    q: each_row(&rows, &q),
                    rows: rows.len(),
                    k: &k[blocks],
                    head_dim: self.head_dim,
                    scale,
                    out: out.as_mut_ptr(),
                    stride,
                };
                // SAFETY: queries and blocks are there by the caller's word, and the outputs are `out`.
                unsafe { kernels::scores(level, &args) };
            }
        }
    }

    /// `out(r) = (Σ_j weight[r][j] · summand_j) · factor[r]` over keys `0..limit[r]`, in one call for each of
    /// a series of windows, each of which begins with a block and has its weights at `weights[r * stride..]`.
    ///
    /// # Safety
    ///
    /// `out` must give places for E floats that nobody else reaches, and `summands` blocks `[16][E]` that
    /// hold all keys below the limits.
    pub(super) unsafe fn weighted_sums<E: Element>(
        &self,
        level: Level,
        window: Range<usize>,
        weights: &[f32],
        stride: usize,
        summands: &[*const E],
        out: impl Fn(usize) -> *mut f32,
        factor: &[f32],
    ) {
        let pass = pass_blocks(self.head_dim) * BLOCK;
        for start in window.clone().step_by(pass) {
            for rows in self.groups() {
                let most = self.limit[rows.end - 1];
                let end = most.min(start + pass).min(window.end);
                if start >= end {
                    continue;
                }
                let weights = &weights[rows.start * stride..(rows.end - 1) * stride + end - window.start];
                let args = Weighted {
                    out: each_row(&rows, &out),
                    rows: rows.len(),
                    // Counted from key 0, before the window.
                    weights: weights.as_ptr().wrapping_sub(window.start),
                    row_step: stride,
                    summand_step: 1,
                    summands,
                    start,
                    ends: each_row(&rows, |row| self.limit[row].min(end)),
                    head_dim: self.head_dim,
                    from_zero: start == 0,
                    factors: (end == most).then(|| each_row(&rows, |row| factor[row])),
                };
                // SAFETY: the weights are in the slice; outputs and summands are there by the caller's word.
                unsafe { kernels::add_weighted(level, &args) };
            }
        }
    }
}

/// The number of rows of a tile whose scores for `keys` keys take about `floats` floats, and the floats from
/// one row's scores to the next row's.
pub(super) fn size(keys: usize, floats: usize) -> (usize, usize) {
    // An odd number of cache lines, so that the rows do not fall into the same sets of the cache.
    let stride = (keys.div_ceil(BLOCK) | 1) * BLOCK;
    ((floats / stride / ROWS * ROWS).clamp(ROWS, MOST_ROWS), stride)
}

/// Blocks in one pass over the keys.
fn pass_blocks(head_dim: usize) -> usize {
    (PASS_FLOATS / (BLOCK * head_dim)).max(4)
}

/// What `f` says of each of these rows, in the form that kernels take; places beyond them repeat the last.
pub(super) fn each_row<T: Copy>(rows: &Range<usize>, f: impl Fn(usize) -> T) -> [T; ROWS] {
    let mut all = [f(rows.end - 1); ROWS];
    for (place, row) in all.iter_mut().zip(rows.clone()) {
        *place = f(row);
    }
    all
}
