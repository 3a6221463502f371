//! AVX2 as vectors of 16 lanes.
//!
//! Every `unsafe` block here relies on the same two facts. The intrinsics need their instruction set, whose presence
//! the token proves: `detected` is unsafe and called only after detection. Intrinsics that access memory leave its
//! validity to the caller of the method, as documented in [`Simd`].
#![expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all blocks, given above")]

use std::arch::asm;
use std::arch::x86_64::*;

use crate::simd::{LANES, Simd, Task};
use crate::simd_x86::{tree_max_256, tree_sum_256};

/// AVX2 with FMA: two registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn detected() -> Self {
        Self(())
    }
}

/// Lanes 0–7 and 8–15.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair(__m256, __m256);

/// A window into this, starting `8 - n` in, is a mask of the first `n` of eight lanes.
static TAIL: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Masks of the first `n` of 16 lanes, in halves.
#[inline(always)]
unsafe fn tail_masks(n: usize) -> (__m256i, __m256i) {
    debug_assert!(n <= LANES);
    let (low, high) = (n.min(8), n.saturating_sub(8).min(8));
    unsafe {
        (
            _mm256_loadu_si256(TAIL.as_ptr().add(8 - low).cast()),
            _mm256_loadu_si256(TAIL.as_ptr().add(8 - high).cast()),
        )
    }
}

macro_rules! pair {
    ($f:ident, $a:expr) => {
        unsafe { Pair($f($a.0), $f($a.1)) }
    };
    ($f:ident, $a:expr, $b:expr) => {
        unsafe { Pair($f($a.0, $b.0), $f($a.1, $b.1)) }
    };
}

macro_rules! pair_bits {
    ($f:expr, $a:expr $(, $b:expr)?) => {
        unsafe {
            Pair(
                _mm256_castsi256_ps($f(_mm256_castps_si256($a.0) $(, _mm256_castps_si256($b.0))?)),
                _mm256_castsi256_ps($f(_mm256_castps_si256($a.1) $(, _mm256_castps_si256($b.1))?)),
            )
        }
    };
}

/// Mask of the upper halves of 32-bit words.
#[inline(always)]
unsafe fn upper_halves() -> __m256i {
    unsafe { _mm256_set1_epi32(0xffff_0000_u32 as i32) }
}

/// Bits of the nearest bf16 numbers in the upper halves of the lanes; the lower halves are unspecified.
#[inline(always)]
unsafe fn rounded_256(v: __m256) -> __m256i {
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let increment = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        // Masks rather than blends, which are up to three instructions each. Infinity rounds to itself; a NaN must not
        // round to infinity.
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let rounded = _mm256_add_epi32(bits, _mm256_andnot_si256(nan, increment));
        let rounded = _mm256_or_si256(rounded, _mm256_and_si256(nan, _mm256_set1_epi32(0x0040_0000)));
        // Only the sign remains of numbers below the smallest normal one.
        let exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f80_0000));
        let tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
        _mm256_andnot_si256(_mm256_srli_epi32::<1>(tiny), rounded)
    }
}

/// The nearest bf16 numbers of two vectors, in the order of [`_mm256_packus_epi32`]: as [`rounded_256`], on both at once.
#[inline(always)]
unsafe fn rounded_512(v: Pair) -> __m256i {
    unsafe {
        let (a, b) = (_mm256_castps_si256(v.0), _mm256_castps_si256(v.1));
        let upper = _mm256_packus_epi32(_mm256_srli_epi32::<16>(a), _mm256_srli_epi32::<16>(b));
        let zero = _mm256_setzero_si256();
        let (a, b) = (_mm256_blend_epi16::<0xaa>(a, zero), _mm256_blend_epi16::<0xaa>(b, zero));
        let lower = _mm256_packus_epi32(a, b);
        // 1 where the lower half, plus one if the upper one is odd, is above a half.
        let (one, half) = (_mm256_set1_epi16(1), _mm256_set1_epi16(0x8000_u16 as i16));
        let above = _mm256_subs_epu16(_mm256_adds_epu16(lower, _mm256_and_si256(upper, one)), half);
        let increment = _mm256_min_epu16(above, one);
        let nan = |v| _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let nan = _mm256_packs_epi32(nan(v.0), nan(v.1));
        let rounded = _mm256_add_epi16(upper, _mm256_andnot_si256(nan, increment));
        let rounded = _mm256_or_si256(rounded, _mm256_and_si256(nan, _mm256_set1_epi16(0x0040)));
        let tiny = _mm256_cmpeq_epi16(_mm256_and_si256(upper, _mm256_set1_epi16(0x7f80)), zero);
        _mm256_andnot_si256(_mm256_srli_epi16::<1>(tiny), rounded)
    }
}

/// Words of the nearest bf16 numbers: `low` in the lower halves, `high` in the upper ones.
#[inline(always)]
unsafe fn words_256(low: __m256, high: __m256) -> __m256 {
    unsafe {
        let low = _mm256_srli_epi32::<16>(rounded_256(low));
        _mm256_castsi256_ps(_mm256_blend_epi16::<0xaa>(low, rounded_256(high)))
    }
}

/// The bf16 numbers in the upper halves of eight words. In assembly, so that the compiler does not keep the words that it
/// has loaded for the lower halves in registers, of which there are too few.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn high_halves(p: *const f32) -> __m256 {
    unsafe {
        let numbers: __m256;
        asm!(
            "vandps {0}, {1}, ymmword ptr [{2}]",
            out(ymm_reg) numbers, in(ymm_reg) upper_halves(), in(reg) p,
            options(pure, readonly, nostack, preserves_flags)
        );
        numbers
    }
}

/// Transposes a quarter, 8 × 8, in three stages, which interleave rows 1, 2 and 4 apart.
#[inline(always)]
unsafe fn transposed_quarter(rows: [__m256; 8]) -> [__m256; 8] {
    unsafe {
        let mut fours = [_mm256_setzero_ps(); 8];
        for q in 0..2 {
            let [a, b, c, d] = [rows[4 * q], rows[4 * q + 1], rows[4 * q + 2], rows[4 * q + 3]];
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (next_low, next_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            // Vector 4q + c holds, in its 128-bit part p, rows 4q to 4q + 3 of column 4p + c.
            fours[4 * q] = _mm256_shuffle_ps::<0x44>(low, next_low);
            fours[4 * q + 1] = _mm256_shuffle_ps::<0xee>(low, next_low);
            fours[4 * q + 2] = _mm256_shuffle_ps::<0x44>(high, next_high);
            fours[4 * q + 3] = _mm256_shuffle_ps::<0xee>(high, next_high);
        }
        let mut columns = fours;
        for c in 0..4 {
            columns[c] = _mm256_permute2f128_ps::<0x20>(fours[c], fours[4 + c]);
            columns[4 + c] = _mm256_permute2f128_ps::<0x31>(fours[c], fours[4 + c]);
        }
        columns
    }
}

/// Transposes by quarters.
#[inline(always)]
unsafe fn transpose_256(square: &mut [Pair; LANES]) {
    unsafe {
        let mut quarters = [[_mm256_setzero_ps(); 8]; 4];
        for i in 0..8 {
            (quarters[0][i], quarters[1][i]) = (square[i].0, square[8 + i].0);
            (quarters[2][i], quarters[3][i]) = (square[i].1, square[8 + i].1);
        }
        for quarter in &mut quarters {
            *quarter = transposed_quarter(*quarter);
        }
        for i in 0..8 {
            square[i] = Pair(quarters[0][i], quarters[1][i]);
            square[8 + i] = Pair(quarters[2][i], quarters[3][i]);
        }
    }
}

/// Tree sums of 16 vectors, of which two share each addition of the second level, four of the third, and so on.
#[inline(always)]
unsafe fn tree_sums_256(square: &[Pair; LANES]) -> Pair {
    unsafe {
        // Vectors i and i + 4 of a half end up in the two 128-bit parts.
        let mut fours = [_mm256_setzero_ps(); 8];
        for (i, four) in fours.iter_mut().enumerate() {
            let first = i / 4 * 8 + i % 4;
            let (a, b) = (square[first], square[first + 4]);
            let (a, b) = (_mm256_add_ps(a.0, a.1), _mm256_add_ps(b.0, b.1));
            *four = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        }
        let mut twos = [_mm256_setzero_ps(); 4];
        for (i, two) in twos.iter_mut().enumerate() {
            let (a, b) = (_mm256_castps_pd(fours[2 * i]), _mm256_castps_pd(fours[2 * i + 1]));
            let (low, high) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
            *two = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
        }
        let [a, b, c, d] = twos;
        Pair(
            _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b)),
            _mm256_add_ps(_mm256_shuffle_ps::<0x88>(c, d), _mm256_shuffle_ps::<0xdd>(c, d)),
        )
    }
}

impl Simd for Avx2 {
    type V = Pair;
    const CHAINS: usize = 6;

    #[inline(always)]
    unsafe fn outline<T: Task<Self>>(self, task: T) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn enter<T: Task<Avx2>>(s: Avx2, task: T) {
            // SAFETY: guaranteed by the caller.
            unsafe { task.run(s) }
        }
        // SAFETY: a token exists only where the instruction set was detected; the rest is guaranteed by the caller.
        unsafe { enter(self, task) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Pair {
        unsafe { Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn stream_ptr(self, p: *mut f32, v: Pair) {
        unsafe {
            _mm256_stream_ps(p, v.0);
            _mm256_stream_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    fn end_streams(self) {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Pair) {
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn store_half(self, p: *mut f32, v: Pair) {
        unsafe { _mm256_storeu_ps(p, v.0) }
    }
    #[inline(always)]
    unsafe fn load_ptr_n(self, p: *const f32, n: usize) -> Pair {
        unsafe {
            let (low, high) = tail_masks(n);
            // `wrapping_add`: with n ≤ 8 the second half may lie outside the slice, where the mask keeps it unread.
            Pair(_mm256_maskload_ps(p, low), _mm256_maskload_ps(p.wrapping_add(8), high))
        }
    }
    #[inline(always)]
    unsafe fn store_ptr_n(self, p: *mut f32, n: usize, v: Pair) {
        unsafe {
            let (low, high) = tail_masks(n);
            _mm256_maskstore_ps(p, low, v.0);
            _mm256_maskstore_ps(p.wrapping_add(8), high, v.1);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Pair {
        unsafe {
            let widen = |words| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)));
            Pair(widen(_mm_loadu_si128(p.cast())), widen(_mm_loadu_si128(p.add(8).cast())))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Pair {
        unsafe {
            let number = |eight| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
            Pair(number(_mm_loadl_epi64(p.cast())), number(_mm_loadl_epi64(p.add(8).cast())))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: Pair) {
        unsafe {
            // Packing works on the 128-bit parts separately.
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0xd8>(rounded_512(v)));
        }
    }
    #[inline(always)]
    fn rounded(self, v: Pair) -> Pair {
        self.high_half(unsafe {
            Pair(_mm256_castsi256_ps(rounded_256(v.0)), _mm256_castsi256_ps(rounded_256(v.1)))
        })
    }
    #[inline(always)]
    fn pair(self, low: Pair, high: Pair) -> Pair {
        unsafe { Pair(words_256(low.0, high.0), words_256(low.1, high.1)) }
    }
    #[inline(always)]
    unsafe fn load_high(self, p: *const f32) -> Pair {
        unsafe { Pair(high_halves(p), high_halves(p.add(8))) }
    }
    #[inline(always)]
    fn transpose(self, square: &mut [Pair; LANES]) {
        unsafe { transpose_256(square) }
    }
    #[inline(always)]
    unsafe fn store_columns(self, rows: &[Pair; LANES / 2], p: *mut f32, stride: usize) {
        unsafe {
            for (j, column) in transposed_quarter(rows.map(|row| row.0)).into_iter().enumerate() {
                _mm256_storeu_ps(p.add(j * stride), column);
            }
            for (j, column) in transposed_quarter(rows.map(|row| row.1)).into_iter().enumerate() {
                _mm256_storeu_ps(p.add((LANES / 2 + j) * stride), column);
            }
        }
    }
    #[inline(always)]
    fn sums(self, square: &[Pair; LANES]) -> Pair {
        unsafe { tree_sums_256(square) }
    }
    #[inline(always)]
    fn low_half(self, words: Pair) -> Pair {
        pair_bits!(_mm256_slli_epi32::<16>, words)
    }
    #[inline(always)]
    fn high_half(self, words: Pair) -> Pair {
        unsafe {
            let mask = _mm256_castsi256_ps(upper_halves());
            Pair(_mm256_and_ps(words.0, mask), _mm256_and_ps(words.1, mask))
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        let v = unsafe { _mm256_set1_ps(x) };
        Pair(v, v)
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        pair!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        pair!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        pair!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        pair!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: Pair) -> Pair {
        pair!(_mm256_sqrt_ps, a)
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        pair!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        pair!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn select_gt(self, a: Pair, b: Pair, x: Pair, y: Pair) -> Pair {
        unsafe {
            Pair(
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_GT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_GT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn xor(self, a: Pair, b: Pair) -> Pair {
        pair!(_mm256_xor_ps, a, b)
    }
    #[inline(always)]
    fn add_i32(self, a: Pair, b: Pair) -> Pair {
        pair_bits!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    fn sub_i32(self, a: Pair, b: Pair) -> Pair {
        pair_bits!(_mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    fn half_i32(self, a: Pair) -> Pair {
        pair_bits!(_mm256_srai_epi32::<1>, a)
    }
    #[inline(always)]
    fn to_exponent(self, a: Pair) -> Pair {
        pair_bits!(_mm256_slli_epi32::<23>, a)
    }
    #[inline(always)]
    fn sum(self, v: Pair) -> f32 {
        unsafe { tree_sum_256(_mm256_add_ps(v.0, v.1)) }
    }
    #[inline(always)]
    fn max_lane(self, v: Pair) -> f32 {
        unsafe { tree_max_256(_mm256_max_ps(v.0, v.1)) }
    }
}
