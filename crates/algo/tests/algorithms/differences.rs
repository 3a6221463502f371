//! Finite differences: the coefficients are the derivatives of the loss that is reported.

use proptest::prelude::*;
use rloom_algo::{PolicyLoss, Surrogate};

use crate::step::{Step, losses, steps};

const H: f32 = 1.0 / 512.0;

/// Whether a step of H around the token could cross a clip.
fn near_a_kink(loss: &PolicyLoss, step: &Step, i: usize) -> bool {
    let Surrogate::PpoClip(clip) = loss.surrogate else { return false };
    let log_ratio = f64::from(step.logprob[i]) - f64::from(step.old[i]);
    [1.0 - clip.clip_low, 1.0 + clip.clip_high, clip.dual_clip.unwrap_or(1.0 + clip.clip_high)]
        .iter()
        .any(|bound| (log_ratio - bound.ln()).abs() < 2.0 * f64::from(H))
}

/// Central difference of the loss by one entry, with the step that `f32` really makes.
fn difference(step: &Step, loss: &PolicyLoss, entry: fn(&mut Step) -> &mut Vec<f32>, i: usize) -> f64 {
    let mut moved = step.clone();
    let at = entry(&mut moved)[i];
    let (up, down) = (at + H, at - H);
    entry(&mut moved)[i] = up;
    let high = moved.loss(loss).unwrap().terms.loss();
    entry(&mut moved)[i] = down;
    let low = moved.loss(loss).unwrap().terms.loss();
    (high - low) / (f64::from(up) - f64::from(down))
}

fn close(got: f32, wanted: f64) -> bool {
    (f64::from(got) - wanted).abs() <= 1e-4 * wanted.abs() + 1e-7
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn coefficients_are_derivatives(step in steps()) {
        for loss in losses() {
            let grad = step.loss(&loss).unwrap();
            for i in 0..step.logprob.len() {
                let wanted = difference(&step, &loss, |s| &mut s.entropy, i);
                prop_assert!(close(grad.d_entropy[i], wanted), "{:?} entropy {}: {} {}", loss, i, grad.d_entropy[i], wanted);
                if near_a_kink(&loss, &step, i) {
                    continue;
                }
                let wanted = difference(&step, &loss, |s| &mut s.logprob, i);
                prop_assert!(close(grad.d_logprob[i], wanted), "{:?} token {}: {} {}", loss, i, grad.d_logprob[i], wanted);
            }
        }
    }
}
