//! Operand layout of the inner loops: 32-bit words, and the arithmetic of each format.
//!
//! A word is an f32 number, or two bf16 numbers that are neighbours along the summed dimension, the even one in the
//! lower half. Unless products are dot pairs, bf16 is widened, also where the linear layers use tiles: a decoding tile
//! has few rows, and processors with AMX have f32 multiply-adds as fast as dot pairs. Only keys and values in the cache
//! are words of bf16 then: the left operand of each product (queries, probabilities, derivatives) is f32, as are both in
//! training.

use crate::gemm_tile::{Arithmetic, MulAdd, Pairs, Singles};
use crate::gemm_widened::Widened;
use crate::isa::Level;
use crate::simd::{LANES, Simd};
use crate::{Element, Order};

/// Tokens in a block of keys and values.
pub(crate) const BLOCK: usize = LANES;

/// True if the left operands of this level's products of format E are f32, not words of E.
pub(crate) fn widens<E: Element>(level: Level) -> bool {
    E::GROUP > 1 && level.order() != Order::DotPairs
}

/// Layout of rows of E numbers in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Numbers per word of keys and values.
    pub(crate) group: usize,
    /// Numbers per word of a left operand: as many, or 1.
    pub(crate) left_group: usize,
    /// Head size, E.
    pub(crate) head_dim: usize,
}

impl Layout {
    /// Layout of left operands of format `L`, and of keys and values of format `R`.
    pub(crate) fn of<L: Element, R: Element>(head_dim: usize) -> Self {
        const { assert!(L::GROUP <= R::GROUP) };
        Self { group: R::GROUP, left_group: L::GROUP, head_dim }
    }

    /// Words of a row of keys that pairs neighbours within the row; an unpaired last number is padded with zero.
    pub(crate) fn row(self) -> usize {
        self.head_dim.div_ceil(self.group)
    }

    /// Words of a row of a left operand, which is padded with zero to as many numbers as a row of keys.
    pub(crate) fn left_row(self) -> usize {
        self.row() * (self.group / self.left_group)
    }

    /// Words of a block of columns, `[E/2][16][2]` (in f32 `[E][16]`): one vector holds word e of 16 rows.
    pub(crate) fn columns(self) -> usize {
        self.row() * BLOCK
    }

    /// Words of a block of rows, `[8][E][2]` (in f32 `[16][E]`), which pairs neighbouring rows.
    pub(crate) fn rows(self) -> usize {
        BLOCK / self.group * self.head_dim
    }
}

/// Multiply-accumulate over words, and conversion of numbers to words.
pub(super) trait Products<S: Simd>: Arithmetic<S> + MulAdd<S> {
    /// Number of sums that fit into the registers.
    const CHAINS: usize;

    /// Converts 16 numbers to the format of a left operand and stores them consecutively in a row of words, starting at
    /// number `at`.
    ///
    /// # Safety
    ///
    /// The numbers must be writable.
    unsafe fn store(self, s: S, row: *mut f32, at: usize, v: S::V);

    /// Steps of an inner loop per iteration: with few registers, instructions that only compute addresses are a sixth of a
    /// loop of single steps.
    const STEPS: usize = 1;

    /// Number of products per word of keys or values that are separate multiply-adds: each has a word of the left operand
    /// of its own.
    const PARTS: usize = 1;

    /// Right operand of part `part` of the words of 16 columns, of which `lanes` are readable.
    ///
    /// # Safety
    ///
    /// The words must be readable.
    #[inline(always)]
    unsafe fn right(self, s: S, p: *const f32, lanes: usize, _part: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { if lanes == LANES { s.load_ptr(p) } else { s.load_ptr_n(p, lanes) } }
    }

    /// Adds the product of two operands of the same part.
    #[inline(always)]
    fn add_part(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V {
        self.mul_add(s, a, b, sum)
    }

    /// Words with the odd numbers replaced by zero.
    #[inline(always)]
    fn even(self, s: S, words: S::V) -> S::V {
        s.pair(s.low_half(words), s.zero())
    }
}

impl<S: Simd> Products<S> for Singles {
    const CHAINS: usize = S::CHAINS;
    const STEPS: usize = if S::TILE_ROWS == 6 { 4 } else { 1 };

    #[inline(always)]
    unsafe fn store(self, s: S, row: *mut f32, at: usize, v: S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe { s.store_ptr(row.add(at), v) }
    }
}

impl<S: Simd> Products<S> for Widened {
    const CHAINS: usize = S::CHAINS;
    const PARTS: usize = 2;

    #[inline(always)]
    unsafe fn store(self, s: S, row: *mut f32, at: usize, v: S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe { s.store_ptr(row.add(at), v) }
    }

    #[inline(always)]
    unsafe fn right(self, s: S, p: *const f32, lanes: usize, part: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (lanes, part) {
                (LANES, 0) => s.load_low(p),
                (LANES, _) => s.load_high(p),
                (_, 0) => s.low_half(s.load_ptr_n(p, lanes)),
                _ => s.high_half(s.load_ptr_n(p, lanes)),
            }
        }
    }

    #[inline(always)]
    fn add_part(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V {
        s.fma(a, b, sum)
    }
}

impl<S: Simd> Products<S> for Pairs {
    // Each pair sum needs extra registers for intermediate results.
    const CHAINS: usize = if S::CHAINS < 6 { S::CHAINS } else { 6 };

    #[inline(always)]
    unsafe fn store(self, s: S, row: *mut f32, at: usize, v: S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe { s.store_bf16(row.cast::<u16>().add(at), v) }
    }
}

#[cfg(target_arch = "x86_64")]
mod native {
    use std::arch::x86_64::*;

    use super::Products;
    use crate::gemm_tile::NativePairs;
    use crate::simd::Simd;
    use crate::simd_x86::Avx512;

    impl Products<Avx512> for NativePairs {
        const CHAINS: usize = Avx512::CHAINS;

        #[inline(always)]
        unsafe fn store(self, _: Avx512, row: *mut f32, at: usize, v: __m512) {
            // SAFETY: the value exists only where the instruction does; the caller guarantees the memory.
            unsafe {
                let numbers = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
                _mm256_storeu_si256(row.cast::<u16>().add(at).cast(), numbers);
            }
        }
    }
}

/// Loads up to 16 words of a row whose memory already has the word layout; numbers past `n` are zero.
///
/// # Safety
///
/// `n` numbers must be readable at `p`.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, E: Element>(s: S, p: *const E, n: usize) -> S::V {
    // SAFETY: guaranteed by the caller; 16 words hold any `n` numbers of at most 16 words.
    unsafe {
        if n == LANES * E::GROUP {
            s.load_ptr(p.cast())
        } else if n.is_multiple_of(E::GROUP) {
            s.load_ptr_n(p.cast(), n / E::GROUP)
        } else {
            let mut words = [0.0_f32; LANES];
            std::ptr::copy_nonoverlapping(p, words.as_mut_ptr().cast(), n);
            s.load(&words)
        }
    }
}

/// Defines `unsafe fn name::<Format, …>(level, args…)` from a kernel `generic(s, m, args…)`, where `m: impl Products` is
/// the arithmetic of words of that format, using the processor's native instruction if it has one. With `<Left, Right>`,
/// operands may have different formats: the left one f32, the right one bf16.
macro_rules! products {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident<Left, Right>($($arg:ident: $ty:ty),* $(,)?) = $generic:path;) => {
        $(#[$meta])*
        $vis unsafe fn $name<Left: $crate::Element, Right: $crate::Element>(level: $crate::isa::Level, $($arg: $ty),*) {
            #[inline(always)]
            unsafe fn widened_generic<S: $crate::simd::Simd>(s: S, $($arg: $ty),*) {
                // SAFETY: the requirements are those of this function; also below.
                unsafe { $generic(s, $crate::gemm_widened::Widened, $($arg),*) }
            }
            $crate::simd::dispatch! {
                unsafe fn widened($($arg: $ty),*) = widened_generic;
            }
            $crate::attention::words::products! {
                unsafe fn of_one_format($($arg: $ty),*) = $generic;
            }
            // SAFETY: as above; a level exists only for an instruction set that was detected.
            unsafe {
                if Left::GROUP < Right::GROUP { widened(level, $($arg),*) } else { of_one_format::<Right>(level, $($arg),*) }
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident $([$gen:ident: $bound:path])? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:path;) => {
        $(#[$meta])*
        $vis unsafe fn $name<Format: $crate::Element $(, $gen: $bound)?>(level: $crate::isa::Level, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            unsafe fn singles_generic<S: $crate::simd::Simd $(, $gen: $bound)?>(s: S, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the requirements are those of this function; also below.
                unsafe { $generic(s, $crate::gemm_tile::Singles, $($arg),*) }
            }
            #[inline(always)]
            unsafe fn pairs_generic<S: $crate::simd::Simd $(, $gen: $bound)?>(s: S, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic(s, $crate::gemm_tile::Pairs, $($arg),*) }
            }
            $crate::simd::dispatch! {
                unsafe fn singles $([$gen: $bound])? ($($arg: $ty),*) $(-> $ret)? = singles_generic;
            }
            $crate::simd::dispatch! {
                unsafe fn pairs $([$gen: $bound])? ($($arg: $ty),*) $(-> $ret)? = pairs_generic;
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
            unsafe fn native$(<$gen: $bound>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above; called only for levels whose processor has the instructions.
                unsafe {
                    let (s, m) = ($crate::simd_x86::Avx512::detected($crate::Isa::Avx512Bf16), $crate::gemm_tile::NativePairs::detected());
                    $generic(s, m, $($arg),*)
                }
            }
            // SAFETY: as above; a level exists only for an instruction set that was detected.
            unsafe {
                match Format::GROUP {
                    1 => singles(level, $($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    _ if level.has_native_pairs() => native($($arg),*),
                    _ => pairs(level, $($arg),*),
                }
            }
        }
    };
}
pub(super) use products;
