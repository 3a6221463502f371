//! An independent, slow implementation of the losses from their papers in f64. Quantities held constant are evaluated
//! at a separate point, so that finite differences exclude them.

use rloom_algo::{
    Aggregation, ClipCov, Correction, ExactSum, KlEstimator, KlLoss, Level, LossKind, PolicyLoss, PpoClip,
    RatioTo, RejectLevel, Scope, Surrogate, ValueLoss, WeightAction, WeightLevel,
};

use crate::step::{Step, draw};

/// Variables of the derivative.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) lp: Vec<f64>,
    pub(crate) entropy: Vec<f64>,
    pub(crate) value: Vec<f64>,
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

impl Point {
    pub(crate) fn of(step: &Step) -> Self {
        Self { lp: wide(&step.logprob), entropy: wide(&step.entropy), value: wide(&step.value) }
    }
}

/// The constants of a step and a loss.
pub(crate) struct Held<'a> {
    loss: &'a PolicyLoss,
    step: &'a Step,
    /// Point at which constant quantities are evaluated.
    lp: Vec<f64>,
    /// Proximal policy.
    proximal: Vec<f64>,
    behavior: Vec<f64>,
    reference: Vec<f64>,
    advantage: Vec<f64>,
    weight: Vec<f64>,
    picked: Vec<bool>,
    rows: Vec<Row>,
}

struct Row {
    tokens: std::ops::Range<usize>,
    is_masked: bool,
    outcome: f64,
}

impl<'a> Held<'a> {
    pub(crate) fn new(loss: &'a PolicyLoss, step: &'a Step) -> Self {
        let (lp, behavior) = (wide(&step.logprob), wide(&step.behavior));
        let rows = step
            .rows(0..step.lengths.len())
            .into_iter()
            .enumerate()
            .filter(|(_, tokens)| !tokens.is_empty())
            .map(|(i, tokens)| Row {
                tokens,
                is_masked: step.masked.get(i).copied().unwrap_or(false),
                outcome: step.outcome.get(i).copied().unwrap_or(0.0).into(),
            })
            .collect();
        let proximal = if step.interpolation.is_empty() {
            wide(&step.old)
        } else {
            let alpha = wide(&step.interpolation);
            (0..lp.len()).map(|t| behavior[t] + alpha[t] * (lp[t] - behavior[t])).collect()
        };
        let mut held = Self {
            loss,
            step,
            proximal,
            behavior,
            reference: wide(&step.reference),
            advantage: wide(&step.advantage),
            weight: vec![1.0; lp.len()],
            picked: vec![false; lp.len()],
            lp,
            rows,
        };
        held.weight = held.weights(&loss.correction);
        if loss.scope() == Scope::Step {
            held.picked = held.picks();
        }
        held
    }

    fn base(&self) -> &[f64] {
        if self.loss.ratio_to == RatioTo::Behavior { &self.behavior } else { &self.proximal }
    }

    fn weights(&self, correction: &Correction) -> Vec<f64> {
        let mut out = vec![1.0; self.lp.len()];
        for row in &self.rows {
            // Without a ratio the weight uses the current policy, as there is one step per batch.
            let base = if self.loss.surrogate.has_ratio() { &self.proximal } else { &self.lp };
            let d: Vec<f64> = row.tokens.clone().map(|t| base[t] - self.behavior[t]).collect();
            let (sum, n) = (d.iter().sum::<f64>(), d.len() as f64);
            for (i, t) in row.tokens.clone().enumerate() {
                if let Some(w) = correction.weight {
                    let x = match w.level {
                        WeightLevel::Token => d[i],
                        WeightLevel::Sequence => sum,
                        WeightLevel::Geometric => sum / n,
                    };
                    let x = x.clamp(-20.0, 20.0).exp();
                    out[t] = match w.action {
                        WeightAction::Clamp => x.clamp(w.low, w.high),
                        WeightAction::Mask => x * f64::from(u8::from(x >= w.low && x <= w.high)),
                    };
                }
                let Some(r) = correction.rejection else { continue };
                let k = |d: f64| match r.estimator {
                    KlEstimator::K1 => -d,
                    KlEstimator::K2 => d * d / 2.0,
                    KlEstimator::K3 | KlEstimator::K3Plus => d.exp() - d - 1.0,
                };
                let divergence = match r.level {
                    RejectLevel::Token => k(d[i]),
                    RejectLevel::SequenceMean => d.iter().map(|&d| k(d)).sum::<f64>() / n,
                    RejectLevel::SequenceMax => d.iter().map(|&d| k(d)).fold(f64::NEG_INFINITY, f64::max),
                };
                if divergence > r.high || divergence < r.low {
                    out[t] = 0.0;
                }
            }
        }
        out
    }

    fn picks(&self) -> Vec<bool> {
        let tokens: Vec<usize> =
            self.rows.iter().filter(|r| !r.is_masked).flat_map(|r| r.tokens.clone()).collect();
        let mut picked = vec![false; self.lp.len()];
        if tokens.is_empty() {
            return picked;
        }
        let mean = |values: &[f64]| {
            let mut sum = ExactSum::new();
            sum.extend(tokens.iter().map(|&t| values[t]));
            sum.value() / tokens.len() as f64
        };
        let (a, old) = (mean(&self.advantage), mean(self.base()));
        let c = |t: usize| (self.advantage[t] - a) * (self.base()[t] - old);
        let mut order = tokens.clone();
        let share = match self.loss.surrogate {
            Surrogate::ClipCov(cov) => {
                let clip = clip_of(&cov);
                let ratio = |t: usize| (self.lp[t] - self.base()[t]).exp();
                order.retain(|&t| {
                    c(t) > cov.cov_low
                        && c(t) < cov.cov_high
                        && !is_clipped(&clip, ratio(t), self.advantage[t])
                });
                order.sort_by_key(|&t| draw(t as u64));
                cov.cov_share
            }
            Surrogate::KlCov(kl) => {
                order.sort_by(|&s, &t| c(t).total_cmp(&c(s)));
                kl.cov_share
            }
            _ => unreachable!(),
        };
        let count = ((share * tokens.len() as f64).floor() as usize).max(1);
        order.iter().take(count).for_each(|&t| picked[t] = true);
        picked
    }

    fn per_sequence(&self) -> bool {
        match self.loss.surrogate {
            Surrogate::Reinforce(reinforce) => reinforce.level == Level::Sequence,
            Surrogate::Gspo(_) | Surrogate::Gmpo(_) | Surrogate::ImplicitReward(_) => true,
            _ => false,
        }
    }

    /// One term of a whole sequence.
    fn of_sequence(&self, row: &Row, lp: &[f64]) -> f64 {
        let tokens = row.tokens.clone();
        let n = tokens.len() as f64;
        let a = self.advantage.get(tokens.start).copied().unwrap_or(0.0);
        let d: Vec<f64> = tokens.clone().map(|t| lp[t] - self.base().get(t).unwrap_or(&0.0)).collect();
        match self.loss.surrogate {
            Surrogate::Reinforce(_) => -a * tokens.map(|t| lp[t]).sum::<f64>(),
            Surrogate::Gspo(gspo) => {
                let s = (d.iter().sum::<f64>() / n).exp();
                -(s * a).min(s.clamp(1.0 - gspo.clip_low, 1.0 + gspo.clip_high) * a)
            }
            Surrogate::Gmpo(gmpo) => {
                let sign = if a > 0.0 { 1.0 } else { -1.0 };
                let bounded = |d: f64| sign * (sign * d).min(sign * d.clamp(-gmpo.clip_low, gmpo.clip_high));
                -a * (d.iter().map(|&d| bounded(d)).sum::<f64>() / n).exp()
            }
            Surrogate::ImplicitReward(prm) => {
                let s: f64 = tokens.map(|t| prm.beta * (lp[t] - self.reference[t])).sum();
                let p = 1.0 / (1.0 + (-s).exp());
                -row.outcome * p.ln() - (1.0 - row.outcome) * (1.0 - p).ln()
            }
            _ => unreachable!(),
        }
    }

    fn of_token(&self, row: &Row, t: usize, lp: &[f64]) -> f64 {
        let a = self.advantage.get(t).copied().unwrap_or(0.0);
        let now = |t: usize| (lp[t] - self.base()[t]).exp();
        let held = |t: usize| (self.lp[t] - self.base()[t]).exp();
        let to_sampler = |t: usize| self.lp[t] - self.behavior[t];
        match self.loss.surrogate {
            Surrogate::Sft(_) => -lp[t],
            // The weight is the probability at the point.
            Surrogate::Dft(_) => -self.lp[t].exp() * lp[t],
            Surrogate::Reinforce(_) => -a * lp[t],
            Surrogate::PpoClip(clip) => ppo(&clip, now(t), a),
            Surrogate::ClipCov(_) if self.picked[t] => 0.0,
            Surrogate::ClipCov(cov) => ppo(&clip_of(&cov), now(t), a),
            Surrogate::KlCov(cov) => {
                let penalty =
                    if self.picked[t] { cov.cov_coef * (lp[t] - self.base()[t]).abs() } else { 0.0 };
                -now(t) * a + penalty
            }
            Surrogate::GspoToken(gspo) => {
                let n = row.tokens.len() as f64;
                let s = row.tokens.clone().map(|t| held(t).ln()).sum::<f64>() / n;
                let s = s.exp() * (lp[t] - self.lp[t]).exp();
                -(s * a).min(s.clamp(1.0 - gspo.clip_low, 1.0 + gspo.clip_high) * a)
            }
            Surrogate::Cispo(cispo) => -held(t).clamp(cispo.weight_floor, cispo.weight_cap) * a * lp[t],
            Surrogate::Sapo(sapo) => {
                let tau = if a > 0.0 { sapo.tau_positive } else { sapo.tau_negative };
                -a * 4.0 / tau / (1.0 + (-tau * (now(t) - 1.0)).exp())
            }
            Surrogate::Topr(topr) => {
                let d = match topr.level {
                    Level::Token => to_sampler(t),
                    Level::Sequence => row.tokens.clone().map(to_sampler).sum(),
                };
                -if a >= 0.0 { 1.0 } else { d.exp().min(1.0) } * a * lp[t]
            }
            Surrogate::DppoTv(dppo) => {
                let (p, q) = (self.lp[t].exp(), self.behavior[t].exp());
                let is_dropped = (p - q).abs() > dppo.divergence_limit && (p - q) * a > 0.0;
                if is_dropped { 0.0 } else { -to_sampler(t).exp().min(dppo.weight_cap) * a * lp[t] }
            }
            Surrogate::DppoKl(dppo) => {
                let (p, q) = (self.lp[t].exp(), self.behavior[t].exp());
                let divergence = q * (q / p).ln() + (1.0 - q) * ((1.0 - q) / (1.0 - p)).ln();
                let is_dropped = divergence > dppo.divergence_limit && (p - q) * a > 0.0;
                if is_dropped { 0.0 } else { -to_sampler(t).exp().min(dppo.weight_cap) * a * lp[t] }
            }
            _ => unreachable!(),
        }
    }

    /// Sums a per-token term over the trained rows, divided by the loss's normaliser.
    fn aggregate(&self, term: impl Fn(&Row, usize) -> f64) -> f64 {
        let counts = self.step.counts();
        let (tokens, sequences) = (counts.tokens as f64, counts.sequences as f64);
        self.rows
            .iter()
            .filter(|row| !row.is_masked)
            .map(|row| {
                let sum: f64 = row.tokens.clone().map(|t| term(row, t)).sum();
                match self.loss.aggregation {
                    Aggregation::TokenMean => sum / tokens,
                    Aggregation::SequenceMean => sum / row.tokens.len() as f64 / sequences,
                    Aggregation::ConstantLength => sum / counts.completion_limit as f64 / sequences,
                    Aggregation::SequenceSum => sum / sequences,
                }
            })
            .sum()
    }

    fn kl(&self, kl: &KlLoss, t: usize, lp: &[f64]) -> f64 {
        let value = |lp: f64, estimator| {
            let d = self.reference[t] - lp;
            match estimator {
                KlEstimator::K1 => -d,
                KlEstimator::K2 => d * d / 2.0,
                KlEstimator::K3 | KlEstimator::K3Plus => d.exp() - d - 1.0,
            }
        };
        let base = if self.loss.correction.weight.is_some() { &self.behavior } else { self.base() };
        let ratio = |lp: f64| if kl.ratio { (lp - base[t]).exp() } else { 1.0 };
        if kl.estimator == KlEstimator::K3Plus {
            // The value of k3 with the derivative of k2.
            let moved = value(lp[t], KlEstimator::K2) - value(self.lp[t], KlEstimator::K2);
            return ratio(self.lp[t]) * (value(self.lp[t], KlEstimator::K3) + moved);
        }
        ratio(lp[t]) * value(lp[t], kl.estimator)
    }

    fn value(&self, spec: &ValueLoss, value: &[f64]) -> f64 {
        let (returns, old) = (wide(&self.step.returns), wide(&self.step.old_value));
        let term = |t: usize| {
            let plain = (value[t] - returns[t]).powi(2);
            let bounded = spec
                .clip
                .map_or(plain, |reach| (value[t].clamp(old[t] - reach, old[t] + reach) - returns[t]).powi(2));
            0.5 * plain.max(bounded)
        };
        let kept = self.rows.iter().filter(|row| !row.is_masked).flat_map(|row| row.tokens.clone());
        kept.map(term).sum::<f64>() / self.step.counts().tokens.max(1) as f64
    }

    /// The loss at a point.
    pub(crate) fn at(&self, point: &Point) -> f64 {
        let mut total = if self.per_sequence() {
            let trained = self.rows.iter().filter(|row| !row.is_masked);
            let of_row = |row: &Row| self.weight[row.tokens.start] * self.of_sequence(row, &point.lp);
            trained.map(of_row).sum::<f64>() / self.step.counts().sequences.max(1) as f64
        } else {
            self.aggregate(|row, t| self.weight[t] * self.of_token(row, t, &point.lp))
        };
        if let Some(kl) = &self.loss.kl {
            total += kl.coef * self.aggregate(|_, t| self.kl(kl, t, &point.lp));
        }
        if self.loss.entropy_coef != 0.0 {
            total -= self.loss.entropy_coef * self.aggregate(|_, t| point.entropy[t]);
        }
        if let Some(spec) = &self.loss.value {
            total += spec.coef * self.value(spec, &point.value);
        }
        total
    }
}

fn clip_of(cov: &ClipCov) -> PpoClip {
    PpoClip { clip_low: cov.clip_low, clip_high: cov.clip_high, dual_clip: cov.dual_clip }
}

/// True if the oracle has the loss. Others are covered by the golden numbers alone.
pub(crate) fn is_known(surrogate: &Surrogate) -> bool {
    use LossKind::{
        Cispo, ClipCov, DppoKl, DppoTv, Gmpo, Gspo, GspoToken, KlCov, PpoClip, Reinforce, Sapo, Topr,
    };
    let known =
        [Cispo, ClipCov, DppoKl, DppoTv, Gmpo, Gspo, GspoToken, KlCov, PpoClip, Reinforce, Sapo, Topr];
    surrogate.kind().is_none_or(|kind| known.contains(&kind))
}

fn ppo(clip: &PpoClip, ratio: f64, a: f64) -> f64 {
    let loss = (-ratio * a).max(-ratio.clamp(1.0 - clip.clip_low, 1.0 + clip.clip_high) * a);
    match clip.dual_clip {
        Some(c) if a < 0.0 => loss.min(-c * a),
        _ => loss,
    }
}

/// True if a constant branch is active.
fn is_clipped(clip: &PpoClip, ratio: f64, a: f64) -> bool {
    a != 0.0 && ppo(clip, ratio * 1.000_000_1, a) == ppo(clip, ratio, a)
}
