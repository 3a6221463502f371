//! AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101): one pass over weight, moments and gradient.

use crate::disjoint::Disjoint;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, lanes, partition};

/// Settings of one [`adamw`] step; names as in `torch.optim.AdamW`. They are f64, as in PyTorch: `1 − 0.999` computed
/// in f32 has a relative error of 1.3e-5, which would carry over to every second moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay: the weight shrinks by a fraction of `lr · weight_decay`.
    pub weight_decay: f64,
    /// Index of this step, starting at 1; used for bias correction of the moments.
    pub step: u64,
    /// Factor applied to the gradient as it is read (clipping, averaging); saves a separate pass over it.
    pub grad_scale: f32,
}

/// One AdamW step on one tensor. Per element, with `g = grad · grad_scale`:
/// `m ← m + (1 − β₁)(g − m)`, `v ← β₂ v + (1 − β₂) g²`,
/// `w ← w (1 − lr · wd) − lr / (1 − β₁ᵗ) · m / (sqrt(v) / sqrt(1 − β₂ᵗ) + eps)`.
///
/// # Panics
///
/// If the lengths differ or `step` is 0.
pub fn adamw(ctx: &Ctx, w: &mut Buf, m: &mut Buf, v: &mut Buf, grad: &Buf, settings: &AdamW) {
    let n = w.len();
    assert!(m.len() == n && v.len() == n && grad.len() == n, "adamw: lengths differ");
    assert!(settings.step > 0, "adamw: steps count from 1");
    let factors = Factors::new(settings);
    let grad = grad.as_slice();
    let v = Disjoint::new(v.as_mut_slice());
    partition::for_rows2(ctx, w.as_mut_slice(), 1, m.as_mut_slice(), 1, |first, count, w, m| {
        // SAFETY: `for_rows2` visits every piece once, and pieces are disjoint.
        let v = unsafe { v.slice(first..first + count) };
        update(ctx.level(), w, m, v, &grad[first..][..count], &factors);
    });
}

/// Factors common to all elements, computed in f64 and rounded once.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    keep: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    inverse_root_correction2: f32,
    eps: f32,
    step_size: f32,
    grad_scale: f32,
}

impl Factors {
    pub(crate) fn new(s: &AdamW) -> Self {
        let correction1 = 1.0 - s.beta1.powf(s.step as f64);
        let correction2 = 1.0 - s.beta2.powf(s.step as f64);
        Self {
            keep: (1.0 - s.lr * s.weight_decay) as f32,
            one_minus_beta1: (1.0 - s.beta1) as f32,
            beta2: s.beta2 as f32,
            one_minus_beta2: (1.0 - s.beta2) as f32,
            inverse_root_correction2: (1.0 / correction2.sqrt()) as f32,
            eps: s.eps as f32,
            step_size: (s.lr / correction1) as f32,
            grad_scale: s.grad_scale,
        }
    }
}

dispatch! {
    pub(crate) fn update(w: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], f: &Factors) = update_generic;
}

#[inline(always)]
fn update_generic<S: Simd>(s: S, w: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], f: &Factors) {
    let (grad_scale, keep, eps) = (s.splat(f.grad_scale), s.splat(f.keep), s.splat(f.eps));
    let (gain1, beta2, gain2) = (s.splat(f.one_minus_beta1), s.splat(f.beta2), s.splat(f.one_minus_beta2));
    let (inverse_root, step) = (s.splat(f.inverse_root_correction2), s.splat(-f.step_size));
    let state = w.chunks_mut(LANES).zip(m.chunks_mut(LANES)).zip(v.chunks_mut(LANES));
    for (((w, m), v), grad) in state.zip(grad.chunks(LANES)) {
        let g = s.mul(lanes::load(s, grad), grad_scale);
        let old = lanes::load(s, m);
        let mean = s.fma(gain1, s.sub(g, old), old);
        lanes::store(s, m, mean);
        let square = s.fma(gain2, s.mul(g, g), s.mul(lanes::load(s, v), beta2));
        lanes::store(s, v, square);
        let denominator = s.fma(s.sqrt(square), inverse_root, eps);
        lanes::store(s, w, s.fma(step, s.div(mean, denominator), s.mul(lanes::load(s, w), keep)));
    }
}
