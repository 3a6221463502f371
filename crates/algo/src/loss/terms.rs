use rloom_core::metric;

use super::{PolicyLoss, Surrogate, kernel::Clipped};
use crate::{AlgoError, ExactSum, GlobalCounts, KlEstimator, kl::LOG_RATIO_LIMIT};

/// Sums over tokens, with their number.
#[derive(Debug, Clone, Default)]
struct Mean {
    sum: ExactSum,
    count: u64,
}

impl Mean {
    fn add(&mut self, x: f64) {
        self.sum.add(x);
        self.count += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.sum.merge(&other.sum);
        self.count += other.count;
    }

    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value() / self.count as f64)
    }
}

/// Smallest and largest.
#[derive(Debug, Clone, Copy)]
struct Extremes {
    low: f64,
    high: f64,
}

impl Default for Extremes {
    fn default() -> Self {
        Self { low: f64::INFINITY, high: f64::NEG_INFINITY }
    }
}

impl Extremes {
    fn add(&mut self, x: f64) {
        self.low = self.low.min(x);
        self.high = self.high.max(x);
    }

    fn merge(&mut self, other: &Self) {
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
    }

    fn given(self) -> Option<Self> {
        (self.low <= self.high).then_some(self)
    }
}

/// What the micro-batches of an optimiser step add up to. Merging is exact: order and split do not matter.
#[derive(Debug, Clone, Default)]
pub struct LossTerms {
    tokens: u64,
    sequences: u64,
    clips: bool,
    has_dual: bool,
    surrogate: ExactSum,
    kl_loss: ExactSum,
    entropy_loss: ExactSum,
    clipped_low: u64,
    clipped_high: u64,
    clipped_dual: u64,
    entropy: Mean,
    approx_kl: Mean,
    ratio: Extremes,
    kl: Mean,
    mismatch_kl: Mean,
    mismatch: Extremes,
}

impl LossTerms {
    pub(super) fn for_loss(loss: &PolicyLoss) -> Self {
        let clip = match loss.surrogate {
            Surrogate::PpoClip(clip) => Some(clip),
            Surrogate::Reinforce(_) | Surrogate::Sft(_) => None,
        };
        Self {
            clips: clip.is_some(),
            has_dual: clip.is_some_and(|c| c.dual_clip.is_some()),
            ..Self::default()
        }
    }

    pub(super) fn count_sequence(&mut self, tokens: usize, counts: &GlobalCounts) -> Result<(), AlgoError> {
        self.sequences += 1;
        self.tokens += tokens as u64;
        self.check(counts, |seen, counted| seen <= counted)
    }

    fn check(&self, counts: &GlobalCounts, fits: impl Fn(u64, u64) -> bool) -> Result<(), AlgoError> {
        for (what, seen, counted) in
            [("tokens", self.tokens, counts.tokens), ("sequences", self.sequences, counts.sequences)]
        {
            if !fits(seen, counted) {
                return Err(AlgoError::Counts { what, counted, seen });
            }
        }
        Ok(())
    }

    pub(super) fn add_surrogate(&mut self, x: f64) {
        self.surrogate.add(x);
    }

    pub(super) fn add_kl_loss(&mut self, x: f64) {
        self.kl_loss.add(x);
    }

    pub(super) fn add_entropy_loss(&mut self, x: f64) {
        self.entropy_loss.add(x);
    }

    pub(super) fn count_clipped(&mut self, clipped: Clipped) {
        match clipped {
            Clipped::No => {}
            Clipped::Low => self.clipped_low += 1,
            Clipped::High => self.clipped_high += 1,
            Clipped::Dual => self.clipped_dual += 1,
        }
    }

    pub(super) fn observe_entropy(&mut self, entropy: f64) {
        self.entropy.add(entropy);
    }

    pub(super) fn observe_log_ratio(&mut self, log_ratio: f64) {
        self.approx_kl.add(-log_ratio);
        self.ratio.add(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp());
    }

    pub(super) fn observe_kl(&mut self, kl: f64) {
        self.kl.add(kl);
    }

    pub(super) fn observe_mismatch(&mut self, trainer: f64, behavior: f64) {
        // Tokens are the sampler's, so this estimates KL(sampler ‖ trainer).
        self.mismatch_kl.add(KlEstimator::K3.value_and_gradient(behavior, trainer).0);
        self.mismatch.add((trainer - behavior).abs());
    }

    /// Adds another micro-batch of the same optimiser step.
    pub fn merge(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.sequences += other.sequences;
        self.clips |= other.clips;
        self.has_dual |= other.has_dual;
        self.surrogate.merge(&other.surrogate);
        self.kl_loss.merge(&other.kl_loss);
        self.entropy_loss.merge(&other.entropy_loss);
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.clipped_dual += other.clipped_dual;
        self.entropy.merge(&other.entropy);
        self.approx_kl.merge(&other.approx_kl);
        self.ratio.merge(&other.ratio);
        self.kl.merge(&other.kl);
        self.mismatch_kl.merge(&other.mismatch_kl);
        self.mismatch.merge(&other.mismatch);
    }

    /// The loss so far: of the whole optimiser step once all its micro-batches are merged.
    pub fn loss(&self) -> f64 {
        let mut sum = self.surrogate.clone();
        sum.merge(&self.kl_loss);
        sum.merge(&self.entropy_loss);
        sum.value()
    }

    /// Policy tokens seen so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Metrics of the optimiser step.
    ///
    /// # Errors
    ///
    /// [`AlgoError::Counts`] where the merged micro-batches are not the step that was counted: then every
    /// coefficient had a wrong normaliser.
    pub fn finish(&self, counts: &GlobalCounts) -> Result<LossMetrics, AlgoError> {
        self.check(counts, |seen, counted| seen == counted)?;
        let share = |n: u64| (self.tokens > 0).then(|| n as f64 / self.tokens as f64);
        let ratio = self.ratio.given();
        Ok(LossMetrics {
            loss: self.loss(),
            surrogate: self.surrogate.value(),
            kl_loss: self.kl_loss.value(),
            entropy_loss: self.entropy_loss.value(),
            entropy: self.entropy.value(),
            approx_kl: self.approx_kl.value(),
            kl: self.kl.value(),
            clip_ratio_low: share(self.clipped_low).filter(|_| self.clips),
            clip_ratio_high: share(self.clipped_high).filter(|_| self.clips),
            clip_ratio_dual: share(self.clipped_dual).filter(|_| self.has_dual),
            ratio_min: ratio.map(|r| r.low),
            ratio_max: ratio.map(|r| r.high),
            mismatch_kl: self.mismatch_kl.value(),
            mismatch_max_abs: self.mismatch.given().map(|m| m.high),
        })
    }
}

/// Metrics of one optimiser step, or of several. `None` is "not measured", never 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossMetrics {
    /// The loss: the three parts below.
    pub loss: f64,
    /// The surrogate's part.
    pub surrogate: f64,
    /// coef·KL.
    pub kl_loss: f64,
    /// −coef·entropy.
    pub entropy_loss: f64,
    /// Mean entropy (nats per token).
    pub entropy: Option<f64>,
    /// Mean of old − lp (nats per token).
    pub approx_kl: Option<f64>,
    /// Mean k3 against the reference (nats per token), whichever estimator the loss has.
    pub kl: Option<f64>,
    /// Share of tokens clipped below (A < 0).
    pub clip_ratio_low: Option<f64>,
    /// Share of tokens clipped above (A > 0).
    pub clip_ratio_high: Option<f64>,
    /// Share of tokens where the dual clip bound.
    pub clip_ratio_dual: Option<f64>,
    /// Smallest ρ.
    pub ratio_min: Option<f64>,
    /// Largest ρ.
    pub ratio_max: Option<f64>,
    /// Mean k3 estimate of KL(sampler ‖ trainer) (nats per token).
    pub mismatch_kl: Option<f64>,
    /// Largest |trainer − sampler| (nats).
    pub mismatch_max_abs: Option<f64>,
}

impl LossMetrics {
    /// What was measured, under the field's names.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        [
            (metric::LOSS, Some(self.loss)),
            (metric::ENTROPY, self.entropy),
            (metric::APPROX_KL, self.approx_kl),
            (metric::KL, self.kl),
            (metric::CLIP_RATIO_LOW, self.clip_ratio_low),
            (metric::CLIP_RATIO_HIGH, self.clip_ratio_high),
            (metric::CLIP_RATIO_DUAL, self.clip_ratio_dual),
            (metric::RATIO_MIN, self.ratio_min),
            (metric::RATIO_MAX, self.ratio_max),
            (metric::MISMATCH_KL, self.mismatch_kl),
            (metric::MISMATCH_MAX_ABS, self.mismatch_max_abs),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }

    /// Metrics of a batch from those of its optimiser steps: means of means, extremes of extremes, each over the
    /// steps that measured it. `None` without a step.
    pub fn over_steps(steps: &[Self]) -> Option<Self> {
        if steps.is_empty() {
            return None;
        }
        let values = |get: fn(&Self) -> Option<f64>| steps.iter().filter_map(get);
        let mean = |get: fn(&Self) -> Option<f64>| {
            let n = values(get).count();
            (n > 0).then(|| values(get).sum::<f64>() / n as f64)
        };
        let plain = |get: fn(&Self) -> f64| steps.iter().map(get).sum::<f64>() / steps.len() as f64;
        Some(Self {
            loss: plain(|m| m.loss),
            surrogate: plain(|m| m.surrogate),
            kl_loss: plain(|m| m.kl_loss),
            entropy_loss: plain(|m| m.entropy_loss),
            entropy: mean(|m| m.entropy),
            approx_kl: mean(|m| m.approx_kl),
            kl: mean(|m| m.kl),
            clip_ratio_low: mean(|m| m.clip_ratio_low),
            clip_ratio_high: mean(|m| m.clip_ratio_high),
            clip_ratio_dual: mean(|m| m.clip_ratio_dual),
            ratio_min: values(|m| m.ratio_min).reduce(f64::min),
            ratio_max: values(|m| m.ratio_max).reduce(f64::max),
            mismatch_kl: mean(|m| m.mismatch_kl),
            mismatch_max_abs: values(|m| m.mismatch_max_abs).reduce(f64::max),
        })
    }
}
