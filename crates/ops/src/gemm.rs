//! The matrix product under every linear layer: C = A·B, with one chain of fused multiply-adds per element of C.
//!
//! Nothing is copied to be multiplied. A is read through two strides and B through two more, so the same kernel runs on
//! a weight in panels (forward), on a plain weight (input gradient) and on plain activations whose rows are reduced
//! (weight gradient). What makes it fast is the register tile: 8 rows × 3 vectors of C on AVX-512, 6 × 1 elsewhere,
//! which needs 11 loads for 24 vector multiply-adds. The blocks around it keep the operands of the tile in the
//! second-level cache.
//!
//! The order of each sum does not depend on any block size: a block along the reduced dimension leaves the chain's
//! value in C and the next block takes it up again. The other two dimensions only say who computes which element.

use crate::disjoint::Disjoint;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx};

/// Most steps of the reduced dimension in one pass over a block.
const MAX_STEPS: usize = 384;
/// Most rows of C in one block.
const MAX_ROWS: usize = 128;
/// Most columns of C in one block, in panels of [`LANES`].
const MAX_PANELS: usize = 32;
/// Multiply-adds below which waking another thread costs more than it brings.
const SERIAL: usize = 200_000;
/// Pieces per thread that even out threads of unequal speed.
const PIECES_PER_THREAD: usize = 4;

/// The left operand: element (i, k) is at `i * row + k * step`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) step: usize,
}

/// The right operand: element (k, j) is at `j / 16 * panel + k * step + j % 16`.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) panel: usize,
    pub(crate) step: usize,
    /// Whether the last panel has all 16 columns in memory, although C may have fewer.
    pub(crate) padded: bool,
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
pub(crate) enum Into<'a> {
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
    pub(crate) into: Into<'a>,
}

/// Part of `count` that piece `i` of `pieces` covers: pieces differ by one at most.
fn piece(count: usize, pieces: usize, i: usize) -> std::ops::Range<usize> {
    count * i / pieces..count * (i + 1) / pieces
}

impl Product<'_> {
    /// Computes into `c`, on all threads of the context.
    pub(crate) fn run(&self, ctx: &Ctx, c: &mut [f32]) {
        let (across, down) = self.grid(ctx.threads());
        let c = Disjoint::new(c);
        // SAFETY: the pieces cover different elements of C.
        ctx.parallel_for(across * down, |i| unsafe { self.run_piece(ctx, c, (across, down), i) });
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
        let (mut across, mut down) = (panels.div_ceil(MAX_PANELS), self.m.div_ceil(MAX_ROWS));
        if threads > 1 && self.m * self.n * self.k > SERIAL {
            // Rows first: a piece of few rows reads B for little work, but B is shared, and columns are few.
            while across * down < PIECES_PER_THREAD * threads && self.m > down * 32 {
                down *= 2;
            }
            while across * down < PIECES_PER_THREAD * threads && panels > across * 3 {
                across = (across * 2).min(panels);
            }
        }
        (across, down)
    }

    /// Computes one piece of the grid.
    ///
    /// # Safety
    /// Nobody else may reach the piece's elements of `c` meanwhile.
    unsafe fn run_piece(&self, ctx: &Ctx, c: Disjoint<'_>, (across, down): (usize, usize), i: usize) {
        // Neighbouring pieces share the columns of B, which are the larger part of what a piece reads.
        let panels = piece(self.n.div_ceil(LANES), across, i / down);
        let rows = piece(self.m, down, i % down);
        let cols = panels.start * LANES..(panels.end * LANES).min(self.n);
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        self.check(c.len());
        // SAFETY: `check` has compared the shape with all three operands, and the caller vouches for C.
        unsafe {
            let from = c.as_mut_ptr().add(rows.start * self.c_row + cols.start);
            let mut block = Block {
                m: rows.len(),
                n: cols.len(),
                k: self.k,
                a: self.a.data.as_ptr().add(rows.start * self.a.row),
                a_row: self.a.row,
                a_step: self.a.step,
                b: self.b.data.as_ptr().add(panels.start * self.b.panel),
                b_panel: self.b.panel,
                b_step: self.b.step,
                c: from,
                c_row: self.c_row,
                partial: from,
                partial_row: self.c_row,
                bias: std::ptr::null(),
                add: false,
                chain: false,
                tail: std::ptr::null_mut(),
            };
            match self.into {
                Into::Store => {}
                Into::Bias(bias) => block.bias = bias.as_ptr().add(cols.start),
                Into::Add => block.add = true,
                Into::Chain => block.chain = true,
            }
            // What C held is needed at the end, so chains that are interrupted wait elsewhere.
            let waiting = if block.add && self.k > MAX_STEPS { block.m * panels.len() * LANES } else { 0 };
            let tail = if !self.b.padded && cols.len() % LANES != 0 { MAX_STEPS * LANES } else { 0 };
            if waiting + tail == 0 {
                multiply(ctx.level(), &block);
            } else {
                ctx.with_scratch(waiting + tail, |scratch| {
                    let scratch = scratch.as_mut_slice().as_mut_ptr();
                    if waiting > 0 {
                        (block.partial, block.partial_row) = (scratch, panels.len() * LANES);
                    }
                    if tail > 0 {
                        block.tail = scratch.add(waiting);
                    }
                    multiply(ctx.level(), &block);
                });
            }
        }
    }

    /// Panics unless all elements that the shape and the strides speak of exist.
    fn check(&self, c_len: usize) {
        let (m, n, k) = (self.m, self.n, self.k);
        assert!((m - 1) * self.c_row + n <= c_len, "C is too short for [{m}, {n}]");
        if let Into::Bias(bias) = self.into {
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

/// A piece of a product, as the kernels see it.
struct Block {
    m: usize,
    n: usize,
    k: usize,
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    b_panel: usize,
    b_step: usize,
    c: *mut f32,
    c_row: usize,
    /// Where chains wait between two passes over the reduced dimension: C itself or scratch memory.
    partial: *mut f32,
    partial_row: usize,
    /// Bias of the first column, or null.
    bias: *const f32,
    /// C is added to the finished chains.
    add: bool,
    /// Chains start from C.
    chain: bool,
    /// Room for the last panel when B does not hold all of its columns, or null.
    tail: *mut f32,
}

/// A register tile: up to 8 rows, some panels, some steps.
struct Tile {
    k: usize,
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    b_panel: usize,
    b_step: usize,
    /// What the chains start from, or null for zero.
    from: *const f32,
    from_row: usize,
    to: *mut f32,
    to_row: usize,
    bias: *const f32,
    /// `to` is added to the chains.
    add: bool,
    /// Columns of the last panel.
    last: usize,
}

/// # Safety
/// All that the block points to must exist, and C, the partial sums and the tail must be the caller's alone.
#[inline(always)]
unsafe fn multiply_generic<S: Simd>(s: S, block: &Block) {
    let passes = block.k.div_ceil(MAX_STEPS).max(1);
    let full = block.n / LANES;
    for pass in 0..passes {
        let steps = piece(block.k, passes, pass);
        // SAFETY: columns, rows and steps stay within the block.
        unsafe {
            let b = block.b.add(steps.start * block.b_step);
            if block.tail.is_null() {
                columns(s, block, pass, passes, b, block.b_panel, block.b_step, 0, block.n.div_ceil(LANES));
            } else {
                columns(s, block, pass, passes, b, block.b_panel, block.b_step, 0, full);
                let (last, width) = (b.add(full * block.b_panel), block.n - full * LANES);
                for k in 0..steps.len() {
                    let v = s.load_ptr_n(last.add(k * block.b_step), width);
                    s.store_ptr(block.tail.add(k * LANES), v);
                }
                columns(s, block, pass, passes, block.tail, 0, LANES, full, full + 1);
            }
        }
    }
}

dispatch! {
    /// # Safety
    /// All that the block points to must exist, and C, the partial sums and the tail must be the caller's alone.
    unsafe fn multiply(block: &Block) = multiply_generic;
}

/// One pass over the panels `first..end`, whose first is at `b`, for all rows of the block.
///
/// # Safety
/// As for [`multiply_generic`].
#[inline(always)]
unsafe fn columns<S: Simd>(
    s: S,
    block: &Block,
    pass: usize,
    passes: usize,
    b: *const f32,
    b_panel: usize,
    b_step: usize,
    first: usize,
    end: usize,
) {
    let steps = piece(block.k, passes, pass);
    let tiles = block.m.div_ceil(S::TILE_ROWS);
    let widest = widest::<S>(block.m.div_ceil(tiles));
    let groups = (end - first).div_ceil(widest);
    for group in 0..groups {
        let panels = piece(end - first, groups, group);
        let col = (first + panels.start) * LANES;
        let last = (block.n - (first + panels.end - 1) * LANES).min(LANES);
        for tile in 0..tiles {
            let rows = piece(block.m, tiles, tile);
            // SAFETY: the tile lies within the block.
            unsafe {
                let c = block.c.add(rows.start * block.c_row + col);
                let partial = block.partial.add(rows.start * block.partial_row + col);
                let (from, from_row) = match (pass, block.chain) {
                    (0, false) => (std::ptr::null(), 0),
                    (0, true) => (c.cast_const(), block.c_row),
                    _ => (partial.cast_const(), block.partial_row),
                };
                let done = pass + 1 == passes;
                let (to, to_row) = if done { (c, block.c_row) } else { (partial, block.partial_row) };
                let bias = if done && !block.bias.is_null() { block.bias.add(col) } else { std::ptr::null() };
                let tile = Tile {
                    k: steps.len(),
                    a: block.a.add(rows.start * block.a_row + steps.start * block.a_step),
                    a_row: block.a_row,
                    a_step: block.a_step,
                    b: b.add(panels.start * b_panel),
                    b_panel,
                    b_step,
                    from,
                    from_row,
                    to,
                    to_row,
                    bias,
                    add: done && block.add,
                    last,
                };
                choose(s, rows.len(), panels.len(), &tile);
            }
        }
    }
}

/// Most panels of a tile of `rows` rows: what the registers hold.
#[inline(always)]
fn widest<S: Simd>(rows: usize) -> usize {
    match (S::TILE_ROWS, rows) {
        (8, 5..) => 3,
        (8, _) => 6,
        (_, 3..) => 1,
        (_, 2) => 2,
        _ => 4,
    }
}

/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn choose<S: Simd>(s: S, rows: usize, panels: usize, t: &Tile) {
    macro_rules! pick {
        ($($rows:literal: $($panels:literal)+),+) => {
            match (rows, panels) {
                // SAFETY: the caller's duty.
                $($(($rows, $panels) => unsafe { tile::<S, $rows, $panels>(s, t) },)+)+
                _ => debug_assert!(false, "no tile of {rows} rows and {panels} panels"),
            }
        };
    }
    if S::TILE_ROWS == 8 {
        pick!(8: 1 2 3, 7: 1 2 3, 6: 1 2 3, 5: 1 2 3, 4: 1 2 3 4 5 6, 3: 1 2 3 4 5 6, 2: 1 2 3 4 5 6, 1: 1 2 3 4 5 6);
    } else {
        pick!(6: 1, 5: 1, 4: 1, 3: 1, 2: 1 2, 1: 1 2 3 4);
    }
}

/// The kernel: `ROWS × PANELS` chains in registers.
///
/// # Safety
/// All that the tile points to must exist; `to` must be the caller's alone.
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(s: S, t: &Tile) {
    let width = |j: usize| if j + 1 == PANELS { t.last } else { LANES };
    let mut acc = [[s.zero(); PANELS]; ROWS];
    // SAFETY: rows, panels and steps stay within the tile; only the columns that C has are touched in C.
    unsafe {
        if !t.from.is_null() {
            for (i, acc) in acc.iter_mut().enumerate() {
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = load(s, t.from.add(i * t.from_row + j * LANES), width(j));
                }
            }
        }
        for k in 0..t.k {
            let b: [S::V; PANELS] =
                std::array::from_fn(|j| s.load_ptr(t.b.add(j * t.b_panel + k * t.b_step)));
            for (i, acc) in acc.iter_mut().enumerate() {
                let a = s.splat(*t.a.add(i * t.a_row + k * t.a_step));
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc = s.fma(a, b, *acc);
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (j, &acc) in acc.iter().enumerate() {
                let to = t.to.add(i * t.to_row + j * LANES);
                let mut v = acc;
                if !t.bias.is_null() {
                    v = s.add(v, load(s, t.bias.add(j * LANES), width(j)));
                }
                if t.add {
                    v = s.add(load(s, to, width(j)), v);
                }
                if width(j) == LANES { s.store_ptr(to, v) } else { s.store_ptr_n(to, width(j), v) }
            }
        }
    }
}

/// # Safety
/// `width <= LANES` floats must be readable at `p`.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, width: usize) -> S::V {
    // SAFETY: the caller's duty.
    unsafe { if width == LANES { s.load_ptr(p) } else { s.load_ptr_n(p, width) } }
}

/// Panics with the name of a buffer that has not the `want` elements of its shape.
pub(crate) fn check(name: &str, buf: &Buf, want: usize) {
    assert!(buf.len() == want, "{name} has {} elements, its shape needs {want}", buf.len());
}
