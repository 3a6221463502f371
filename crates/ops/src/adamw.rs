//! AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101): one pass over weight, moments and gradient.

use crate::disjoint::Disjoint;
use crate::{Buf, Ctx, partition};

/// The settings of one [`adamw`] step; names as in `torch.optim.AdamW`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled decay: the weight shrinks by `lr · weight_decay` of itself.
    pub weight_decay: f32,
    /// Number of this step, from 1; corrects the bias of the moments.
    pub step: u64,
    /// Multiplies the gradient as it is read (clipping, averaging), so that nobody has to write it again.
    pub grad_scale: f32,
}

/// One step on one tensor. Per element, with `g = grad · grad_scale`:
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
        // SAFETY: `for_rows2` gives every piece once, and pieces are disjoint.
        let v = unsafe { v.slice(first..first + count) };
        update(w, m, v, &grad[first..][..count], &factors);
    });
}

/// The numbers that are the same for every element, computed in f64.
#[derive(Clone, Copy)]
struct Factors {
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
    fn new(s: &AdamW) -> Self {
        let (beta1, beta2) = (f64::from(s.beta1), f64::from(s.beta2));
        let correction1 = 1.0 - beta1.powf(s.step as f64);
        let correction2 = 1.0 - beta2.powf(s.step as f64);
        Self {
            keep: (1.0 - f64::from(s.lr) * f64::from(s.weight_decay)) as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: s.beta2,
            one_minus_beta2: (1.0 - beta2) as f32,
            inverse_root_correction2: (1.0 / correction2.sqrt()) as f32,
            eps: s.eps,
            step_size: (f64::from(s.lr) / correction1) as f32,
            grad_scale: s.grad_scale,
        }
    }
}

fn update(w: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], f: &Factors) {
    for i in 0..w.len() {
        let g = grad[i] * f.grad_scale;
        m[i] = f.one_minus_beta1.mul_add(g - m[i], m[i]);
        v[i] = f.one_minus_beta2.mul_add(g * g, v[i] * f.beta2);
        let denominator = v[i].sqrt().mul_add(f.inverse_root_correction2, f.eps);
        w[i] = (-f.step_size).mul_add(m[i] / denominator, w[i] * f.keep);
    }
}
