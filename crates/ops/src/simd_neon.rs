//! NEON as vectors of 16 lanes. Part of every 64-bit Arm processor, so the token needs no proof.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "NEON is always there on this architecture; memory is the duty of the caller, in the words of `Simd`"
)]

use std::arch::aarch64::*;

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
            let low = vaddq_f32(v.0[0], v.0[2]);
            let high = vaddq_f32(v.0[1], v.0[3]);
            let four = vaddq_f32(low, high);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}
