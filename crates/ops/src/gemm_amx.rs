//! bf16 products by tiles of 16 rows of 64 bytes, on Intel's AMX and emulated in software.
//!
//! The arithmetic is that of the instruction (`TDPBF16PS`, Intel's Software Developer's Manual, volume 2): 32 steps of
//! the reduced dimension at a time, with the products of the even numbers in one chain from zero and those of the odd
//! numbers in another; the two are added, and their sum is added to the result so far. Each operation rounds to nearest
//! and flushes numbers below the smallest normal one to zero, in operands and results.

use crate::gemm_tile::{Arithmetic, Finish, Tile, flush};
use crate::simd::{LANES, Simd};

/// Rows of a tile, and words per row.
const SIDE: usize = 16;
const WORDS: usize = SIDE * SIDE;
/// Bytes per row of a tile.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const ROW: usize = 64;

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

impl<S: Simd, U: TileUnit> Arithmetic<S> for Tiles<U> {
    const GROUP: usize = 2;
    const ROWS: usize = 2 * SIDE;
    const UNIT: usize = SIDE;
    const STRICT: bool = true;

    fn widest(_: usize) -> usize {
        2
    }

    #[inline(always)]
    unsafe fn tile(self, s: S, rows: usize, panels: usize, t: &Tile) {
        debug_assert!(t.a_step == 1 && t.b_step == SIDE && t.finish == Finish::Store);
        // SAFETY: guaranteed by the caller; `detected` was called where the unit exists.
        unsafe { if panels == 2 { tile::<S, U, true>(s, rows, t) } else { tile::<S, U, false>(s, rows, t) } }
    }
}

/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn tile<S: Simd, U: TileUnit, const TWO: bool>(s: S, rows: usize, t: &Tile) {
    let halves = [rows.min(SIDE), rows.saturating_sub(SIDE)];
    // SAFETY: rows, panels and steps stay within the tile.
    unsafe {
        // A tile is too short to prefetch more than its results, which come first.
        for prefetch in &t.prefetch[..2] {
            prefetch.fetch(s);
        }
        let mut unit = U::start(halves);
        init_results::<U, TWO>(&mut unit, halves[1] > 0, t);
        let whole = t.steps / SIDE * SIDE;
        for step in (0..whole).step_by(SIDE) {
            let (a, b) = (t.a.add(step), t.b.add(step * SIDE));
            steps::<S, U, TWO>(s, &mut unit, halves[1] > 0, (a, t.a_row), (b, t.b_panel));
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
            steps::<S, U, TWO>(s, &mut unit, halves[1] > 0, (a, SIDE), (b, WORDS));
        }
        let (upper, lower) = (t.to, t.to.wrapping_add(SIDE * t.to_row));
        unit.store::<0>(upper, t.to_row);
        if TWO {
            unit.store::<1>(upper.add(LANES), t.to_row);
        }
        if halves[1] > 0 {
            unit.store::<2>(lower, t.to_row);
            if TWO {
                unit.store::<3>(lower.add(LANES), t.to_row);
            }
        }
        unit.end();
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

/// The hardware instructions, in inline assembly: stable Rust has no intrinsics for them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    use super::{ROW, SIDE, TileUnit};
    use crate::simd::Simd;

    /// The processor's tiles.
    ///
    /// The tile registers keep their content between `asm!` blocks because the compiler does not use them; a thread's
    /// unit is started and ended within one function.
    pub(crate) struct AmxUnit(());

    /// Operand of `ldtilecfg` (palette 1): bytes per row and number of rows of each tile.
    #[repr(C, align(64))]
    struct Configuration {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    impl TileUnit for AmxUnit {
        #[inline(always)]
        unsafe fn start(rows: [usize; 2]) -> Self {
            let [upper, lower] = rows.map(|rows| rows as u8);
            let side = SIDE as u8;
            let mut all = [0; 16];
            all[..8].copy_from_slice(&[upper, upper, lower, lower, upper, lower, side, side]);
            let configuration = Configuration {
                palette: 1,
                start_row: 0,
                reserved: [0; 14],
                row_bytes: all.map(|rows| if rows > 0 { ROW as u16 } else { 0 }),
                rows: all,
            };
            // SAFETY: the caller guarantees the instruction; it reads the 64 bytes of the configuration.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) }
            Self(())
        }
        #[inline(always)]
        unsafe fn end(self) {
            // SAFETY: the caller guarantees the instruction.
            unsafe { asm!("tilerelease", options(nostack, nomem)) }
        }
        #[inline(always)]
        unsafe fn zero<const T: usize>(&mut self) {
            // SAFETY: as above.
            unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem)) }
        }
        #[inline(always)]
        unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize) {
            // SAFETY: as above; the caller guarantees the memory.
            unsafe {
                asm!(
                    "tileloadd tmm{t}, [{from} + {stride}]",
                    t = const T,
                    from = in(reg) from,
                    stride = in(reg) stride * size_of::<f32>(),
                    options(nostack, readonly),
                );
            }
        }
        #[inline(always)]
        unsafe fn multiply<S: Simd, const C: usize, const A: usize, const B: usize>(&mut self, _: S) {
            // SAFETY: as above.
            unsafe {
                asm!(
                    "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                    c = const C,
                    a = const A,
                    b = const B,
                    options(nostack, nomem),
                );
            }
        }
        #[inline(always)]
        unsafe fn store<const T: usize>(&self, to: *mut f32, stride: usize) {
            // SAFETY: as above; the caller guarantees the memory.
            unsafe {
                asm!(
                    "tilestored [{to} + {stride}], tmm{t}",
                    t = const T,
                    to = in(reg) to,
                    stride = in(reg) stride * size_of::<f32>(),
                    options(nostack),
                );
            }
        }
    }

    /// True if the processor has bf16 tiles and the system lets this process use them.
    pub(crate) fn available() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        *ANSWER.get_or_init(|| is_x86_feature_detected!("xsave") && has_tiles() && may_use_tiles())
    }

    /// Checks CPUID leaf 7: bits 22 (AMX-BF16) and 24 (AMX-TILE) of EDX; and that XCR0 enables both parts of the tile
    /// state.
    fn has_tiles() -> bool {
        const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
        const STATE: u32 = 0b11 << 17;
        if __cpuid_count(0, 0).eax < 7 || __cpuid_count(7, 0).edx & BF16_AND_TILE != BF16_AND_TILE {
            return false;
        }
        let low: u32;
        // SAFETY: XSAVE was detected and enabled by the system, which is all the instruction needs.
        unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nostack, nomem)) }
        low & STATE == STATE
    }

    /// Requests permission from the system, which applies to all threads of the process.
    fn may_use_tiles() -> bool {
        const ARCH_PRCTL: usize = 158;
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const TILE_DATA: usize = 18;
        let result: isize;
        // SAFETY: this system call does not access memory of the process.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") TILE_DATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result == 0
    }
}
