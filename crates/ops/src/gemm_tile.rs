//! The register tile of a matrix product: a tile of results, accumulated over some steps of the reduced dimension.
//!
//! Operands are 32-bit words: an f32 number, or two bf16 numbers that are neighbours along the reduced dimension, the
//! even one in the lower half. [`Arithmetic`] defines the product of two words and the size of a tile.

use crate::gemm_prefetch::{LINE, OPERAND, Prefetch, Stream};
use crate::simd::{LANES, Simd, Task};

/// Floats of the largest tile of any arithmetic.
pub(crate) const TILE: usize = 1024;
/// Panels of the widest tile of any arithmetic.
pub(crate) const WIDEST: usize = 6;

/// A tile: some rows, panels of 16 columns, and steps of one word.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) steps: usize,
    pub(crate) a: *const f32,
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    pub(crate) b: *const f32,
    pub(crate) b_panel: usize,
    pub(crate) b_step: usize,
    /// True if B has been copied in f32 for [`Widened`](crate::gemm_widened::Widened), rather than in words: a step is one
    /// number.
    pub(crate) wide: bool,
    /// Initial values of the sums, or null for zero.
    pub(crate) from: *const f32,
    pub(crate) from_row: usize,
    /// Destination of the sums after the final operation. Rounded results are bf16, and `to_row` counts them.
    pub(crate) to: *mut f32,
    pub(crate) to_row: usize,
    pub(crate) finish: Finish,
    /// What does not fit in the cache.
    pub(crate) large: Large,
    /// Memory to prefetch during the tile.
    pub(crate) prefetch: [Prefetch; 4],
    /// Line-by-line prefetch of B, instead of `prefetch`.
    pub(crate) stream: Option<Stream>,
}

/// What does not fit in the second-level cache together with an operand. Used by AMX tiles only.
#[derive(Clone, Copy, Default)]
pub(crate) struct Large {
    /// B of the whole product, in panels.
    pub(crate) right: bool,
    /// C of the whole product, which nothing reads before it is complete.
    pub(crate) results: bool,
}

/// Final operation on the finished sums.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Stores them.
    Store,
    /// Adds the residual at this address, with the given number of cells from row to row.
    Add(*const f32, usize),
    /// Adds the bias at this address, one number per column.
    Bias(*const f32),
    /// Rounds them to bf16.
    Narrow,
}

/// Multiplication and accumulation of words.
pub(crate) trait Arithmetic<S: Simd>: Copy {
    /// Numbers per word.
    const GROUP: usize;
    /// Maximum rows of a tile.
    const ROWS: usize = S::TILE_ROWS;
    /// Rows by which tiles grow: those of each are a multiple, except for the last one's.
    const ROW_UNIT: usize = 1;
    /// True if a copied A is f32 numbers in tiles: see [`gemm_left`](crate::gemm_left).
    const PACKS: bool = false;
    /// Granularity of steps: a pass over the reduced dimension begins at a multiple of it.
    const UNIT: usize = 1;
    /// True if A must be in the layout with contiguous words of a row.
    const STRICT: bool = false;
    /// True if copied operands are f32 numbers, rounded to bf16, rather than words.
    const WIDENS: bool = false;
    /// Maximum panels of a tile of `rows` rows, limited by the registers.
    fn widest(rows: usize) -> usize {
        widest::<S>(rows)
    }

    /// True if [`tile`](Self::tile) can apply a final operation other than storing, unless it streams B. Each operation
    /// adds machine code for every tile size, so few arithmetics support it.
    const FINISHES: bool = false;

    /// State of the processor that the tiles of a pass share.
    type State: Default;

    /// Computes the tile, of at most [`ROWS`](Self::ROWS) rows and [`widest`](Self::widest) panels.
    ///
    /// # Safety
    /// All pointers of the tile must be valid; no other thread may access `to`. The final operation must be `Store`
    /// unless the arithmetic [`FINISHES`](Self::FINISHES) and the tile does not stream B.
    unsafe fn tile(self, s: S, state: &mut Self::State, rows: usize, panels: usize, t: &Tile);
}

/// Strides of the operands within a step of a tile, in floats; see [`Tile`].
#[derive(Clone, Copy)]
pub(crate) struct Strides {
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    pub(crate) b_panel: usize,
}

impl Tile {
    fn strides(&self) -> Strides {
        Strides { a_row: self.a_row, a_step: self.a_step, b_panel: self.b_panel }
    }

    /// True if A has been copied into tiles of `rows` rows, B is in panels, and the operands to prefetch are lines at equal
    /// distances.
    fn is_packed(&self, rows: usize) -> bool {
        let operand = &self.prefetch[OPERAND];
        let packed = self.a_row == 1 && self.a_step == rows && self.b_step == LANES;
        packed && (operand.rows <= 1 || operand.lines <= 1)
    }
}

/// Multiply-accumulate of a register tile.
pub(crate) trait MulAdd<S: Simd>: Copy {
    /// Converts an initial value of a sum to the form that the arithmetic expects.
    #[inline(always)]
    fn start(self, _: S, sum: S::V) -> S::V {
        sum
    }

    fn mul_add(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V;

    /// Floats of a row of A in a step of a tile.
    const LEFT: usize = 1;
    /// As [`Arithmetic::PACKS`].
    const PACKS: bool = false;

    /// Executes one step of a tile.
    ///
    /// # Safety
    /// As for [`Arithmetic::tile`], with A and B starting at `a` and `b`.
    #[inline(always)]
    unsafe fn step<const ROWS: usize, const PANELS: usize>(
        self,
        s: S,
        strides: Strides,
        a: *const f32,
        b: *const f32,
        chains: Chains<S::V, ROWS, PANELS>,
    ) -> Chains<S::V, ROWS, PANELS> {
        // SAFETY: guaranteed by the caller.
        unsafe { step(s, self, strides, a, b, chains) }
    }

    /// As [`Arithmetic::FINISHES`].
    const FINISHES: bool = false;

    /// Computes a tile.
    ///
    /// # Safety
    /// As for [`Arithmetic::tile`].
    #[inline(always)]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(self, s: S, t: &Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { s.outline(SizedTile::<Self, ROWS, PANELS>(self, t)) }
    }
}

/// A tile of one size: a function of its own for each, because one with all sizes takes minutes to compile.
struct SizedTile<'t, M, const ROWS: usize, const PANELS: usize>(M, &'t Tile);

impl<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize> Task<S>
    for SizedTile<'_, M, ROWS, PANELS>
{
    #[inline(always)]
    unsafe fn run(self, s: S) {
        // SAFETY: guaranteed by the caller.
        unsafe { tile::<S, M, ROWS, PANELS>(s, self.0, self.1) }
    }
}

/// f32 numbers: one fused multiply-add each.
#[derive(Clone, Copy)]
pub(crate) struct Singles;

impl<S: Simd> MulAdd<S> for Singles {
    const PACKS: bool = true;
    // Six rows have few sizes of tiles.
    const FINISHES: bool = S::TILE_ROWS == 6;

    #[inline(always)]
    fn mul_add(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V {
        s.fma(a, b, sum)
    }
}

impl<S: Simd> Arithmetic<S> for Singles {
    const GROUP: usize = 1;
    const PACKS: bool = <Self as MulAdd<S>>::PACKS;
    const FINISHES: bool = <Self as MulAdd<S>>::FINISHES;
    type State = ();

    #[inline(always)]
    unsafe fn tile(self, s: S, (): &mut (), rows: usize, panels: usize, t: &Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { choose(s, self, rows, panels, t) }
    }
}

/// Pairs of bf16 numbers, bitwise identical to the processors' instruction (`vdpbf16ps`): the product of the odd
/// numbers is added to the sum, then that of the even numbers, rounding each time; numbers below the smallest normal
/// one are flushed to zero, in operands and results. (One case differs: a sum less than 2⁻¹⁵⁰ below the smallest normal
/// number gives that number here and zero by the instruction.)
#[derive(Clone, Copy)]
pub(crate) struct Pairs;

impl<S: Simd> MulAdd<S> for Pairs {
    #[inline(always)]
    fn start(self, s: S, sum: S::V) -> S::V {
        flush(s, sum)
    }

    #[inline(always)]
    fn mul_add(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V {
        let sum = flush(s, s.fma(flush(s, s.high_half(a)), flush(s, s.high_half(b)), sum));
        flush(s, s.fma(flush(s, s.low_half(a)), flush(s, s.low_half(b)), sum))
    }
}

impl<S: Simd> Arithmetic<S> for Pairs {
    const GROUP: usize = 2;
    // Each sum takes many instructions, so a larger tile would only add machine code.
    const ROWS: usize = 4;
    type State = ();

    fn widest(_: usize) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn tile(self, s: S, (): &mut (), rows: usize, _: usize, t: &Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match rows {
                4 => tile::<S, Self, 4, 1>(s, self, t),
                3 => tile::<S, Self, 3, 1>(s, self, t),
                2 => tile::<S, Self, 2, 1>(s, self, t),
                _ => tile::<S, Self, 1, 1>(s, self, t),
            }
        }
    }
}

/// Flushes numbers below the smallest normal one to zero, keeping the sign.
#[inline(always)]
pub(crate) fn flush<S: Simd>(s: S, x: S::V) -> S::V {
    s.select_gt(s.splat(f32::MIN_POSITIVE), s.max(x, s.neg(x)), s.mul(x, s.zero()), x)
}

/// [`Pairs`] by the native instruction.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct NativePairs(());

#[cfg(target_arch = "x86_64")]
mod native;

/// Maximum panels of a register tile of `rows` rows.
#[inline(always)]
fn widest<S: Simd>(rows: usize) -> usize {
    match (S::TILE_ROWS, rows) {
        (8, 5..) => 3,
        (8, _) => WIDEST,
        (6, 3..) => 1,
        (6, 2) => 2,
        (6, _) => 4,
        _ => 1,
    }
}

/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
pub(crate) unsafe fn choose<S: Simd, M: MulAdd<S>>(s: S, m: M, rows: usize, panels: usize, t: &Tile) {
    macro_rules! pick {
        ($($rows:literal: $($panels:literal)+),+) => {
            match (rows, panels) {
                // SAFETY: guaranteed by the caller.
                $($(($rows, $panels) => unsafe { m.tile::<$rows, $panels>(s, t) },)+)+
                _ => debug_assert!(false, "no tile of {rows} rows and {panels} panels"),
            }
        };
    }
    // Constant blocks: sizes of other instruction sets are then not compiled.
    if const { S::TILE_ROWS == 8 } {
        pick!(8: 1 2 3, 7: 1 2 3, 6: 1 2 3, 5: 1 2 3, 4: 1 2 3 4 5 6, 3: 1 2 3 4 5 6, 2: 1 2 3 4 5 6, 1: 1 2 3 4 5 6);
    } else if const { S::TILE_ROWS == 6 } {
        pick!(6: 1, 5: 1, 4: 1, 3: 1, 2: 1 2, 1: 1 2 3 4);
    } else {
        pick!(2: 1, 1: 1);
    }
}

/// `ROWS × PANELS` sums.
pub(crate) type Chains<V, const ROWS: usize, const PANELS: usize> = [[V; PANELS]; ROWS];

/// The kernel: sums in registers.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn tile<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(s: S, m: M, t: &Tile) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Completely separate loops, so that the compiler keeps the sums of each in registers.
        if let Some(stream) = t.stream {
            let chains = start::<S, M, ROWS, PANELS>(s, m, t);
            let chains = steps_in_stream(s, m, t, stream, chains);
            store(s, t, chains);
        } else if const { M::PACKS && S::TILE_ROWS == 6 && ROWS > 2 } && t.is_packed(S::TILE_ROWS) {
            let chains = start::<S, M, ROWS, PANELS>(s, m, t);
            let chains = packed_steps(s, m, t, chains);
            if M::FINISHES { finish(s, t, chains) } else { store(s, t, chains) }
        } else {
            let chains = start::<S, M, ROWS, PANELS>(s, m, t);
            let chains = steps(s, m, t, chains);
            if M::FINISHES { finish(s, t, chains) } else { store(s, t, chains) }
        }
    }
}

/// Initial values of the sums.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn start<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
) -> Chains<S::V, ROWS, PANELS> {
    let mut chains = [[s.zero(); PANELS]; ROWS];
    if !t.from.is_null() {
        for (i, row) in chains.iter_mut().enumerate() {
            for (j, chain) in row.iter_mut().enumerate() {
                // SAFETY: guaranteed by the caller.
                *chain = m.start(s, unsafe { s.load_ptr(t.from.add(i * t.from_row + j * LANES)) });
            }
        }
    }
    chains
}

/// Stores the sums.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn store<S: Simd, const ROWS: usize, const PANELS: usize>(
    s: S,
    t: &Tile,
    chains: Chains<S::V, ROWS, PANELS>,
) {
    debug_assert!(t.finish == Finish::Store);
    for (i, row) in chains.into_iter().enumerate() {
        for (j, chain) in row.into_iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { s.store_ptr(t.to.add(i * t.to_row + j * LANES), chain) }
        }
    }
}

/// Applies the final operation and stores the sums. Whole vectors only, so that the sums stay in registers.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "constant bounds, which unroll and leave no array behind")]
unsafe fn finish<S: Simd, const ROWS: usize, const PANELS: usize>(
    s: S,
    t: &Tile,
    chains: Chains<S::V, ROWS, PANELS>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match t.finish {
            Finish::Store => store(s, t, chains),
            Finish::Add(add, add_row) => {
                for i in 0..ROWS {
                    for j in 0..PANELS {
                        let sum = s.add(s.load_ptr(add.add(i * add_row + j * LANES)), chains[i][j]);
                        s.store_ptr(t.to.add(i * t.to_row + j * LANES), sum);
                    }
                }
            }
            Finish::Bias(bias) => {
                for j in 0..PANELS {
                    let bias = s.load_ptr(bias.add(j * LANES));
                    for i in 0..ROWS {
                        s.store_ptr(t.to.add(i * t.to_row + j * LANES), s.add(chains[i][j], bias));
                    }
                }
            }
            Finish::Narrow => {
                let to = t.to.cast::<u16>();
                for i in 0..ROWS {
                    for j in 0..PANELS {
                        s.store_bf16(to.add(i * t.to_row + j * LANES), chains[i][j]);
                    }
                }
            }
        }
    }
}

/// Executes all steps, prefetching the tile's [`Prefetch`]s.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn steps<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
    mut chains: Chains<S::V, ROWS, PANELS>,
) -> Chains<S::V, ROWS, PANELS> {
    let (mut a, mut b, mut left, strides) = (t.a, t.b, t.steps, t.strides());
    // A tile of few rows with B in the cache is bound by its loads, to which prefetches would add.
    let prefetches = ROWS > 2;
    let streams = if prefetches { &t.prefetch[..] } else { &[] };
    // The remaining steps prefetch a line that is already loaded.
    let rest = Prefetch { at: t.a.cast(), row: 0, rows: 1, lines: usize::MAX };
    for (prefetch, line) in streams.iter().map(|prefetch| (prefetch, LINE)).chain([(&rest, 0)]) {
        for row in 0..prefetch.rows {
            let mut fetched = prefetch.at.wrapping_add(row * prefetch.row);
            let steps = prefetch.lines.min(left);
            left -= steps;
            for _ in 0..steps {
                if prefetches {
                    s.prefetch(fetched.cast());
                    fetched = fetched.wrapping_add(line);
                }
                // SAFETY: rows, panels and steps stay within the tile; only the final pointer increments leave it, and
                // are not read.
                chains = unsafe { m.step(s, strides, a, b, chains) };
                a = a.wrapping_add(M::LEFT * t.a_step);
                b = b.wrapping_add(t.b_step);
            }
        }
    }
    chains
}

/// Executes all steps of a tile that [`is_packed`](Tile::is_packed): with constant strides and several steps per iteration,
/// nearly all instructions are multiply-adds and their loads. The few lines of the result are prefetched first, those of the
/// next operand during the steps.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn packed_steps<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
    mut chains: Chains<S::V, ROWS, PANELS>,
) -> Chains<S::V, ROWS, PANELS> {
    const STEPS: usize = 4;
    for prefetch in &t.prefetch[..OPERAND] {
        prefetch.fetch(s);
    }
    let (mut fetched, distance, lines) = t.prefetch[OPERAND].sequence();
    let (iterations, rest) = (t.steps / STEPS, t.steps % STEPS);
    let lines_each = lines.div_ceil(iterations.max(1));
    // The first iterations prefetch; a few lines are spread over as many of them.
    let fetching = lines.min(iterations);
    let strides = Strides { a_row: 1, a_step: S::TILE_ROWS, b_panel: t.b_panel };
    let (mut a, mut b, a_step) = (t.a, t.b, const { M::LEFT * S::TILE_ROWS });
    // SAFETY: as in `steps`.
    unsafe {
        for (count, lines_each) in [(fetching, lines_each), (iterations - fetching, 0)] {
            for _ in 0..count {
                for _ in 0..lines_each {
                    s.prefetch(fetched.cast());
                    fetched = fetched.wrapping_add(distance);
                }
                for i in 0..STEPS {
                    chains = m.step(s, strides, a.add(i * a_step), b.add(i * LANES), chains);
                }
                a = a.wrapping_add(STEPS * a_step);
                b = b.wrapping_add(STEPS * LANES);
            }
        }
        for i in 0..rest {
            chains = m.step(s, strides, a.add(i * a_step), b.add(i * LANES), chains);
        }
    }
    chains
}

/// Executes all steps, prefetching B line by line.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn steps_in_stream<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
    stream: Stream,
    mut chains: Chains<S::V, ROWS, PANELS>,
) -> Chains<S::V, ROWS, PANELS> {
    let (mut a, mut b, strides) = (t.a, t.b, t.strides());
    let here = t.b.wrapping_add(stream.distance * t.b_step);
    for (mut fetched, steps) in [(here, t.steps - stream.distance), (stream.next, stream.distance)] {
        for _ in 0..steps {
            for j in 0..PANELS {
                s.prefetch(fetched.wrapping_add(j * t.b_panel));
            }
            fetched = fetched.wrapping_add(t.b_step);
            // SAFETY: as in `steps`.
            chains = unsafe { m.step(s, strides, a, b, chains) };
            a = a.wrapping_add(M::LEFT * t.a_step);
            b = b.wrapping_add(t.b_step);
        }
    }
    chains
}

/// [`MulAdd::step`] over words.
///
/// # Safety
/// As for [`MulAdd::step`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "constant bounds, which unroll and leave no array behind")]
unsafe fn step<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    strides: Strides,
    a: *const f32,
    b: *const f32,
    mut chains: Chains<S::V, ROWS, PANELS>,
) -> Chains<S::V, ROWS, PANELS> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let right: [S::V; PANELS] = std::array::from_fn(|j| s.load_ptr(b.add(j * strides.b_panel)));
        for i in 0..ROWS {
            let left = s.splat(*a.add(i * strides.a_row));
            for j in 0..PANELS {
                chains[i][j] = m.mul_add(s, left, right[j], chains[i][j]);
            }
        }
    }
    chains
}
