//! The matrix product under every linear layer: C = A·B, with one chain of fused multiply-adds per element of C.
//!
//! A is read through two strides and B through two more, so the same kernel runs on a weight in panels (forward), on a
//! plain weight (input gradient) and on plain activations whose rows are summed over (weight gradient). This file cuts
//! a product into pieces for threads; `gemm_kernel` computes a piece.
//!
//! The order of each sum does not depend on any size chosen here: a pass over part of the reduced dimension leaves the
//! chain's value in memory and the next pass takes it up again. The other two dimensions only say who computes which
//! element.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::gemm_kernel::{Block, MAX_STEPS, WIDEST, multiply};
use crate::simd::LANES;
use crate::{Buf, Ctx};

/// Most rows of C in one piece.
const MAX_ROWS: usize = 256;
/// Most rows of C in one piece when A is read across its rows, where every step is another cache line.
const MAX_ROWS_ACROSS: usize = 128;
/// Most columns of C in one piece, in panels of [`LANES`].
const MAX_PANELS: usize = 32;
/// Multiply-adds below which waking another thread costs more than it brings.
const SERIAL: usize = 3_000_000;
/// Rows whose multiply-adds take as long as reading the weight for one row.
const READ_ROWS: usize = 3;
/// Pieces per thread that even out threads of unequal speed.
const PIECES_PER_THREAD: usize = 4;
/// As [`PIECES_PER_THREAD`], for the case of [`MAX_ROWS_ACROSS`].
const PIECES_PER_THREAD_ACROSS: usize = 2;
/// Rows of C below which a piece is not cut further: with fewer, B is read for too little work.
const MIN_ROWS: usize = 32;
/// Panels of C below which a piece is not cut further: one register tile.
const MIN_PANELS: usize = 3;

/// The left operand: element (i, k) is at `i * row + k * step`. One of the two is 1.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) step: usize,
}

/// The right operand: element (k, j) is at `j / 16 * panel + k * step + j % 16`.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    data: &'a [f32],
    panel: usize,
    step: usize,
    /// Whether the last panel has all 16 columns in memory, although C may have fewer.
    padded: bool,
}

impl<'a> Right<'a> {
    /// Rows of `width` columns.
    pub(crate) fn rows(data: &'a [f32], width: usize) -> Self {
        Self { data, panel: LANES, step: width, padded: false }
    }

    /// Panels of `steps` rows each, the last one filled up to 16 columns.
    pub(crate) fn panels(data: &'a [f32], steps: usize) -> Self {
        Self { data, panel: steps * LANES, step: LANES, padded: true }
    }
}

/// Where the chains start and what becomes of them.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// C = A·B
    Store,
    /// C = A·B + bias of the column
    Bias(&'a [f32]),
    /// C = C + (A·B): one addition at the end
    Add,
    /// The chains start from C.
    Chain,
}

/// The product C[m, n] = A[m, k]·B[k, n], with `c_row` elements from one row of C to the next.
pub(crate) struct Product<'a> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Left<'a>,
    pub(crate) b: Right<'a>,
    pub(crate) c_row: usize,
    pub(crate) output: Output<'a>,
}

/// Part of `count` that piece `i` of `pieces` covers: pieces differ by one at most.
pub(crate) fn piece(count: usize, pieces: usize, i: usize) -> Range<usize> {
    count * i / pieces..count * (i + 1) / pieces
}

impl Product<'_> {
    /// Computes into `c`, on all threads of the context.
    pub(crate) fn run(&self, ctx: &Ctx, c: &mut [f32]) {
        if self.m.max(READ_ROWS) * self.n * self.k < SERIAL {
            return self.run_inline(ctx, c);
        }
        let grid = self.grid(ctx.threads());
        let c = Disjoint::new(c);
        // SAFETY: the pieces cover different elements of C.
        ctx.parallel_for(grid.0 * grid.1, |i| unsafe { self.run_piece(ctx, c, grid, i) });
    }

    /// Computes into `c` on the calling thread.
    pub(crate) fn run_inline(&self, ctx: &Ctx, c: &mut [f32]) {
        let grid = self.grid(1);
        let c = Disjoint::new(c);
        for i in 0..grid.0 * grid.1 {
            // SAFETY: nobody else has C.
            unsafe { self.run_piece(ctx, c, grid, i) }
        }
    }

    /// Computes two products that do not depend on each other, with one wait for both.
    pub(crate) fn run_both(ctx: &Ctx, one: &Self, c: &mut [f32], two: &Self, d: &mut [f32]) {
        let (a, b) = (one.grid(ctx.threads()), two.grid(ctx.threads()));
        let (c, d) = (Disjoint::new(c), Disjoint::new(d));
        ctx.parallel_for(a.0 * a.1 + b.0 * b.1, |i| {
            // SAFETY: the pieces cover different elements of the two results.
            unsafe {
                match i.checked_sub(a.0 * a.1) {
                    None => one.run_piece(ctx, c, a, i),
                    Some(i) => two.run_piece(ctx, d, b, i),
                }
            }
        });
    }

    /// How many pieces the columns and the rows are cut into for `threads` threads.
    fn grid(&self, threads: usize) -> (usize, usize) {
        let panels = self.n.div_ceil(LANES);
        let (max_rows, per_thread) = if self.a.step == 1 {
            (MAX_ROWS, PIECES_PER_THREAD)
        } else {
            (MAX_ROWS_ACROSS, PIECES_PER_THREAD_ACROSS)
        };
        let (mut across, mut down) = (panels.div_ceil(MAX_PANELS), self.m.div_ceil(max_rows));
        if threads > 1 {
            while across * down < per_thread * threads && self.m > down * MIN_ROWS {
                down *= 2;
            }
            while across * down < per_thread * threads && panels > across * MIN_PANELS {
                across = (across * 2).min(panels);
            }
            // The last round should find work for all.
            let even = down.next_multiple_of(threads);
            if self.m >= even * MIN_ROWS {
                down = even;
            }
        }
        (across, down)
    }

    /// Computes one piece of the grid.
    ///
    /// # Safety
    /// Nobody else may reach the piece's elements of `c` meanwhile.
    unsafe fn run_piece(&self, ctx: &Ctx, c: Disjoint<'_>, (across, down): (usize, usize), i: usize) {
        // Neighbouring pieces share columns of B, which is the larger part of what a piece reads.
        let panels = piece(self.n.div_ceil(LANES), across, i / down);
        let rows = piece(self.m, down, i % down);
        let cols = panels.start * LANES..(panels.end * LANES).min(self.n);
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        self.check(c.len());
        let steps = self.k.min(MAX_STEPS);
        // What C held is needed at the end, so chains that are interrupted wait elsewhere.
        let waits = matches!(self.output, Output::Add) && self.k > MAX_STEPS;
        let waiting = if waits { rows.len() * panels.len() * LANES } else { 0 };
        let right = if self.b.padded { 0 } else { WIDEST * LANES * steps };
        let left = if self.a.step == 1 { 0 } else { rows.len() * steps };
        ctx.with_scratch(waiting + right + left, |scratch| {
            // SAFETY: `check` has compared the shape with all operands, the scratch memory is as long as its three
            // parts, and the caller vouches for C.
            unsafe {
                let scratch = scratch.as_mut_slice().as_mut_ptr();
                let c = c.as_mut_ptr().add(rows.start * self.c_row + cols.start);
                let block = Block {
                    m: rows.len(),
                    n: cols.len(),
                    k: self.k,
                    a: self.a.data.as_ptr().add(rows.start * self.a.row),
                    a_row: self.a.row,
                    a_step: self.a.step,
                    b: self.b.data.as_ptr().add(panels.start * self.b.panel),
                    b_panel: self.b.panel,
                    b_step: self.b.step,
                    c,
                    c_row: self.c_row,
                    partial: if waits { scratch } else { c },
                    partial_row: if waits { panels.len() * LANES } else { self.c_row },
                    bias: match self.output {
                        Output::Bias(bias) => bias.as_ptr().add(cols.start),
                        _ => std::ptr::null(),
                    },
                    add: matches!(self.output, Output::Add),
                    chain: matches!(self.output, Output::Chain),
                    right: if right > 0 { scratch.add(waiting) } else { std::ptr::null_mut() },
                    left: if left > 0 { scratch.add(waiting + right) } else { std::ptr::null_mut() },
                };
                multiply(ctx.level(), &block);
            }
        });
    }

    /// Panics unless all elements that the shape and the strides speak of exist.
    fn check(&self, c_len: usize) {
        let (m, n, k) = (self.m, self.n, self.k);
        assert!(n <= self.c_row && (m - 1) * self.c_row + n <= c_len, "C is too short for [{m}, {n}]");
        if let Output::Bias(bias) = self.output {
            assert!(bias.len() >= n, "the bias is too short for {n} columns");
        }
        if k > 0 {
            assert!((m - 1) * self.a.row + (k - 1) * self.a.step < self.a.data.len(), "A is too short");
            let last = n.div_ceil(LANES) - 1;
            let width = if self.b.padded { LANES } else { n - last * LANES };
            assert!(
                last * self.b.panel + (k - 1) * self.b.step + width <= self.b.data.len(),
                "B is too short"
            );
        }
    }
}

/// Panics with the name of a buffer that has not the `want` elements of its shape.
pub(crate) fn check(name: &str, buf: &Buf, want: usize) {
    assert!(buf.len() == want, "{name} has {} elements, its shape needs {want}", buf.len());
}
