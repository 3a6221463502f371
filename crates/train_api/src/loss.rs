//! The losses of the SDK as those of `rloom-algo`.
//!
//! With lp the log-probability of a target, q the one it was sampled with, ρ = exp(lp − q) and an advantage A, each is a sum over
//! all tokens, without a divisor:
//!
//! | name | term |
//! | --- | --- |
//! | `cross_entropy` | −w·lp |
//! | `importance_sampling` | −ρ·A |
//! | `ppo` | −min(ρ·A, clip(ρ, low, high)·A) |
//! | `cispo` | −sg(clip(ρ, low, high))·A·lp |
//! | `dro` | −A·lp + (β/2)·(lp − q)² |

use std::collections::BTreeMap;

use rloom_algo::losses::{Cispo, Dro, PpoClip, Reinforce};
use rloom_algo::{Aggregation, GlobalCounts, Level, Objective, PolicyLoss, PolicyObjective, Surrogate};
use rloom_core::{Purpose, RandomKey};

use crate::problem::Failed;

const LOW: &str = "clip_low_threshold";
const HIGH: &str = "clip_high_threshold";
const BETA: &str = "beta";
const OFFERED: &str = "cross_entropy, importance_sampling, ppo, cispo and dro";

/// A loss and the names of the tensors that it reads for each target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Loss {
    surrogate: Surrogate,
    /// Factor of each target: `weights` or `advantages`.
    pub(crate) factor: &'static str,
    /// True if it reads the log-probabilities of the sampler.
    pub(crate) reads_sampler: bool,
}

impl Loss {
    /// The loss with this name and these settings.
    pub(crate) fn new(name: &str, config: &BTreeMap<String, f64>) -> Result<Self, Failed> {
        let settings = Settings { name, config };
        let surrogate = match name {
            "cross_entropy" => {
                settings.only(&[])?;
                Surrogate::Reinforce(Reinforce { level: Level::Token })
            }
            "importance_sampling" => {
                settings.only(&[])?;
                // A clip from 0 to infinity.
                Surrogate::PpoClip(PpoClip { clip_low: 1.0, clip_high: f64::INFINITY, dual_clip: None })
            }
            "ppo" => {
                let (low, high) = settings.thresholds(0.8, 1.2)?;
                Surrogate::PpoClip(PpoClip { clip_low: 1.0 - low, clip_high: high - 1.0, dual_clip: None })
            }
            "cispo" => {
                let (low, high) = settings.thresholds(0.0, 4.0)?;
                Surrogate::Cispo(Cispo { weight_cap: high, weight_floor: low })
            }
            "dro" => {
                settings.only(&[BETA])?;
                let beta = settings.number(BETA, 0.1)?;
                if beta < 0.0 {
                    return Err(Failed::user(format!("`{BETA}` = {beta}: must be 0 or more")));
                }
                Surrogate::Dro(Dro { beta })
            }
            _ => {
                let name: String = name.chars().take(60).collect();
                return Err(Failed::user(format!("there is no loss `{name}`: this server has {OFFERED}")));
            }
        };
        let supervised = name == "cross_entropy";
        let factor = if supervised { "weights" } else { "advantages" };
        Ok(Self { surrogate, factor, reads_sampler: !supervised })
    }

    /// The objective whose value is the sum over all tokens.
    pub(crate) fn objective(&self) -> Objective {
        Objective::Policy(PolicyObjective {
            // Divided by the number of episodes, which is 1 by `sum_counts`.
            loss: PolicyLoss::new(self.surrogate, Aggregation::SequenceSum),
            draws: RandomKey::new(0, 0, Purpose::Algorithm, 0),
        })
    }
}

/// Counts of sequences that are one episode, so that their sum is not divided.
pub(crate) fn sum_counts(lengths: impl IntoIterator<Item = usize>) -> GlobalCounts {
    let counts = GlobalCounts::of_lengths(lengths, 0);
    GlobalCounts { further_segments: counts.sequences.saturating_sub(1), ..counts }
}

/// Settings of a request.
struct Settings<'a> {
    name: &'a str,
    config: &'a BTreeMap<String, f64>,
}

impl Settings<'_> {
    fn only(&self, keys: &[&str]) -> Result<(), Failed> {
        match self.config.keys().find(|key| !keys.contains(&key.as_str())) {
            Some(key) => {
                let key: String = key.chars().take(60).collect();
                Err(Failed::user(format!("`loss_fn_config`: {} has no setting `{key}`", self.name)))
            }
            None => Ok(()),
        }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, Failed> {
        let value = self.config.get(key).copied().unwrap_or(default);
        if value.is_finite() {
            Ok(value)
        } else {
            Err(Failed::user(format!("`{key}` = {value}: must be finite")))
        }
    }

    fn thresholds(&self, low: f64, high: f64) -> Result<(f64, f64), Failed> {
        self.only(&[LOW, HIGH])?;
        let (low, high) = (self.number(LOW, low)?, self.number(HIGH, high)?);
        if 0.0 <= low && low <= high {
            Ok((low, high))
        } else {
            let message = format!("`{LOW}` = {low} and `{HIGH}` = {high}: must be 0 ≤ low ≤ high");
            Err(Failed::user(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use rloom_algo::{LossInputs, LossStep, TokenScores};

    use super::*;

    fn config(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value)).collect()
    }

    /// Value and derivatives of a loss over two sequences of two and one token.
    fn evaluate(loss: &Loss, lp: [f32; 3], q: [f32; 3], factor: [f32; 3]) -> (f64, Vec<f32>) {
        let inputs = [LossInputs {
            rows: vec![0..2, 2..3],
            advantage: Some(factor.to_vec()),
            behavior: loss.reads_sampler.then(|| q.to_vec()),
            ..LossInputs::default()
        }];
        let step = LossStep::new(loss.objective(), sum_counts([2, 1]), &inputs);
        let scores = TokenScores { logprob: lp.to_vec(), entropy: vec![0.0; 3], ..TokenScores::default() };
        let grad = step.evaluate(0, &scores).unwrap();
        (grad.terms.loss(), grad.d_logprob)
    }

    /// The table at the top of this file.
    fn expected(name: &str, config: &BTreeMap<String, f64>, lp: f64, q: f64, a: f64, held: f64) -> f64 {
        let (low, high) = if name == "ppo" { (0.8, 1.2) } else { (0.0, 4.0) };
        let low = config.get(LOW).copied().unwrap_or(low);
        let high = config.get(HIGH).copied().unwrap_or(high);
        let ratio = (lp - q).exp();
        match name {
            "cross_entropy" => -a * lp,
            "importance_sampling" => -ratio * a,
            "ppo" => -(ratio * a).min(ratio.clamp(low, high) * a),
            "cispo" => -(held - q).exp().clamp(low, high) * a * lp,
            _ => -a * lp + 0.5 * config.get(BETA).copied().unwrap_or(0.1) * (lp - q).powi(2),
        }
    }

    #[test]
    fn losses_are_sums_of_their_terms_with_the_right_derivatives() {
        let settings = [
            ("cross_entropy", config(&[])),
            ("importance_sampling", config(&[])),
            ("ppo", config(&[])),
            ("ppo", config(&[(LOW, 0.5), (HIGH, 1.05)])),
            ("cispo", config(&[])),
            ("cispo", config(&[(LOW, 0.9), (HIGH, 1.1)])),
            ("dro", config(&[])),
            ("dro", config(&[(BETA, 2.0)])),
        ];
        let q = [-1.0_f32, -0.5, -3.0];
        for (name, config) in settings {
            let loss = Loss::new(name, &config).unwrap();
            for shift in [-1.0_f32, -0.15, 0.0, 0.15, 2.0] {
                let lp = q.map(|q| q + shift);
                for factor in [[1.0_f32, -2.0, 0.5], [-1.0, 0.0, 3.0]] {
                    let (value, gradient) = evaluate(&loss, lp, q, factor);
                    let term = |t: usize, x: f64| {
                        let [lp, q, a] = [lp, q, factor].map(|list| f64::from(list[t]));
                        expected(name, &config, x, q, a, lp)
                    };
                    let sum: f64 = (0..3).map(|t| term(t, f64::from(lp[t]))).sum();
                    assert!((value - sum).abs() < 1e-9 * (1.0 + sum.abs()), "{name}: {value} {sum}");
                    for t in 0..3 {
                        let (x, h) = (f64::from(lp[t]), 1e-5);
                        let slope = (term(t, x + h) - term(t, x - h)) / (2.0 * h);
                        let got = f64::from(gradient[t]);
                        assert!((got - slope).abs() < 1e-5 * (1.0 + slope.abs()), "{name}: {got} {slope}");
                    }
                }
            }
        }
    }

    #[test]
    fn settings_are_checked() {
        for (name, pairs, expected) in [
            ("gspo", &[][..], "there is no loss"),
            ("", &[], "there is no loss"),
            ("cross_entropy", &[(BETA, 1.0)], "no setting `beta`"),
            ("ppo", &[(BETA, 1.0)], "no setting `beta`"),
            ("ppo", &[(LOW, 1.3)], "low ≤ high"),
            ("cispo", &[(LOW, -0.1)], "low ≤ high"),
            ("cispo", &[(HIGH, f64::INFINITY)], "finite"),
            ("dro", &[(BETA, -1.0)], "0 or more"),
            ("dro", &[(BETA, f64::NAN)], "finite"),
        ] {
            let failed = Loss::new(name, &config(pairs)).unwrap_err();
            assert!(failed.is_of_user && failed.message.contains(expected), "{}", failed.message);
        }
    }
}
