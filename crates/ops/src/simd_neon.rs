//! NEON as vectors of 16 lanes. Part of every 64-bit Arm processor, so the token needs no proof.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "NEON is always there on this architecture; memory is the duty of the caller, in the words of `Simd`"
)]

use std::arch::aarch64::*;
use std::arch::asm;

use crate::simd::{LANES, Simd, Task};

/// Four registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon;

/// Lanes 0–3, 4–7, 8–11, 12–15.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quad([float32x4_t; 4]);

impl Quad {
    #[inline(always)]
    fn each(f: impl FnMut(usize) -> float32x4_t) -> Self {
        Self(std::array::from_fn(f))
    }
}

#[inline(always)]
fn bits(v: float32x4_t) -> uint32x4_t {
    unsafe { vreinterpretq_u32_f32(v) }
}

#[inline(always)]
fn floats(v: uint32x4_t) -> float32x4_t {
    unsafe { vreinterpretq_f32_u32(v) }
}

/// Bits of the nearest bf16 numbers in the upper halves of the lanes; the lower halves are unspecified.
#[inline(always)]
fn rounded_bits(v: float32x4_t) -> uint32x4_t {
    unsafe {
        let all = bits(v);
        let odd = vandq_u32(vshrq_n_u32::<16>(all), vdupq_n_u32(1));
        let rounded = vaddq_u32(vaddq_u32(all, vdupq_n_u32(0x7fff)), odd);
        let tiny = vceqzq_u32(vandq_u32(all, vdupq_n_u32(0x7f80_0000)));
        let rounded = vbslq_u32(tiny, vandq_u32(all, vdupq_n_u32(0x8000_0000)), rounded);
        // Infinity rounds to itself; a NaN must not round to infinity.
        vbslq_u32(vceqq_f32(v, v), rounded, vorrq_u32(all, vdupq_n_u32(0x0040_0000)))
    }
}

#[inline(always)]
fn upper_halves(words: uint32x4_t) -> float32x4_t {
    floats(unsafe { vandq_u32(words, vdupq_n_u32(0xffff_0000)) })
}

/// The first two levels of the tree sum: lane `i` is the sum of lanes `i`, `i + 4`, `i + 8` and `i + 12`.
#[inline(always)]
fn four(v: Quad) -> float32x4_t {
    unsafe { vaddq_f32(vaddq_f32(v.0[0], v.0[2]), vaddq_f32(v.0[1], v.0[3])) }
}

/// Transposes a 4 × 4 matrix.
#[inline(always)]
fn transposed([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    unsafe {
        let wide = |v| vreinterpretq_f64_f32(v);
        let (even, odd) = (wide(vtrn1q_f32(a, b)), wide(vtrn2q_f32(a, b)));
        let (next_even, next_odd) = (wide(vtrn1q_f32(c, d)), wide(vtrn2q_f32(c, d)));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(even, next_even)),
            vreinterpretq_f32_f64(vtrn1q_f64(odd, next_odd)),
            vreinterpretq_f32_f64(vtrn2q_f64(even, next_even)),
            vreinterpretq_f32_f64(vtrn2q_f64(odd, next_odd)),
        ]
    }
}

impl Simd for Neon {
    type V = Quad;
    const CHAINS: usize = 6;

    #[inline(never)]
    unsafe fn outline<T: Task<Self>>(self, task: T) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run(self) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Quad {
        Quad::each(|i| unsafe { vld1q_f32(p.add(4 * i)) })
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Quad) {
        for (i, &q) in v.0.iter().enumerate() {
            unsafe { vst1q_f32(p.add(4 * i), q) }
        }
    }
    #[inline(always)]
    unsafe fn load_ptr_n(self, p: *const f32, n: usize) -> Quad {
        let mut lanes = [0.0; LANES];
        lanes[..n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        self.load(&lanes)
    }
    #[inline(always)]
    unsafe fn store_ptr_n(self, p: *mut f32, n: usize, v: Quad) {
        let lanes = self.to_array(v);
        unsafe { std::slice::from_raw_parts_mut(p, n) }.copy_from_slice(&lanes[..n]);
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Quad {
        Quad::each(|i| floats(unsafe { vshll_n_u16::<16>(vld1_u16(p.add(4 * i))) }))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: Quad) {
        for (i, &q) in v.0.iter().enumerate() {
            unsafe { vst1_u16(p.add(4 * i), vshrn_n_u32::<16>(rounded_bits(q))) }
        }
    }
    #[inline(always)]
    fn rounded(self, v: Quad) -> Quad {
        Quad::each(|i| upper_halves(rounded_bits(v.0[i])))
    }
    #[inline(always)]
    fn pair(self, low: Quad, high: Quad) -> Quad {
        // The upper halves of `high`, with those of `low` shifted below them.
        Quad::each(|i| floats(unsafe { vsriq_n_u32::<16>(rounded_bits(high.0[i]), rounded_bits(low.0[i])) }))
    }
    #[inline(always)]
    fn low_half(self, words: Quad) -> Quad {
        Quad::each(|i| floats(unsafe { vshlq_n_u32::<16>(bits(words.0[i])) }))
    }
    #[inline(always)]
    fn high_half(self, words: Quad) -> Quad {
        Quad::each(|i| upper_halves(bits(words.0[i])))
    }
    #[inline(always)]
    unsafe fn store_half(self, p: *mut f32, v: Quad) {
        unsafe {
            vst1q_f32(p, v.0[0]);
            vst1q_f32(p.add(4), v.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_columns(self, rows: &[Quad; LANES / 2], p: *mut f32, stride: usize) {
        for part in 0..4 {
            let [first, second] =
                [0, 4].map(|start| transposed(std::array::from_fn(|i| rows[start + i].0[part])));
            for (j, (first, second)) in first.into_iter().zip(second).enumerate() {
                unsafe {
                    let to = p.add((4 * part + j) * stride);
                    vst1q_f32(to, first);
                    vst1q_f32(to.add(4), second);
                }
            }
        }
    }
    #[inline(always)]
    fn transpose(self, square: &mut [Quad; LANES]) {
        let rows = *square;
        for down in 0..4 {
            for across in 0..4 {
                let block = transposed(std::array::from_fn(|i| rows[4 * down + i].0[across]));
                for (i, row) in block.into_iter().enumerate() {
                    square[4 * across + i].0[down] = row;
                }
            }
        }
    }
    #[inline(always)]
    fn sums(self, square: &[Quad; LANES]) -> Quad {
        Quad::each(|part| {
            let fours = std::array::from_fn(|i| four(square[4 * part + i]));
            let [a, b, c, d] = transposed(fours);
            unsafe { vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)) }
        })
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Quad {
        unsafe {
            let integers = vld1q_s8(p);
            let halves = [vmovl_s8(vget_low_s8(integers)), vmovl_s8(vget_high_s8(integers))];
            let [low, high] = halves.map(|half| {
                let words = [vmovl_s16(vget_low_s16(half)), vmovl_s16(vget_high_s16(half))];
                words.map(|words| vcvtq_f32_s32(words))
            });
            Quad([low[0], low[1], high[0], high[1]])
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Quad {
        Quad([unsafe { vdupq_n_f32(x) }; 4])
    }
    #[inline(always)]
    fn add(self, a: Quad, b: Quad) -> Quad {
        Quad::each(|i| unsafe { vaddq_f32(a.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn sub(self, a: Quad, b: Quad) -> Quad {
        Quad::each(|i| unsafe { vsubq_f32(a.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn mul(self, a: Quad, b: Quad) -> Quad {
        Quad::each(|i| unsafe { vmulq_f32(a.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn div(self, a: Quad, b: Quad) -> Quad {
        Quad::each(|i| unsafe { vdivq_f32(a.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn sqrt(self, a: Quad) -> Quad {
        Quad::each(|i| unsafe { vsqrtq_f32(a.0[i]) })
    }
    #[inline(always)]
    fn fma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        Quad::each(|i| unsafe { vfmaq_f32(c.0[i], a.0[i], b.0[i]) })
    }
    // Not `vmaxq_f32`: it returns NaN where the definition requires the second argument.
    #[inline(always)]
    fn max(self, a: Quad, b: Quad) -> Quad {
        self.select_gt(a, b, a, b)
    }
    #[inline(always)]
    fn min(self, a: Quad, b: Quad) -> Quad {
        self.select_gt(b, a, a, b)
    }
    #[inline(always)]
    fn select_gt(self, a: Quad, b: Quad, x: Quad, y: Quad) -> Quad {
        Quad::each(|i| unsafe { vbslq_f32(vcgtq_f32(a.0[i], b.0[i]), x.0[i], y.0[i]) })
    }
    #[inline(always)]
    fn xor(self, a: Quad, b: Quad) -> Quad {
        Quad::each(|i| floats(unsafe { veorq_u32(bits(a.0[i]), bits(b.0[i])) }))
    }
    #[inline(always)]
    fn add_i32(self, a: Quad, b: Quad) -> Quad {
        Quad::each(|i| floats(unsafe { vaddq_u32(bits(a.0[i]), bits(b.0[i])) }))
    }
    #[inline(always)]
    fn sub_i32(self, a: Quad, b: Quad) -> Quad {
        Quad::each(|i| floats(unsafe { vsubq_u32(bits(a.0[i]), bits(b.0[i])) }))
    }
    #[inline(always)]
    fn half_i32(self, a: Quad) -> Quad {
        Quad::each(|i| unsafe { vreinterpretq_f32_s32(vshrq_n_s32::<1>(vreinterpretq_s32_f32(a.0[i]))) })
    }
    #[inline(always)]
    fn to_exponent(self, a: Quad) -> Quad {
        Quad::each(|i| floats(unsafe { vshlq_n_u32::<23>(bits(a.0[i])) }))
    }
    #[inline(always)]
    fn sum(self, v: Quad) -> f32 {
        unsafe {
            let four = four(v);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}
