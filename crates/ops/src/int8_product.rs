//! Products with weights of 8 bits: fused multiply-adds, ascending, from zero, of numbers in f32 with integers that are widened
//! in the registers, once for all rows of a tile.
//!
//! The multiply-adds of a few rows take less time than reading the weight; with more rows, widening costs a sixth of them at
//! most. Sums of a piece of the columns are kept in scratch memory until they are multiplied by the scales.

use crate::disjoint::Disjoint;
use crate::gemm::{Output, Pieces, is_small, piece};
use crate::int8::Int8Panels;
use crate::lanes;
use crate::numbers::Numbers;
use crate::pack::Part;
use crate::simd::{LANES, Simd, Task, dispatch};
use crate::{Ctx, Element};

/// Panels of a piece: at most, and at least if there are several threads.
const PANELS: (usize, usize) = (32, 4);
/// Pieces per thread, to balance threads of unequal speed.
const PIECES_PER_THREAD: usize = 4;
/// Elements of the reduced dimension between two prefetches: the integers of a cache line.
const STEPS: usize = 4;
/// Bytes by which prefetches are ahead.
const AHEAD: usize = 512;

impl Int8Panels {
    /// Computes part of `x · Wᵀ` on some threads of the context.
    ///
    /// # Panics
    /// If a slice is too short for the part, or the part continues sums.
    pub(crate) fn multiply<E: Element, O: Element>(
        &self,
        ctx: &Ctx,
        c: &mut [O],
        x: &[E],
        part: &Part<'_>,
        threads: usize,
    ) {
        let (rows, k, panels) = (part.rows, self.k(), part.n.div_ceil(LANES));
        if rows * part.n == 0 {
            return;
        }
        assert!(!matches!(part.output, Output::Chain), "sums with a weight of 8 bits start from zero");
        let threads = if is_small(rows, part.n, k, 1) { 1 } else { threads };
        let even = if threads == 1 { 1 } else { (panels / PANELS.1).clamp(1, PIECES_PER_THREAD * threads) };
        let pieces = panels.div_ceil(PANELS.0).max(even);
        let c = Disjoint::new(c);
        with_widened(ctx, &x[..rows * k], |x| {
            let compute = |i: usize| {
                let own = piece(panels, pieces, i);
                let width = own.len() * LANES;
                ctx.with_scratch(rows * width, |sums| {
                    let (first, sums) = (part.panel + own.start, sums.as_mut_slice());
                    let integers = &self.integers(first)[..width * k];
                    let strip = Strip { x, integers, rows, k, panels: own.len(), sums: sums.as_mut_ptr() };
                    // SAFETY: the slices have the lengths of the shape, and the sums are exclusive to this call.
                    unsafe { strip_sums(ctx.level(), &strip) }
                    let columns = own.start * LANES..part.n.min(own.end * LANES);
                    let scales = self.scales(first);
                    for (row, sums) in sums.chunks_exact(width).enumerate() {
                        let at = row * part.c_row + columns.start..row * part.c_row + columns.end;
                        // SAFETY: a column belongs to one piece.
                        let to = unsafe { c.slice(at.clone()) };
                        let (bias, add) = match part.output {
                            Output::Store | Output::Chain => (None, None),
                            Output::Bias(bias) => (Some(&bias[columns.clone()]), None),
                            Output::Residual(from, bias) => {
                                (bias.map(|bias| &bias[columns.clone()]), Some(&from[at]))
                            }
                        };
                        finish(ctx.level(), to, sums, scales, bias, add);
                    }
                });
            };
            if threads == 1 { (0..pieces).for_each(compute) } else { ctx.parallel_for(pieces, compute) }
        });
    }
}

/// Passes numbers in f32 to `f`.
fn with_widened<E: Element>(ctx: &Ctx, x: &[E], f: impl FnOnce(&[f32])) {
    match E::numbers(x) {
        Numbers::F32(x) => f(x),
        Numbers::Bf16(x) => ctx.with_scratch(x.len(), |wide| {
            widen(ctx.level(), wide.as_mut_slice(), x);
            f(wide.as_slice());
        }),
    }
}

dispatch! {
    /// Numbers in f32.
    fn widen[E: Element](to: &mut [f32], from: &[E]) = widen_generic;
}

#[inline(always)]
fn widen_generic<S: Simd, E: Element>(s: S, to: &mut [f32], from: &[E]) {
    for (to, from) in to.chunks_mut(LANES).zip(from.chunks(LANES)) {
        lanes::store(s, to, lanes::load(s, from));
    }
}

dispatch! {
    /// A row of results: `add + (sums · scales + bias)`.
    fn finish[O: Element](to: &mut [O], sums: &[f32], scales: &[f32], bias: Option<&[f32]>, add: Option<&[f32]>) = finish_generic;
}

#[inline(always)]
fn finish_generic<S: Simd, O: Element>(
    s: S,
    to: &mut [O],
    sums: &[f32],
    scales: &[f32],
    bias: Option<&[f32]>,
    add: Option<&[f32]>,
) {
    let n = to.len();
    for (i, to) in to.chunks_mut(LANES).enumerate() {
        let at = i * LANES..n.min((i + 1) * LANES);
        let mut y = s.mul(s.load(&sums[i * LANES..]), s.load(&scales[i * LANES..]));
        if let Some(bias) = bias {
            y = s.add(y, lanes::load(s, &bias[at.clone()]));
        }
        if let Some(add) = add {
            y = s.add(lanes::load(s, &add[at]), y);
        }
        lanes::store(s, to, y);
    }
}

/// A product of rows with adjacent panels.
struct Strip<'a> {
    /// `[rows, k]`
    x: &'a [f32],
    /// `[panels, k, 16]`
    integers: &'a [i8],
    rows: usize,
    k: usize,
    panels: usize,
    /// `[rows, panels, 16]`
    sums: *mut f32,
}

dispatch! {
    /// Computes the sums of a strip.
    ///
    /// # Safety
    /// The slices must have the lengths of the shape, and no other thread may access the sums.
    unsafe fn strip_sums(strip: &Strip<'_>) = strip_sums_generic;
}

#[inline(always)]
unsafe fn strip_sums_generic<S: Simd>(s: S, strip: &Strip<'_>) {
    let tiles = strip.rows.div_ceil(S::TILE_ROWS);
    let widest = widest::<S>(strip.rows.div_ceil(tiles));
    let mut panel = 0;
    while panel < strip.panels {
        // A remainder is computed one by one: few sizes of tiles, little code.
        let panels = if panel + widest <= strip.panels { widest } else { 1 };
        let mut rows = Pieces::of(strip.rows, tiles);
        for _ in 0..tiles {
            let rows = rows.next();
            let tile = Tile {
                x: strip.x[rows.start * strip.k..].as_ptr(),
                integers: strip.integers[panel * strip.k * LANES..].as_ptr(),
                k: strip.k,
                // SAFETY: the first row of the tile is one of the strip.
                sums: unsafe { strip.sums.add((rows.start * strip.panels + panel) * LANES) },
                row: strip.panels * LANES,
            };
            // SAFETY: rows and panels are within the strip.
            unsafe { choose(s, rows.len(), panels, &tile) }
        }
        panel += panels;
    }
}

/// Panels of a tile of `rows` rows: as many sums as there are registers.
fn widest<S: Simd>(rows: usize) -> usize {
    match (S::TILE_ROWS, rows) {
        (8, 5..) => 3,
        (8, _) | (6, 1) => 4,
        (6, 2) => 2,
        _ => 1,
    }
}

/// A tile of sums.
struct Tile {
    /// Rows `k` apart.
    x: *const f32,
    /// Panels `16 k` apart.
    integers: *const i8,
    k: usize,
    sums: *mut f32,
    /// Floats from one row of the sums to the next.
    row: usize,
}

/// A tile of one size, compiled as a function of its own.
struct SizedTile<'t, const ROWS: usize, const PANELS: usize>(&'t Tile);

impl<S: Simd, const ROWS: usize, const PANELS: usize> Task<S> for SizedTile<'_, ROWS, PANELS> {
    #[inline(always)]
    unsafe fn run(self, s: S) {
        // SAFETY: guaranteed by the caller.
        unsafe { tile::<S, ROWS, PANELS>(s, self.0) }
    }
}

/// # Safety
/// The operands must be readable, and the sums be exclusive to this thread.
#[inline(always)]
unsafe fn choose<S: Simd>(s: S, rows: usize, panels: usize, t: &Tile) {
    macro_rules! pick {
        ($($rows:literal: $($panels:literal)+),+) => {
            match (rows, panels) {
                // SAFETY: guaranteed by the caller.
                $($(($rows, $panels) => unsafe { s.outline(SizedTile::<$rows, $panels>(t)) },)+)+
                _ => debug_assert!(false, "no tile of {rows} rows and {panels} panels"),
            }
        };
    }
    // Constant blocks: sizes of other instruction sets are then not compiled.
    if const { S::TILE_ROWS == 8 } {
        pick!(8: 1 3, 7: 1 3, 6: 1 3, 5: 1 3, 4: 1 3 4, 3: 1 4, 2: 1 4, 1: 1 4);
    } else if const { S::TILE_ROWS == 6 } {
        pick!(6: 1, 5: 1, 4: 1, 3: 1, 2: 1 2, 1: 1 4);
    } else {
        pick!(2: 1, 1: 1);
    }
}

/// Sums in registers.
///
/// # Safety
/// As for [`choose`].
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(s: S, t: &Tile) {
    let (mut x, mut integers, panel) = (t.x, t.integers, t.k * LANES);
    let mut sums = [[s.zero(); PANELS]; ROWS];
    // SAFETY: all steps are within the tile; prefetched addresses need not be.
    unsafe {
        for _ in 0..t.k / STEPS {
            for j in 0..PANELS {
                s.prefetch(integers.wrapping_add(j * panel + AHEAD).cast());
            }
            for i in 0..STEPS {
                sums = step(s, x.add(i), t.k, integers.add(i * LANES), panel, sums);
            }
            x = x.add(STEPS);
            integers = integers.add(STEPS * LANES);
        }
        for i in 0..t.k % STEPS {
            sums = step(s, x.add(i), t.k, integers.add(i * LANES), panel, sums);
        }
        for (i, row) in sums.into_iter().enumerate() {
            for (j, sum) in row.into_iter().enumerate() {
                s.store_ptr(t.sums.add(i * t.row + j * LANES), sum);
            }
        }
    }
}

/// One element of the reduced dimension.
///
/// # Safety
/// As for [`choose`], with the operands from this element on.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "constant bounds, which unroll and leave no array behind")]
unsafe fn step<S: Simd, const ROWS: usize, const PANELS: usize>(
    s: S,
    x: *const f32,
    k: usize,
    integers: *const i8,
    panel: usize,
    mut sums: [[S::V; PANELS]; ROWS],
) -> [[S::V; PANELS]; ROWS] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut right = [s.zero(); PANELS];
        for j in 0..PANELS {
            right[j] = s.load_i8(integers.add(j * panel));
        }
        for i in 0..ROWS {
            let left = s.splat(*x.add(i * k));
            for j in 0..PANELS {
                sums[i][j] = s.fma(left, right[j], sums[i][j]);
            }
        }
    }
    sums
}
