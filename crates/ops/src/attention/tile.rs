//! A tile: a few rows of queries, whose scores against all of their keys fit into the cache.

use std::ops::Range;

use super::blocks::Blocks;
use super::kernels::{self, ROWS, Scores, Weighted};
use super::words::{BLOCK, Layout};
use crate::Element;
use crate::isa::Level;

/// The most rows of a tile.
pub(super) const MOST_ROWS: usize = 8 * ROWS;

/// Words of keys (and of values) that a tile's rows go over before the next: a first-level cache, half
/// filled.
const PASS_WORDS: usize = 4 * 1024;

/// The query heads that share a kv head, for consecutive tokens: row r is head `r % group` of token `r /
/// group`.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Where row 0 begins in tensors `[tokens, H, E]`.
    pub(super) first: usize,
    /// Numbers from a token to the next.
    pub(super) token_stride: usize,
    /// Heads.
    pub(super) group: usize,
    /// E.
    pub(super) head_dim: usize,
    /// Tokens.
    pub(super) tokens: usize,
}

impl Rows {
    /// How many rows.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.tokens * self.group
    }

    /// Asks for these rows, and those of the same tokens, in a tensor whose numbers begin at `x`: rows lie far apart, and
    /// what will be needed soon is on its way while the processor is busy with the scores.
    pub(super) fn prefetch<E: Element>(&self, level: Level, x: *const E, rows: Range<usize>) {
        let tokens = rows.start / self.group..self.tokens.min(rows.end.div_ceil(self.group));
        let first = x.wrapping_add(self.first + tokens.start * self.token_stride);
        super::rows::prefetch(level, first, self.token_stride, tokens.len(), self.group * self.head_dim);
    }
}

/// Some consecutive rows.
pub(super) struct Tile {
    /// Which rows.
    rows: Range<usize>,
    offset: [usize; MOST_ROWS],
    limit: [usize; MOST_ROWS],
}

impl Tile {
    /// A tile without rows.
    pub(super) fn empty() -> Self {
        Self { rows: 0..0, offset: [0; MOST_ROWS], limit: [0; MOST_ROWS] }
    }

    /// Goes back to before the first row.
    #[inline]
    pub(super) fn restart(&mut self) {
        self.rows = 0..0;
    }

    /// Goes on to the next rows, at most `size`, if there are any; token t sees keys `0..limit(t)`, at least one, and
    /// limits never descend.
    pub(super) fn next(&mut self, rows: &Rows, size: usize, limit: impl Fn(usize) -> usize) -> bool {
        self.rows = self.rows.end..rows.len().min(self.rows.end + size);
        let (mut token, mut head) = (self.rows.start / rows.group, self.rows.start % rows.group);
        for row in 0..self.len() {
            self.offset[row] = rows.first + token * rows.token_stride + head * rows.head_dim;
            self.limit[row] = limit(token);
            debug_assert!(row == 0 || self.limit[row - 1] <= self.limit[row], "limits descend");
            head += 1;
            if head == rows.group {
                (token, head) = (token + 1, 0);
            }
        }
        !self.rows.is_empty()
    }

    /// How many rows.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Which rows.
    #[inline]
    pub(super) fn here(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Which rows the next tile may be of, as far as there are any.
    #[inline]
    pub(super) fn behind(&self) -> Range<usize> {
        self.rows.end..self.rows.end + self.len()
    }

    /// Where each row begins in tensors `[tokens, H, E]`.
    #[inline]
    pub(super) fn offsets(&self) -> &[usize] {
        &self.offset[..self.rows.len()]
    }

    /// How many keys each row sees; never descends.
    #[inline]
    pub(super) fn limits(&self) -> &[usize] {
        &self.limit[..self.rows.len()]
    }

    /// The largest limit, the last row's.
    #[inline]
    pub(super) fn keys(&self) -> usize {
        self.limit[self.len() - 1]
    }

    /// Rows that kernels take together.
    #[inline]
    fn groups(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.len();
        (0..all).step_by(ROWS).map(move |first| first..all.min(first + ROWS))
    }

    /// Blocks in one pass over the keys: all of them where there is nothing to come back for.
    #[inline]
    fn pass_blocks(&self, words: usize) -> usize {
        if self.len() <= ROWS { usize::MAX / BLOCK } else { (PASS_WORDS / words).max(4) }
    }

    /// Scores of the rows for the keys of `window`, which begins with a block: row r has its query at `q(r)`,
    /// its scores go to `out[r * stride..]`, whole blocks, the window's first key first.
    ///
    /// # Safety
    ///
    /// `q` must give rows of words, and `k` blocks of columns that hold all keys below the limits; `out` must have
    /// the scores' places, and nobody else reach them.
    pub(super) unsafe fn scores<E: Element>(
        &self,
        level: Level,
        layout: Layout,
        window: Range<usize>,
        q: impl Fn(usize) -> *const f32,
        k: Blocks<'_>,
        scale: f32,
        out: *mut f32,
        stride: usize,
    ) {
        let pass = self.pass_blocks(layout.columns());
        let first = window.start / BLOCK;
        for start in (first..self.keys().min(window.end).div_ceil(BLOCK)).step_by(pass) {
            for rows in self.groups() {
                let last = self.limit[rows.end - 1].min(window.end).div_ceil(BLOCK);
                let end = last.min(start.saturating_add(pass));
                if start >= end {
                    continue;
                }
                let args = Scores {
                    ahead: None,
                    q: each_row(&rows, &q),
                    rows: rows.len(),
                    k,
                    blocks: (start, end),
                    words: layout.row(),
                    scale,
                    out: out.wrapping_add(rows.start * stride + (start - first) * BLOCK),
                    stride,
                };
                // SAFETY: queries, blocks and outputs are there by the caller's word.
                unsafe { kernels::scores::<E>(level, &args) };
            }
        }
    }

    /// `out(r) = (Σ_j weight[r][j] · summand_j) · factor[r]` over keys `0..limit[r]`, in one call for each of
    /// a series of windows, each of which begins with a block and has its weights, a row of words, at
    /// `weights[r * stride..]`.
    ///
    /// # Safety
    ///
    /// `out` must give places for E floats that nobody else reaches, and `summands` blocks of rows that
    /// hold all keys below the limits; the weights must be there.
    pub(super) unsafe fn weighted_sums<E: Element>(
        &self,
        level: Level,
        layout: Layout,
        window: Range<usize>,
        weights: *const f32,
        stride: usize,
        summands: Blocks<'_>,
        out: impl Fn(usize) -> *mut f32,
        factor: &[f32],
    ) {
        let pass = self.pass_blocks(layout.rows()) * BLOCK;
        for start in window.clone().step_by(pass) {
            for rows in self.groups() {
                let most = self.limit[rows.end - 1];
                let end = most.min(start.saturating_add(pass)).min(window.end);
                if start >= end {
                    continue;
                }
                let args = Weighted {
                    ahead: None,
                    out: each_row(&rows, &out),
                    rows: rows.len(),
                    // Counted from key 0, before the window.
                    weights: weights
                        .wrapping_add(rows.start * stride)
                        .wrapping_sub(window.start / layout.group),
                    row_step: stride,
                    word_step: 1,
                    summands,
                    start,
                    ends: &self.limit[rows.clone()],
                    end,
                    head_dim: layout.head_dim,
                    from_zero: start == 0,
                    factors: (end == most).then(|| &factor[rows.clone()]),
                };
                // SAFETY: weights, outputs and summands are there by the caller's word.
                unsafe { kernels::add_weighted::<E>(level, &args) };
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

/// The most floats of scores that a tile of [`size`] has for `keys` keys or fewer.
pub(super) fn most_floats(keys: usize, floats: usize) -> usize {
    let stride = size(keys, floats).1;
    (MOST_ROWS * stride).min(floats.max(ROWS * stride))
}

/// What `f` says of each of these rows, in the form that kernels take; places beyond them repeat the last.
#[inline]
pub(super) fn each_row<T: Copy>(rows: &Range<usize>, f: impl Fn(usize) -> T) -> [T; ROWS] {
    let mut all = [f(rows.end - 1); ROWS];
    for (place, row) in all.iter_mut().zip(rows.clone()) {
        *place = f(row);
    }
    all
}
