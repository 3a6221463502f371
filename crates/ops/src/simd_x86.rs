//! AVX-512 as vectors of 16 lanes.
//!
//! Every `unsafe` block here relies on the same two facts. The intrinsics need their instruction set, whose presence
//! the token proves: `detected` is unsafe and called only after detection. Intrinsics that access memory leave its
//! validity to the caller of the method, as documented in [`Simd`].
#![expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all blocks, given above")]

use std::arch::asm;
use std::arch::x86_64::*;

use crate::Isa;
use crate::simd::{LANES, Simd, Task};

/// AVX-512: one register.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512 {
    /// True if there is an instruction that rounds to bf16.
    rounds: bool,
}

impl Avx512 {
    /// # Safety
    /// The processor must have the instruction set, which must be one of those with AVX-512.
    #[inline(always)]
    pub(crate) unsafe fn detected(isa: Isa) -> Self {
        Self { rounds: isa != Isa::Avx512 }
    }
}

#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    ((1_u32 << n) - 1) as __mmask16
}

/// Bits of the nearest bf16 numbers in the upper halves of the lanes; the lower halves are unspecified.
#[inline(always)]
unsafe fn rounded(v: __m512) -> __m512i {
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let exponent = _mm512_and_si512(bits, _mm512_set1_epi32(0x7f80_0000));
        let tiny = _mm512_testn_epi32_mask(exponent, exponent);
        let rounded = _mm512_mask_and_epi32(rounded, tiny, bits, _mm512_set1_epi32(0x8000_0000_u32 as i32));
        // Infinity rounds to itself; a NaN must not round to infinity.
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000))
    }
}

/// As [`rounded`], by the instruction of AVX-512 BF16. In assembly, because inlining the intrinsic would require
/// compiling the calling function for that instruction set alone.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn narrowed(v: __m512) -> __m256i {
    unsafe {
        let numbers: __m256i;
        asm!("vcvtneps2bf16 {0:y}, {1}", out(zmm_reg) numbers, in(zmm_reg) v, options(pure, nomem, nostack, preserves_flags));
        numbers
    }
}

/// As [`narrowed`], for two vectors: `low` in the lower half.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn narrowed_both(low: __m512, high: __m512) -> __m512i {
    unsafe {
        let numbers: __m512i;
        asm!("vcvtne2ps2bf16 {0}, {2}, {1}", out(zmm_reg) numbers, in(zmm_reg) low, in(zmm_reg) high, options(pure, nomem, nostack, preserves_flags));
        numbers
    }
}

/// Source index of each 16-bit number of pairs: alternately from the lower and the upper half of a register.
static PAIRS: [u16; 2 * LANES] = {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < 2 * LANES {
        order[i] = (i / 2 + i % 2 * LANES) as u16;
        i += 1;
    }
    order
};

#[inline(always)]
unsafe fn pairs() -> __m512i {
    // The array is as long as a register.
    unsafe { _mm512_loadu_si512(PAIRS.as_ptr().cast()) }
}

/// Transposes in four stages, which interleave rows 1, 2, 4 and 8 apart.
#[inline(always)]
unsafe fn transpose(square: &mut [__m512; LANES]) {
    unsafe {
        let mut pairs = [_mm512_setzero_ps(); LANES];
        for i in (0..LANES).step_by(2) {
            pairs[i] = _mm512_unpacklo_ps(square[i], square[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_ps(square[i], square[i + 1]);
        }
        // Vector 4q + c now holds, in its 128-bit part p, rows 4q to 4q + 3 of column 4p + c.
        let mut fours = [_mm512_setzero_ps(); LANES];
        for q in (0..LANES).step_by(4) {
            for half in 0..2 {
                let (a, b) = (_mm512_castps_pd(pairs[q + half]), _mm512_castps_pd(pairs[q + half + 2]));
                fours[q + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[q + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        for c in 0..4 {
            let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
            let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(d, e)];
            let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(d, e)];
            square[c] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
            square[8 + c] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
            square[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
            square[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
        }
    }
}

/// Tree sums of 16 vectors, of which two share each addition of the first level, four of the second, and so on.
#[inline(always)]
unsafe fn tree_sums(square: &[__m512; LANES]) -> __m512 {
    unsafe {
        let mut eights = [_mm512_setzero_ps(); 8];
        let mut fours = [_mm512_setzero_ps(); 4];
        // Vectors j, 4 + j, 8 + j and 12 + j end up in lane j of the four 128-bit parts.
        for j in 0..4 {
            for half in 0..2 {
                let (a, b) = (square[8 * half + j], square[8 * half + 4 + j]);
                let (low, high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
                eights[2 * j + half] = _mm512_add_ps(low, high);
            }
            let (a, b) = (eights[2 * j], eights[2 * j + 1]);
            let (low, high) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            fours[j] = _mm512_add_ps(low, high);
        }
        let mut twos = [_mm512_setzero_ps(); 2];
        for (i, two) in twos.iter_mut().enumerate() {
            let (a, b) = (_mm512_castps_pd(fours[2 * i]), _mm512_castps_pd(fours[2 * i + 1]));
            let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
            *two = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        }
        let (a, b) = (twos[0], twos[1]);
        _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b))
    }
}

macro_rules! bits512 {
    ($f:ident, $a:expr $(, $b:expr)?) => {
        unsafe { _mm512_castsi512_ps($f(_mm512_castps_si512($a) $(, _mm512_castps_si512($b))?)) }
    };
}

impl Simd for Avx512 {
    type V = __m512;
    const TILE_ROWS: usize = 8;
    const CHAINS: usize = 24;

    #[inline(always)]
    unsafe fn outline<T: Task<Self>>(self, task: T) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
        unsafe fn enter<T: Task<Avx512>>(s: Avx512, task: T) {
            // SAFETY: guaranteed by the caller.
            unsafe { task.run(s) }
        }
        // SAFETY: a token exists only where the instruction set was detected; the rest is guaranteed by the caller.
        unsafe { enter(self, task) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn stream_ptr(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_stream_ps(p, v) }
    }
    #[inline(always)]
    fn end_streams(self) {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() }
    }
    #[inline(always)]
    unsafe fn store_half(self, p: *mut f32, v: __m512) {
        unsafe { _mm256_storeu_ps(p, _mm512_castps512_ps256(v)) }
    }
    #[inline(always)]
    unsafe fn load_ptr_n(self, p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first_lanes(n), p) }
    }
    #[inline(always)]
    unsafe fn store_ptr_n(self, p: *mut f32, n: usize, v: __m512) {
        unsafe { _mm512_mask_storeu_ps(p, first_lanes(n), v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: __m512) {
        unsafe {
            let numbers = if self.rounds {
                narrowed(v)
            } else {
                _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(v)))
            };
            _mm256_storeu_si256(p.cast(), numbers);
        }
    }
    #[inline(always)]
    fn low_half(self, words: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(words))) }
    }
    #[inline(always)]
    fn high_half(self, words: __m512) -> __m512 {
        unsafe {
            let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(words), mask))
        }
    }
    #[inline(always)]
    fn rounded(self, v: __m512) -> __m512 {
        unsafe {
            let bits = if self.rounds {
                _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrowed(v)))
            } else {
                _mm512_and_si512(rounded(v), _mm512_set1_epi32(0xffff_0000_u32 as i32))
            };
            _mm512_castsi512_ps(bits)
        }
    }
    #[inline(always)]
    fn pair(self, low: __m512, high: __m512) -> __m512 {
        unsafe {
            if self.rounds {
                return _mm512_castsi512_ps(_mm512_permutexvar_epi16(pairs(), narrowed_both(low, high)));
            }
            let low = _mm512_srli_epi32::<16>(rounded(low));
            _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaa_aaaa, low, rounded(high)))
        }
    }
    #[inline(always)]
    unsafe fn interleave(self, low: *const u16, high: *const u16) -> __m512 {
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.cast()));
            let numbers = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(high.cast()));
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(pairs(), numbers))
        }
    }
    #[inline(always)]
    fn narrow(self, low: __m512, high: __m512) -> __m512 {
        unsafe {
            if self.rounds {
                return _mm512_castsi512_ps(narrowed_both(low, high));
            }
            let numbers = |v| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(v)));
            let low = _mm512_castsi256_si512(numbers(low));
            _mm512_castsi512_ps(_mm512_inserti64x4::<1>(low, numbers(high)))
        }
    }
    #[inline(always)]
    fn transpose(self, square: &mut [__m512; LANES]) {
        unsafe { transpose(square) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn select_gt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn xor(self, a: __m512, b: __m512) -> __m512 {
        bits512!(_mm512_xor_si512, a, b)
    }
    #[inline(always)]
    fn add_i32(self, a: __m512, b: __m512) -> __m512 {
        bits512!(_mm512_add_epi32, a, b)
    }
    #[inline(always)]
    fn sub_i32(self, a: __m512, b: __m512) -> __m512 {
        bits512!(_mm512_sub_epi32, a, b)
    }
    #[inline(always)]
    fn half_i32(self, a: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_srai_epi32::<1>(_mm512_castps_si512(a))) }
    }
    #[inline(always)]
    fn to_exponent(self, a: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(a))) }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        unsafe { tree_sum_256(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        unsafe { tree_max_256(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }
    #[inline(always)]
    fn sums(self, square: &[__m512; LANES]) -> __m512 {
        unsafe { tree_sums(square) }
    }
}

/// The lower three levels of the tree: 8 lanes to 1.
#[inline(always)]
pub(crate) unsafe fn tree_sum_256(v: __m256) -> f32 {
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// As [`tree_sum_256`], for the largest.
#[inline(always)]
pub(crate) unsafe fn tree_max_256(v: __m256) -> f32 {
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }
}
