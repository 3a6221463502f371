//! A tile: a few rows of queries whose scores over all their keys fit into the cache.

use std::ops::Range;

use super::blocks::Blocks;
use super::kernels::{self, ROWS, Scores, Weighted};
use super::words::{BLOCK, Layout};
use crate::Element;
use crate::caches::Caches;
use crate::gemm::piece;
use crate::isa::Level;

/// Maximum rows of a tile.
pub(super) const MAX_ROWS: usize = 8 * ROWS;

/// The query heads that share a kv head, for consecutive tokens: row r is head `r % group` of token `r / group`.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Offset of row 0 in tensors `[tokens, H, E]`.
    pub(super) first: usize,
    /// Numbers from one token to the next.
    pub(super) token_stride: usize,
    /// Heads per token.
    pub(super) group: usize,
    /// E.
    pub(super) head_dim: usize,
    /// Number of tokens.
    pub(super) tokens: usize,
}

impl Rows {
    /// Number of rows.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.tokens * self.group
    }

    /// Prefetches the given rows, and all other rows of their tokens, from a tensor that starts at `x`: rows are far
    /// apart, and the loads overlap with the computation of the scores.
    pub(super) fn prefetch<E: Element>(&self, level: Level, x: *const E, rows: Range<usize>) {
        let tokens = rows.start / self.group..self.tokens.min(rows.end.div_ceil(self.group));
        let first = x.wrapping_add(self.first + tokens.start * self.token_stride);
        super::rows::prefetch(level, first, self.token_stride, tokens.len(), self.group * self.head_dim);
    }
}

/// A range of consecutive rows.
pub(super) struct Tile {
    /// The rows of this tile.
    rows: Range<usize>,
    offset: [usize; MAX_ROWS],
    start: [usize; MAX_ROWS],
    limit: [usize; MAX_ROWS],
}

impl Tile {
    /// A tile without rows, before the first.
    pub(super) fn empty() -> Self {
        Self { rows: 0..0, offset: [0; MAX_ROWS], start: [0; MAX_ROWS], limit: [0; MAX_ROWS] }
    }

    /// Moves back before the first row.
    #[inline]
    pub(super) fn restart(&mut self) {
        self.rows = 0..0;
    }

    /// Moves to the next rows, at most `size`; false if there are none left. Token t sees the keys `visible(t)`, at least
    /// one; neither end of the range ever decreases.
    pub(super) fn next(&mut self, rows: &Rows, size: usize, visible: impl Fn(usize) -> Range<usize>) -> bool {
        self.rows = self.rows.end..rows.len().min(self.rows.end + size);
        let (mut token, mut head) = (self.rows.start / rows.group, self.rows.start % rows.group);
        for row in 0..self.len() {
            self.offset[row] = rows.first + token * rows.token_stride + head * rows.head_dim;
            Range { start: self.start[row], end: self.limit[row] } = visible(token);
            debug_assert!(self.start[row] < self.limit[row], "a row sees no key");
            debug_assert!(
                row == 0
                    || (self.start[row - 1] <= self.start[row] && self.limit[row - 1] <= self.limit[row]),
                "visible keys descend"
            );
            head += 1;
            if head == rows.group {
                (token, head) = (token + 1, 0);
            }
        }
        !self.rows.is_empty()
    }

    /// Number of rows.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows of this tile.
    #[inline]
    pub(super) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The rows of the next tile; may exceed the number of rows.
    #[inline]
    pub(super) fn next_rows(&self) -> Range<usize> {
        self.rows.end..self.rows.end + self.len()
    }

    /// Offset of each row in tensors `[tokens, H, E]`.
    #[inline]
    pub(super) fn offsets(&self) -> &[usize] {
        &self.offset[..self.rows.len()]
    }

    /// First key that each row sees; never decreases.
    #[inline]
    pub(super) fn starts(&self) -> &[usize] {
        &self.start[..self.rows.len()]
    }

    /// One past the last key that each row sees; never decreases.
    #[inline]
    pub(super) fn limits(&self) -> &[usize] {
        &self.limit[..self.rows.len()]
    }

    /// The keys that any row sees, from the beginning of the first one's block.
    #[inline]
    pub(super) fn keys(&self) -> Range<usize> {
        self.start[0] / BLOCK * BLOCK..self.limit[self.len() - 1]
    }

    /// Groups of rows for one kernel call each.
    #[inline]
    fn groups(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        groups(self.len())
    }

    /// Blocks per pass over the keys.
    #[inline]
    fn pass_blocks(&self, words: usize) -> usize {
        pass_blocks(self.len(), words)
    }

    /// Scores of the rows for the keys of `part`, which begins with a block: row r has its query, of format `L`, at `q(r)`;
    /// its scores go to `out[r * stride..]`, in whole blocks, starting with the part's first key. Blocks without a visible
    /// key may be left out.
    ///
    /// # Safety
    ///
    /// `q` must give rows of words, and `k` blocks of columns that hold all visible keys; `out` must have room for the
    /// scores, and no other thread may access it.
    pub(super) unsafe fn scores<L: Element, R: Element>(
        &self,
        level: Level,
        layout: Layout,
        part: Range<usize>,
        q: impl Fn(usize) -> *const f32,
        k: Blocks<'_>,
        scale: f32,
        out: *mut f32,
        stride: usize,
    ) {
        let pass = self.pass_blocks(layout.columns());
        let first = part.start / BLOCK;
        for begin in (first..self.keys().end.min(part.end).div_ceil(BLOCK)).step_by(pass) {
            for rows in self.groups() {
                let last = self.limit[rows.end - 1].min(part.end).div_ceil(BLOCK);
                let end = last.min(begin.saturating_add(pass));
                let start = begin.max(self.start[rows.start] / BLOCK);
                if start >= end {
                    continue;
                }
                let args = Scores {
                    prefetch: None,
                    q: each_row(&rows, &q),
                    rows: rows.len(),
                    k,
                    blocks: (start, end),
                    words: layout.row(),
                    scale,
                    out: out.wrapping_add(rows.start * stride + (start - first) * BLOCK),
                    stride,
                };
                // SAFETY: the caller guarantees queries, blocks and outputs.
                unsafe { kernels::scores::<L, R>(level, &args) };
            }
        }
    }

    /// `out(r) = (Σ_j weight[r][j] · summand_j) · factor[r]` over the keys that row r sees, accumulated over a series of
    /// calls with ascending parts. A part begins with a block and has its weights, a row of words of format `L`, at
    /// `weights[r * stride..]`; the weight of a key that shares a word with the first visible one must be zero.
    ///
    /// # Safety
    ///
    /// `out` must give addresses of E floats that no other thread accesses, and `summands` blocks of rows that hold all
    /// visible keys; the weights must be valid.
    pub(super) unsafe fn weighted_sums<L: Element, R: Element>(
        &self,
        level: Level,
        layout: Layout,
        part: Range<usize>,
        weights: *const f32,
        stride: usize,
        summands: Blocks<'_>,
        out: impl Fn(usize) -> *mut f32,
        factor: &[f32],
    ) {
        let pass = self.pass_blocks(layout.rows()) * BLOCK;
        for begin in part.clone().step_by(pass) {
            for rows in self.groups() {
                let max_limit = self.limit[rows.end - 1];
                let end = max_limit.min(begin.saturating_add(pass)).min(part.end);
                let first_word = |row: usize| self.start[row] / layout.group * layout.group;
                // All rows see the keys from here on; rows of earlier tokens see some before.
                let (first, common) = (first_word(rows.start), first_word(rows.end - 1));
                if begin.max(first) >= end {
                    continue;
                }
                let sums = Weighted {
                    prefetch: None,
                    out: each_row(&rows, &out),
                    rows: rows.len(),
                    // Counted from key 0, before the part.
                    weights: weights
                        .wrapping_add(rows.start * stride)
                        .wrapping_sub(part.start / layout.left_group),
                    row_step: stride,
                    word_step: 1,
                    summands,
                    start: begin.max(common),
                    ends: &self.limit[rows.clone()],
                    end,
                    head_dim: layout.head_dim,
                    columns: 0..layout.head_dim,
                    from_zero: first == common && begin <= first,
                    factors: (end == max_limit).then(|| &factor[rows.clone()]),
                };
                // SAFETY: the caller guarantees weights, outputs and summands.
                unsafe {
                    if first < common {
                        self.add_leading::<L, R>(level, &sums, rows.clone(), begin..end.min(common));
                    }
                    if sums.start < end {
                        kernels::add_weighted::<L, R>(level, &sums);
                    }
                }
            }
        }
    }

    /// Adds the keys of `part` that only the earlier of `rows` see, to one row at a time.
    ///
    /// # Safety
    ///
    /// As for [`kernels::add_weighted`] with `sums`.
    unsafe fn add_leading<L: Element, R: Element>(
        &self,
        level: Level,
        sums: &Weighted<'_>,
        rows: Range<usize>,
        part: Range<usize>,
    ) {
        let starts_here = part.start <= self.start[rows.start];
        for (i, row) in rows.enumerate() {
            let row_sums = Weighted {
                out: [sums.out[i]; ROWS],
                rows: 1,
                weights: sums.weights.wrapping_add(i * sums.row_step),
                start: part.start.max(self.start[row]),
                ends: &self.limit[row..=row],
                end: part.end.min(self.limit[row]),
                factors: None,
                columns: sums.columns.clone(),
                ..*sums
            };
            // SAFETY: guaranteed by the caller.
            unsafe {
                if starts_here {
                    sums.out[i].write_bytes(0, sums.head_dim);
                }
                if row_sums.start < row_sums.end {
                    kernels::add_weighted::<L, R>(level, &row_sums);
                }
            }
        }
    }
}

/// Number of rows of a tile whose scores for `keys` keys take about `floats` floats, and the stride of a row's scores
/// in floats.
pub(super) fn size(keys: usize, floats: usize) -> (usize, usize) {
    // An odd number of cache lines, so that the rows do not map to the same cache sets.
    let stride = (keys.div_ceil(BLOCK) | 1) * BLOCK;
    ((floats / stride / ROWS * ROWS).clamp(ROWS, MAX_ROWS), stride)
}

/// Maximum floats of scores of a tile of [`size`] for `keys` keys or fewer.
pub(super) fn max_floats(keys: usize, floats: usize) -> usize {
    let stride = size(keys, floats).1;
    (MAX_ROWS * stride).min(floats.max(ROWS * stride))
}

/// Blocks of `words` words per pass of `rows` rows over the keys; unlimited if there is one group only, which never revisits
/// them.
#[inline]
pub(super) fn pass_blocks(rows: usize, words: usize) -> usize {
    // Keys (or values) that take half of the first-level cache.
    let most = Caches::detect().first / 2 / size_of::<f32>();
    if rows <= ROWS { usize::MAX / BLOCK } else { (most / words).max(4) }
}

/// Groups of at most [`ROWS`] of `all` rows, of equal size: a group of one or two rows takes nearly as long as a full one.
#[inline]
pub(super) fn groups(all: usize) -> impl Iterator<Item = Range<usize>> {
    let count = all.div_ceil(ROWS);
    (0..count).map(move |i| piece(all, count, i))
}

/// Evaluates `f` for each of the rows; unused entries repeat the last.
#[inline]
pub(super) fn each_row<T: Copy>(rows: &Range<usize>, f: impl Fn(usize) -> T) -> [T; ROWS] {
    let mut all = [f(rows.end - 1); ROWS];
    for (place, row) in all.iter_mut().zip(rows.clone()) {
        *place = f(row);
    }
    all
}
