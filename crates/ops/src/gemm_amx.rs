//! bf16 products by tiles of 16 rows of 64 bytes, on Intel's AMX and emulated in software.
//!
//! The arithmetic is that of the instruction (`TDPBF16PS`, Intel's Software Developer's Manual, volume 2): 32 steps of
//! the reduced dimension at a time, with the products of the even numbers in one chain from zero and those of the odd
//! numbers in another; the two are added, and their sum is added to the result so far. Each operation rounds to nearest
//! and flushes numbers below the smallest normal one to zero, in operands and results.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;

use std::mem::MaybeUninit;

use crate::gemm_prefetch::{LINE, OPERAND};
use crate::gemm_tile::{Arithmetic, Finish, TILE, Tile, flush};
use crate::simd::{LANES, Simd};

/// Rows of a tile, and words per row.
const SIDE: usize = 16;
const WORDS: usize = SIDE * SIDE;

/// A unit of eight tiles and its operations: the hardware instructions, or their emulation.
///
/// Tiles 0 and 1 are the upper half of the result, 2 and 3 the lower half, 4 and 5 the halves of A, and 6 and 7 the
/// panels of B.
pub(crate) trait TileUnit: Sized {
    /// Configures tiles with the given numbers of rows for the upper and lower half of the result.
    ///
    /// # Safety
    /// The processor must support the unit. A thread has at most one unit at a time.
    unsafe fn start(rows: [usize; 2]) -> Self;
    /// Releases the unit.
    ///
    /// # Safety
    /// As for [`start`](Self::start), which must have been called. Also below.
    unsafe fn end(self);
    /// Fills a tile with zeros.
    ///
    /// # Safety
    /// See above.
    unsafe fn zero<const T: usize>(&mut self);
    /// Reads a tile whose rows are `stride` words apart.
    ///
    /// # Safety
    /// The rows must be readable.
    unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize);
    /// C += A·B.
    ///
    /// # Safety
    /// See above.
    unsafe fn multiply<S: Simd, const C: usize, const A: usize, const B: usize>(&mut self, s: S);
    /// Writes a tile to rows `stride` words apart.
    ///
    /// # Safety
    /// The rows must be writable.
    unsafe fn store<const T: usize>(&self, to: *mut f32, stride: usize);
}

/// Emulated tiles: slow, for testing everything but the instructions. Rejects tiles without rows, as the instructions
/// do.
pub(crate) struct SoftwareUnit {
    tiles: [[f32; WORDS]; 8],
    rows: [usize; 2],
}

impl SoftwareUnit {
    fn rows(&self, tile: usize) -> usize {
        match tile {
            0 | 1 | 4 => self.rows[0],
            2 | 3 | 5 => self.rows[1],
            _ => SIDE,
        }
    }
}

impl TileUnit for SoftwareUnit {
    #[inline(always)]
    unsafe fn start(rows: [usize; 2]) -> Self {
        Self { tiles: [[0.0; WORDS]; 8], rows }
    }
    #[inline(always)]
    unsafe fn end(self) {}
    #[inline(always)]
    unsafe fn zero<const T: usize>(&mut self) {
        assert!(self.rows(T) > 0);
        self.tiles[T] = [0.0; WORDS];
    }
    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize) {
        assert!(self.rows(T) > 0);
        for i in 0..self.rows(T) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                from.add(i * stride).copy_to_nonoverlapping(self.tiles[T].as_mut_ptr().add(i * SIDE), SIDE);
            }
        }
    }
    #[inline(always)]
    unsafe fn multiply<S: Simd, const C: usize, const A: usize, const B: usize>(&mut self, s: S) {
        assert!(self.rows(C) > 0 && self.rows(A) == self.rows(C));
        for i in 0..self.rows(C) {
            let (mut even, mut odd) = (s.zero(), s.zero());
            for k in 0..SIDE {
                let (a, b) = (s.splat(self.tiles[A][i * SIDE + k]), s.load(&self.tiles[B][k * SIDE..]));
                even = flush(s, s.fma(flush(s, s.low_half(a)), flush(s, s.low_half(b)), even));
                odd = flush(s, s.fma(flush(s, s.high_half(a)), flush(s, s.high_half(b)), odd));
            }
            let row = &mut self.tiles[C][i * SIDE..][..SIDE];
            let sum = s.add(flush(s, s.load(row)), flush(s, s.add(even, odd)));
            s.store(row, flush(s, sum));
        }
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(&self, to: *mut f32, stride: usize) {
        for i in 0..self.rows(T) {
            // SAFETY: guaranteed by the caller.
            unsafe { to.add(i * stride).copy_from_nonoverlapping(self.tiles[T].as_ptr().add(i * SIDE), SIDE) }
        }
    }
}

/// Arithmetic by tiles of unit `U`.
pub(crate) struct Tiles<U>(std::marker::PhantomData<U>);

impl<U> Clone for Tiles<U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Tiles<U> {}

impl<U: TileUnit> Tiles<U> {
    /// # Safety
    /// The processor must support the unit.
    pub(crate) unsafe fn detected() -> Self {
        Self(std::marker::PhantomData)
    }
}

/// A unit and the rows of the two halves that it is configured for; `None` before the first tile.
///
/// Configuring waits for all tiles in flight, so it is done once for all tiles of a size.
pub(crate) struct Configured<U: TileUnit>(Option<(U, [usize; 2])>);

impl<U: TileUnit> Default for Configured<U> {
    fn default() -> Self {
        Self(None)
    }
}

impl<U: TileUnit> Configured<U> {
    /// The unit, configured for these rows.
    ///
    /// # Safety
    /// As for [`TileUnit::start`].
    #[inline(always)]
    unsafe fn unit(&mut self, rows: [usize; 2]) -> &mut U {
        if self.0.as_ref().is_none_or(|(_, of)| *of != rows) {
            self.end();
        }
        // SAFETY: guaranteed by the caller; the unit before has ended.
        &mut self.0.get_or_insert_with(|| unsafe { (U::start(rows), rows) }).0
    }

    #[inline(always)]
    fn end(&mut self) {
        if let Some((unit, _)) = self.0.take() {
            // SAFETY: the unit was started.
            unsafe { unit.end() }
        }
    }
}

impl<U: TileUnit> Drop for Configured<U> {
    #[inline(always)]
    fn drop(&mut self) {
        self.end();
    }
}

impl<S: Simd, U: TileUnit> Arithmetic<S> for Tiles<U> {
    const GROUP: usize = 2;
    const ROWS: usize = 2 * SIDE;
    const ROW_UNIT: usize = SIDE;
    const UNIT: usize = SIDE;
    const STRICT: bool = true;
    const FINISHES: bool = true;
    type State = Configured<U>;

    fn widest(_: usize) -> usize {
        2
    }

    #[inline(always)]
    unsafe fn tile(self, s: S, state: &mut Configured<U>, rows: usize, panels: usize, t: &Tile) {
        debug_assert!(t.a_step == 1 && t.b_step == SIDE);
        // SAFETY: guaranteed by the caller; `detected` was called where the unit exists.
        unsafe {
            let unit = state.unit([rows.min(SIDE), rows.saturating_sub(SIDE)]);
            if panels == 2 {
                tile::<S, U, true>(s, unit, rows, t);
            } else {
                tile::<S, U, false>(s, unit, rows, t);
            }
        }
    }
}

/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn tile<S: Simd, U: TileUnit, const TWO: bool>(s: S, unit: &mut U, rows: usize, t: &Tile) {
    let lower = rows > SIDE;
    // SAFETY: rows, panels and steps stay within the tile.
    unsafe {
        let bypass = TWO && bypasses(t);
        let stores = t.finish == Finish::Store && !bypass;
        // The lines that a tile is stored to come first. Vectors need no prefetch.
        if stores {
            t.prefetch[0].fetch(s);
        }
        init_results::<U, TWO>(unit, lower, t);
        let whole = t.steps / SIDE * SIDE;
        let mut ahead = Ahead::of(t, whole / SIDE);
        for step in (0..whole).step_by(SIDE) {
            let (a, b) = (t.a.add(step), t.b.add(step * SIDE));
            ahead.fetch(s, step);
            steps::<S, U, TWO>(s, unit, lower, (a, t.a_row), (b, t.b_panel));
        }
        if whole < t.steps {
            // The remaining steps, zero-padded, which changes no sum.
            let rest = t.steps - whole;
            let (mut a, mut b) = ([[0.0_f32; SIDE]; 2 * SIDE], [[0.0_f32; WORDS]; 2]);
            for (i, row) in a[..rows].iter_mut().enumerate() {
                t.a.add(i * t.a_row + whole).copy_to_nonoverlapping(row.as_mut_ptr(), rest);
            }
            for (j, panel) in b[..=usize::from(TWO)].iter_mut().enumerate() {
                let from = t.b.add(j * t.b_panel + whole * SIDE);
                from.copy_to_nonoverlapping(panel.as_mut_ptr(), rest * SIDE);
            }
            let (a, b) = (a.as_ptr().cast(), b.as_ptr().cast());
            steps::<S, U, TWO>(s, unit, lower, (a, SIDE), (b, WORDS));
        }
        if stores {
            return store::<U, TWO>(unit, lower, t.to, t.to_row);
        }
        // A tile waits for each line outside the first-level cache that it is stored to; vectors do not.
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        store::<U, TWO>(unit, lower, sums, SUMS_ROW);
        for row in 0..rows {
            finish::<S, TWO>(s, t, bypass, row, sums.add(row * SUMS_ROW));
        }
    }
}

/// Lines of a B in panels that a tile prefetches from memory: its own, if few tiles read them, otherwise its share of the next
/// panels. None of a B in the cache, which would only delay the tile.
struct Ahead {
    /// The next line of the first panel.
    at: *const u8,
    /// Lines of each panel during one tile depth.
    lines: usize,
    panels: usize,
    /// Bytes from panel to panel.
    panel: usize,
    /// Step from which on a stream continues in the next panels, and their address.
    turn: (usize, *const u8),
}

impl Ahead {
    /// The lines during `depths` tile depths.
    #[inline(always)]
    fn of(t: &Tile, depths: usize) -> Self {
        if !t.large.right {
            return Self {
                at: std::ptr::null(),
                lines: 0,
                panels: 0,
                panel: 0,
                turn: (usize::MAX, std::ptr::null()),
            };
        }
        let panel = t.b_panel * size_of::<f32>();
        if let Some(stream) = t.stream {
            let distance = stream.distance.next_multiple_of(SIDE).min(depths * SIDE);
            let at = t.b.wrapping_add(distance * t.b_step).cast();
            let turn = (depths * SIDE - distance, stream.next.cast());
            return Self { at, lines: SIDE, panels: 2, panel, turn };
        }
        let next = &t.prefetch[OPERAND];
        let lines = next.lines.div_ceil(depths.max(1));
        Self { at: next.at, lines, panels: next.rows, panel: next.row, turn: (usize::MAX, std::ptr::null()) }
    }

    #[inline(always)]
    fn fetch<S: Simd>(&mut self, s: S, step: usize) {
        if step == self.turn.0 {
            self.at = self.turn.1;
        }
        for line in 0..self.lines {
            let at = self.at.wrapping_add(line * LINE);
            for panel in 0..self.panels {
                s.prefetch(at.wrapping_add(panel * self.panel).cast());
            }
        }
        self.at = self.at.wrapping_add(self.lines * LINE);
    }
}

/// Results of a tile before the final operation, 32 in a row, on whole cache lines.
#[repr(align(64))]
struct Sums {
    _floats: [f32; TILE],
}

/// Floats from one row to the next.
const SUMS_ROW: usize = 2 * LANES;

/// Writes the result tiles to rows `row` floats apart.
///
/// # Safety
/// As for [`tile`]; the rows must be writable.
#[inline(always)]
unsafe fn store<U: TileUnit, const TWO: bool>(unit: &U, lower: bool, to: *mut f32, row: usize) {
    let below = to.wrapping_add(SIDE * row);
    // SAFETY: guaranteed by the caller.
    unsafe {
        unit.store::<0>(to, row);
        if TWO {
            unit.store::<1>(to.add(LANES), row);
        }
        if lower {
            unit.store::<2>(below, row);
            if TWO {
                unit.store::<3>(below.add(LANES), row);
            }
        }
    }
}

/// True if all rows of a tile of two panels are whole cache lines, to be stored past the caches. (Not those that continue
/// sums, which have been read.)
#[inline(always)]
fn bypasses(t: &Tile) -> bool {
    let size = if t.finish == Finish::Narrow { size_of::<u16>() } else { size_of::<f32>() };
    t.large.results
        && t.from.is_null()
        && t.to.addr().is_multiple_of(LINE)
        && (t.to_row * size).is_multiple_of(LINE)
}

/// Applies the final operation to a row of sums.
///
/// # Safety
/// As for [`tile`], of which this must be a row; a row that bypasses the caches must be whole cache lines.
#[inline(always)]
unsafe fn finish<S: Simd, const TWO: bool>(s: S, t: &Tile, bypass: bool, row: usize, sums: *const f32) {
    // SAFETY: the tile has the row, with one or two vectors; addresses of a second one are used only if there are two.
    unsafe {
        let first = s.load_ptr(sums);
        let second = if TWO { s.load_ptr(sums.add(LANES)) } else { s.zero() };
        if t.finish == Finish::Narrow {
            let to = t.to.cast::<u16>().add(row * t.to_row);
            return if TWO {
                put(s, bypass, to.cast(), s.narrow(first, second));
            } else {
                s.store_bf16(to, first);
            };
        }
        let add = match t.finish {
            Finish::Add(add, add_row) => Some(add.add(row * add_row)),
            Finish::Bias(bias) => Some(bias),
            Finish::Store | Finish::Narrow => None,
        };
        let to = t.to.add(row * t.to_row);
        put(s, bypass, to, plus(s, first, add));
        if TWO {
            put(s, bypass, to.add(LANES), plus(s, second, add.map(|add| add.add(LANES))));
        }
    }
}

/// Stores a vector, past the caches if `bypass`. (A function, since a closure would be compiled without the instruction set
/// where it is not inlined. Also below.)
///
/// # Safety
/// As for [`Simd::store_ptr`], or [`Simd::stream_ptr`] if `bypass`.
#[inline(always)]
unsafe fn put<S: Simd>(s: S, bypass: bool, to: *mut f32, v: S::V) {
    // SAFETY: guaranteed by the caller.
    unsafe { if bypass { s.stream_ptr(to, v) } else { s.store_ptr(to, v) } }
}

/// The vector at `add` plus `v`; `v` if there is none.
///
/// # Safety
/// The vector must be readable.
#[inline(always)]
unsafe fn plus<S: Simd>(s: S, v: S::V, add: Option<*const f32>) -> S::V {
    match add {
        // SAFETY: guaranteed by the caller.
        Some(add) => s.add(unsafe { s.load_ptr(add) }, v),
        None => v,
    }
}

/// Initial values of the result tiles.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn init_results<U: TileUnit, const TWO: bool>(unit: &mut U, lower: bool, t: &Tile) {
    let below = t.from.wrapping_add(SIDE * t.from_row);
    // SAFETY: rows and panels stay within the tile.
    unsafe {
        if t.from.is_null() {
            unit.zero::<0>();
            unit.zero::<1>();
            // Instructions must not name a tile without rows.
            if lower {
                unit.zero::<2>();
                unit.zero::<3>();
            }
            return;
        }
        unit.load::<0>(t.from, t.from_row);
        if TWO {
            unit.load::<1>(t.from.add(LANES), t.from_row);
        }
        if lower {
            unit.load::<2>(below, t.from_row);
            if TWO {
                unit.load::<3>(below.add(LANES), t.from_row);
            }
        }
    }
}

/// Multiplies one tile depth of steps.
///
/// # Safety
/// As for [`tile`], with the operands at `a` and `b` and their strides from row to row and from panel to panel.
#[inline(always)]
unsafe fn steps<S: Simd, U: TileUnit, const TWO: bool>(
    s: S,
    unit: &mut U,
    lower: bool,
    (a, a_row): (*const f32, usize),
    (b, b_panel): (*const f32, usize),
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        unit.load::<6>(b, SIDE);
        unit.load::<4>(a, a_row);
        unit.multiply::<S, 0, 4, 6>(s);
        if TWO {
            unit.load::<7>(b.add(b_panel), SIDE);
            unit.multiply::<S, 1, 4, 7>(s);
        }
        if lower {
            unit.load::<5>(a.add(SIDE * a_row), a_row);
            unit.multiply::<S, 2, 5, 6>(s);
            if TWO {
                unit.multiply::<S, 3, 5, 7>(s);
            }
        }
    }
}
