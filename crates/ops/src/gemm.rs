//! The matrix product under every linear layer: C = A·B, with the summation order defined in the crate's documentation,
//! in f32 or, from factors rounded to it, in bf16.
//!
//! A is contiguous along or across the reduced dimension, and B is in panels or in rows, in either format, so the same
//! kernel runs on a packed weight (forward), on a plain weight (input gradient) and on activations whose rows are
//! summed (weight gradient). This file divides a product into pieces for threads; `gemm_kernel` computes a piece from
//! tiles of `gemm_tile` and `gemm_amx`, after `gemm_copy` and `gemm_left` have converted operands to their layout; meanwhile
//! `gemm_prefetch` loads the operands needed next.
//!
//! The order of each sum does not depend on any block size chosen here: a pass over part of the reduced dimension
//! stores the partial sum, which the next pass continues. Dividing the other two dimensions only decides which thread
//! computes which element.

use std::ffi::c_void;
use std::ops::Range;

use crate::caches::Caches;
use crate::gemm_copy::left_room;
use crate::gemm_distance::CHOICE;
use crate::gemm_kernel::{Block, Cells, Source, multiply};
use crate::gemm_tile::{Large, WIDEST};
use crate::isa::{Bf16Products, Level};
use crate::numbers::{Numbers, NumbersMut};
use crate::simd::LANES;
use crate::{Buf, Ctx, Element, Isa, Order};

/// Maximum columns of C per piece, in panels of [`LANES`].
const MAX_PANELS: usize = 32;
/// Multiply-adds below which waking another thread costs more than it gains.
const SERIAL: usize = 1_000_000;
/// Rows whose multiply-adds take as long as reading the weight for one row.
const READ_ROWS: usize = 3;
/// Pieces per thread, to balance threads of unequal speed.
const PIECES_PER_THREAD: usize = 4;
/// As [`PIECES_PER_THREAD`], if A is read across its rows.
const PIECES_PER_THREAD_ACROSS: usize = 2;
/// Rows of C that fit in one register tile.
const FEW_ROWS: usize = 8;
/// Rows of small tiles from whose number on a packed bf16 B is widened before it is used.
const WIDENED_ROWS: usize = 24;
/// Minimum rows of a piece: with fewer, too little work is done per read of B.
const MIN_ROWS: usize = 32;
/// Minimum panels of a piece that copies A.
const MIN_PANELS_COPYING: usize = 6;
/// Minimum panels of a piece: one register tile.
const MIN_PANELS: usize = 3;

/// The left operand: element (i, k) is at `i * row + k * step`. One of the two strides is 1.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: Numbers<'a>,
    pub(crate) row: usize,
    pub(crate) step: usize,
}

/// The right operand.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// Rows of `width` columns: element (k, j) is at `k * width + j`.
    Rows {
        /// The rows.
        data: Numbers<'a>,
        /// Elements from one row to the next.
        width: usize,
    },
    /// Panels of 16 columns, the last one zero-padded: a [`Packed`](crate::Packed) weight in the format of the product.
    Panels(Numbers<'a>),
}

/// Initial value of the sums and treatment of the results.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// C = A·B.
    Store,
    /// C = A·B + bias (per column).
    Bias(&'a [f32]),
    /// C = residual + (A·B + bias), where the residual has the strides of C.
    Residual(&'a [f32], Option<&'a [f32]>),
    /// C += A·B; the sums start from C.
    Chain,
}

/// The product C[m, n] = A[m, k]·B[k, n], with `c_row` elements from one row of C to the next.
pub(crate) struct Product<'a> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Numbers per word of the arithmetic: [`Typed::GROUP`](crate::numbers::Typed::GROUP) of its format.
    pub(crate) group: usize,
    pub(crate) a: Left<'a>,
    pub(crate) b: Right<'a>,
    pub(crate) c_row: usize,
    pub(crate) output: Output<'a>,
}

/// Range of `0..count` in part `i` of `pieces`; parts differ in size by at most one.
pub(crate) fn piece(count: usize, pieces: usize, i: usize) -> Range<usize> {
    count * i / pieces..count * (i + 1) / pieces
}

/// Iterator over all [`piece`]s, without a division for each.
pub(crate) struct Pieces {
    /// Start of the next piece: the floor of `start + over / parts`.
    start: usize,
    over: usize,
    /// The count is `size · parts + left`.
    size: usize,
    left: usize,
    parts: usize,
}

impl Pieces {
    pub(crate) fn of(count: usize, parts: usize) -> Self {
        Self { start: 0, over: 0, size: count / parts, left: count % parts, parts }
    }

    /// Returns the next piece; may be called `parts` times.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Range<usize> {
        let start = self.start;
        self.over += self.left;
        let one_more = self.over >= self.parts;
        self.over -= if one_more { self.parts } else { 0 };
        self.start += self.size + usize::from(one_more);
        start..self.start
    }
}

/// True for instruction sets whose register tiles reuse operands often enough to read them in place.
pub(crate) fn has_large_tiles(isa: Isa) -> bool {
    matches!(isa, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx)
}

/// Maximum size of a piece's part of A that is used at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Blocking {
    /// Steps of one word of the reduced dimension per pass.
    steps: usize,
    /// Rows of C per piece.
    rows: usize,
    /// Rows if A is read across its rows.
    rows_across: usize,
}

impl Blocking {
    fn of(level: Level, group: usize) -> Self {
        if group > 1 && level.order() == Order::Tiles {
            Self::TILES
        } else {
            Self::of_vectors(level.isa(), group)
        }
    }

    /// AMX tiles multiply faster than a core stores partial sums or copies B, so passes are long and pieces high. Processors
    /// that have them have a second-level cache of 2 MiB.
    const TILES: Self = Self { steps: 768, rows: 512, rows_across: 384 };

    fn of_vectors(isa: Isa, group: usize) -> Self {
        if has_large_tiles(isa) {
            // All operands are read from the second-level cache; across the rows, every step is another line.
            Self { steps: 384, rows: 256, rows_across: 128 * group }
        } else {
            Self::small_tiles(Caches::detect())
        }
    }

    /// A small tile reads a panel of B from the first-level cache, half of which it takes, and A from the second-level
    /// cache, of which it takes half.
    fn small_tiles(caches: Caches) -> Self {
        let floats = |bytes: usize| bytes / 2 / size_of::<f32>();
        let steps = (floats(caches.first) / LANES).clamp(128, 512);
        let rows = (floats(caches.second) / steps / LANES * LANES).clamp(4 * LANES, 32 * LANES);
        Self { steps, rows, rows_across: rows }
    }
}

/// Upper limit of the scratch memory of a piece in bytes, with words of at most `group` numbers, if `k` is the largest width of a
/// layer: partial sums, a panel of B, and rows of A. Those of few rows are copied in one pass.
pub(crate) fn piece_scratch(isa: Isa, group: usize, k: usize) -> usize {
    let of = |group: usize| {
        // AMX has other orders too, but the blocks of tiles are the largest.
        let tiles = isa == Isa::Amx && group > 1;
        let blocking = if tiles { Blocking::TILES } else { Blocking::of_vectors(isa, group) };
        let Blocking { steps, rows, rows_across } = blocking;
        let unit = LANES * group;
        // The widest product reduces queries, keys and values, or the two halves of a feed-forward layer: numbers, which tiles
        // copy in words. A weight's gradient reduces any number of tokens, across A's rows.
        let widest = if tiles { (3 * k).div_ceil(group) } else { 3 * k };
        let along = left_room(rows + unit, steps.min(widest));
        let few = left_room(FEW_ROWS, k.next_multiple_of(unit));
        let left = along.max(left_room(rows_across + unit, steps)).max(few);
        let partial = if widest > steps { (rows.max(rows_across) + unit) * MAX_PANELS * LANES } else { 0 };
        partial + WIDEST * LANES * steps + left
    };
    (1..=group).map(of).max().unwrap_or(0) * size_of::<f32>()
}

/// True if a product is too small for more than one thread.
pub(crate) fn is_small(m: usize, n: usize, k: usize, group: usize) -> bool {
    m.max(READ_ROWS) * n * k < SERIAL * group
}

impl Product<'_> {
    /// Computes into `c`, on all threads of the context.
    pub(crate) fn run(&self, ctx: &Ctx, c: NumbersMut<'_>) {
        if is_small(self.m, self.n, self.k, self.group) {
            return self.run_inline(ctx, c);
        }
        let grid = self.grid(ctx, ctx.threads());
        // SAFETY: the pieces cover disjoint elements of C.
        ctx.parallel_for(grid.0 * grid.1, |i| unsafe { self.run_piece(ctx, c, grid, i) });
    }

    /// Computes into `c` on the calling thread.
    pub(crate) fn run_inline(&self, ctx: &Ctx, c: NumbersMut<'_>) {
        let grid = self.grid(ctx, 1);
        for i in 0..grid.0 * grid.1 {
            // SAFETY: `c` is exclusive to this thread.
            unsafe { self.run_piece(ctx, c, grid, i) }
        }
    }

    /// Number of pieces along the columns and the rows for `threads` threads.
    fn grid(&self, ctx: &Ctx, threads: usize) -> (usize, usize) {
        let panels = self.n.div_ceil(LANES);
        let blocking = Blocking::of(ctx.level(), self.group);
        let (max_rows, per_thread) = if self.a.step == 1 {
            (blocking.rows, PIECES_PER_THREAD)
        } else {
            (blocking.rows_across, PIECES_PER_THREAD_ACROSS)
        };
        let (mut across, mut down) = (panels.div_ceil(MAX_PANELS), self.m.div_ceil(max_rows));
        if threads > 1 {
            // Each piece copies its part of B, so pieces should be narrow rather than low. Small tiles copy A, too.
            while self.copies_right()
                && has_large_tiles(ctx.isa())
                && across * down < per_thread * threads
                && panels >= 2 * across * MIN_PANELS_COPYING
            {
                across *= 2;
            }
            while across * down < per_thread * threads && self.m > down * MIN_ROWS {
                down *= 2;
            }
            while across * down < per_thread * threads && panels > across * MIN_PANELS {
                across = (across * 2).min(panels);
            }
            // Rounds up so that all threads have work in the last round.
            let even = down.next_multiple_of(threads);
            if self.m >= even * MIN_ROWS {
                down = even;
            }
        }
        (across, down)
    }

    /// True if B must be converted to words of the arithmetic.
    fn copies_right(&self) -> bool {
        self.group > 1 && matches!(self.b, Right::Rows { .. })
    }

    /// Computes one piece of the grid.
    ///
    /// # Safety
    /// No other thread may access the piece's elements of `c`.
    unsafe fn run_piece(&self, ctx: &Ctx, c: NumbersMut<'_>, (across, down): (usize, usize), i: usize) {
        // Neighbouring pieces share columns of B, the larger part of a piece's reads.
        let panels = piece(self.n.div_ceil(LANES), across, i / down);
        // Whole tiles; if A is copied across its rows, whole vectors and cache lines.
        let unit = if self.a.step == 1 { FEW_ROWS } else { LANES * self.group };
        let rows = piece(self.m.div_ceil(unit), down, i % down);
        let rows = rows.start * unit..(rows.end * unit).min(self.m);
        let cols = panels.start * LANES..(panels.end * LANES).min(self.n);
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        self.check(c.len());
        let steps = self.k.div_ceil(self.group);
        let widens = self.group > 1 && ctx.level().bf16() == Bf16Products::Widened;
        // Floats of a copied operand per step.
        let floats = if widens { 2 } else { 1 };
        let (a, a_row) = self.left(widens);
        let (b, b_panel, b_step) = self.right();
        // A piece of few rows streams B once from memory, which is fastest in a single pass.
        let one_pass = rows.len() <= FEW_ROWS && matches!(self.b, Right::Panels(_));
        let most = Blocking::of(ctx.level(), self.group).steps;
        let max_steps = if one_pass { steps.next_multiple_of(LANES).max(most) } else { most / floats };
        let room_steps = steps.min(max_steps);
        // If C is bf16, partial sums between passes are kept in scratch memory.
        let spills = steps > max_steps && matches!(c, NumbersMut::Bf16(_));
        let spill_len = if spills { rows.len() * panels.len() * LANES } else { 0 };
        let small_tiles = !has_large_tiles(ctx.isa());
        // Small tiles would widen a packed B once for each few rows.
        let in_place =
            matches!(self.b, Right::Panels(_)) && !(widens && small_tiles && rows.len() > WIDENED_ROWS);
        let right = if in_place { 0 } else { WIDEST * LANES * room_steps * floats };
        // Small tiles copy even f32 that could be read in place; one or two rows are too few to pay for it.
        let packs = self.group == 1 && rows.len() > 2 && small_tiles;
        let copied = packs || self.a.step != 1 || !matches!(a, Source::Words(_));
        let left = if copied { left_room(rows.len(), room_steps * floats) } else { 0 };
        let streamed = if one_pass { panels.len() * b_panel * size_of::<f32>() } else { 0 };
        let (distance, trial) = CHOICE.begin(streamed);
        ctx.with_scratch(spill_len + right + left, |scratch| {
            // SAFETY: `check` has compared the shape with all operands, the scratch memory has the length of its three
            // parts, and the caller guarantees C.
            unsafe {
                let scratch = scratch.as_mut_slice().as_mut_ptr();
                let first = rows.start * self.c_row + cols.start;
                let cells = c.cells().add(first);
                let none = std::ptr::null();
                let (bias, add) = match self.output {
                    Output::Bias(bias) => (bias.as_ptr().add(cols.start), none),
                    Output::Residual(from, bias) => {
                        (bias.map_or(none, |bias| bias.as_ptr().add(cols.start)), from.as_ptr().add(first))
                    }
                    Output::Store | Output::Chain => (none, none),
                };
                let block = Block {
                    m: rows.len(),
                    n: cols.len(),
                    k: self.k,
                    a: a.add(rows.start * a_row),
                    a_row,
                    a_step: self.a.step,
                    b: b.add(panels.start * b_panel),
                    b_panel,
                    b_step,
                    c: cells,
                    c_row: self.c_row,
                    partial: match cells {
                        Cells::F32(c) if !spills => c,
                        _ => scratch,
                    },
                    partial_row: if spills { panels.len() * LANES } else { self.c_row },
                    bias,
                    add,
                    add_row: self.c_row,
                    large: self.large(c),
                    chain: matches!(self.output, Output::Chain),
                    max_steps,
                    right: if right > 0 { scratch.add(spill_len) } else { std::ptr::null_mut() },
                    left: if left > 0 { scratch.add(spill_len + right) } else { std::ptr::null_mut() },
                    distance,
                };
                multiply(ctx.level(), self.group, &block);
            }
        });
        if let Some(trial) = trial {
            trial.end();
        }
    }

    /// What does not fit in half of the second-level cache.
    fn large(&self, c: NumbersMut<'_>) -> Large {
        let half = Caches::detect().second / 2;
        let right = match self.b {
            Right::Panels(_) => {
                self.n.next_multiple_of(LANES) * self.k.div_ceil(self.group) * size_of::<f32>()
            }
            Right::Rows { .. } => 0,
        };
        Large { right: right > half, results: c.bytes() > half }
    }

    /// A in the form that the kernel reads, and the stride of its rows. `copied` if it cannot read words.
    fn left(&self, copied: bool) -> (Source, usize) {
        let Left { data, row, step } = self.a;
        match data {
            Numbers::F32(a) if self.group == 1 => (Source::Words(a.as_ptr()), row),
            Numbers::F32(a) => (Source::F32(a.as_ptr()), row),
            Numbers::Bf16(a) => {
                // Pairs can be read in place if all rows start and end at a word boundary.
                let aligned = a.as_ptr().addr().is_multiple_of(align_of::<f32>());
                if !copied && step == 1 && row.is_multiple_of(2) && self.k.is_multiple_of(2) && aligned {
                    (Source::Words(a.as_ptr().cast::<c_void>().cast()), row / 2)
                } else {
                    (Source::Bf16(a.as_ptr()), row)
                }
            }
        }
    }

    /// B in the form that the kernel reads, and the strides of its panels and steps.
    fn right(&self) -> (Source, usize, usize) {
        match self.b {
            Right::Rows { data: Numbers::F32(b), width } if self.group == 1 => {
                (Source::Words(b.as_ptr()), LANES, width)
            }
            Right::Rows { data: Numbers::F32(b), width } => (Source::F32(b.as_ptr()), LANES, width),
            Right::Rows { data: Numbers::Bf16(b), width } => (Source::Bf16(b.as_ptr()), LANES, width),
            Right::Panels(data) => {
                let words = match data {
                    Numbers::F32(b) => b.as_ptr(),
                    Numbers::Bf16(b) => b.as_ptr().cast::<c_void>().cast(),
                };
                (Source::Words(words), self.k.div_ceil(self.group) * LANES, LANES)
            }
        }
    }

    /// Panics unless all elements addressed by the shape and the strides exist.
    fn check(&self, c_len: usize) {
        let (m, n, k) = (self.m, self.n, self.k);
        assert!(self.a.row == 1 || self.a.step == 1, "A is contiguous in neither dimension");
        let last = (m - 1) * self.c_row + n;
        assert!(n <= self.c_row && last <= c_len, "C is too short for [{m}, {n}]");
        let bias = match self.output {
            Output::Bias(bias) | Output::Residual(_, Some(bias)) => bias.len(),
            _ => n,
        };
        assert!(bias >= n, "the bias is too short for {n} columns");
        if let Output::Residual(from, _) = self.output {
            assert!(last <= from.len(), "the residual is too short for [{m}, {n}]");
        }
        if k > 0 {
            assert!((m - 1) * self.a.row + (k - 1) * self.a.step < self.a.data.len(), "A is too short");
            assert!(self.group == 2 || matches!(self.a.data, Numbers::F32(_)), "A is not in f32");
            let (want, have) = match self.b {
                Right::Rows { data, width } => {
                    assert!(self.group == 2 || matches!(data, Numbers::F32(_)), "B is not in f32");
                    ((k - 1) * width + n, data.len())
                }
                Right::Panels(data) => {
                    assert!(
                        (self.group == 1) == matches!(data, Numbers::F32(_)),
                        "B is packed for other arithmetic"
                    );
                    (n.div_ceil(LANES) * LANES * k.next_multiple_of(self.group), data.len())
                }
            };
            assert!(want <= have, "B is too short");
        }
    }
}

/// Panics with the name of the buffer if it does not have the `want` elements of its shape.
pub(crate) fn check<E: Element>(name: &str, buf: &Buf<E>, want: usize) {
    assert!(buf.len() == want, "{name} has {} elements, its shape needs {want}", buf.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tiles_fill_half_of_each_cache() {
        let blocking = |first: usize, second: usize| {
            let Blocking { steps, rows, .. } =
                Blocking::small_tiles(Caches { first: first << 10, second: second << 10, shared: 0 });
            (steps, rows)
        };
        assert_eq!(blocking(32, 512), (256, 256));
        assert_eq!(blocking(48, 1280), (384, 416));
        assert_eq!(blocking(64, 256), (512, 64));
        assert_eq!(blocking(16, 16 << 10), (128, 512));
    }

    #[test]
    fn sequential_pieces_match_indexed_pieces() {
        for parts in 1..40 {
            for count in 0..100 {
                let mut pieces = Pieces::of(count, parts);
                assert!((0..parts).all(|i| pieces.next() == piece(count, parts, i)), "{count} in {parts}");
            }
        }
    }
}
