//! Adaptive weights, and the state of an algorithm between batches.

use serde::{Deserialize, Serialize};

use crate::{
    AdvantageSpec, Advantages, Algorithm, LossMetrics, PolicyLoss, RoleBaselines, RunningMean, RunningMoments,
};

/// Adapts the weight of the KL in the reward towards a target divergence (arXiv 1909.08593, section 2.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlControl {
    /// Nats per token.
    pub target: f64,
    /// Episodes over which the weight adapts.
    pub horizon: f64,
}

/// Bound on the relative error used for an update.
const MAX_KL_ERROR: f64 = 0.2;

impl KlControl {
    /// The weight after a batch of `episodes` whose divergence was `observed` (nats per token):
    ///
    /// coef·(1 + clip(observed/target − 1, ±0.2)·min(episodes/horizon, 1)).
    ///
    /// The paper has no bound on the last factor; without it a batch of more than five horizons could turn the weight
    /// negative.
    pub fn next(&self, coef: f64, observed: f64, episodes: u64) -> f64 {
        let error = (observed / self.target - 1.0).clamp(-MAX_KL_ERROR, MAX_KL_ERROR);
        coef * (1.0 + error * (episodes as f64 / self.horizon).min(1.0))
    }
}

/// Keeps the entropy at a target (Skywork-OR1, arXiv 2505.22312, as in TRL): below the target the bonus is on and its
/// weight grows; above the target the weight falls and the bonus is off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EntropyControl {
    /// Nats per token.
    pub target: f64,
    /// Change of the weight per optimiser step.
    pub step: f64,
    /// Smallest weight.
    pub min: f64,
    /// Largest weight.
    pub max: f64,
}

impl EntropyControl {
    /// The weight after an optimiser step over which the mean entropy was `entropy`.
    pub fn next(&self, coef: f64, entropy: f64) -> f64 {
        if entropy <= self.target {
            (coef + self.step).min(self.max)
        } else {
            (coef - self.step).max(self.min)
        }
    }

    /// The weight to apply after an optimiser step of mean entropy `last`: `coef` or 0; 0 before the first.
    pub fn applied(&self, coef: f64, last: Option<f64>) -> f64 {
        if last.is_some_and(|entropy| entropy <= self.target) { coef } else { 0.0 }
    }
}

/// State of an algorithm between batches. Part of every checkpoint.
///
/// Used by [`Algorithm::advantage_at`] and [`Algorithm::loss_at`]; updated by [`Self::after_batch`] and
/// [`Self::after_step`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AlgorithmState {
    /// Moments of the rewards so far.
    pub rewards: RunningMoments,
    /// Adapted weight of the KL in the reward; `None` before the first update or if it is fixed.
    pub kl_coef: Option<f64>,
    /// Adapted weight of the entropy bonus; `None` before the first update or if it is fixed.
    pub entropy_coef: Option<f64>,
    /// Mean entropy of the last optimiser step (nats per token), if the bonus adapts.
    pub entropy: Option<f64>,
    /// Running anchor of a preference loss; `None` before the first batch or if the loss has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<RunningMean>,
    /// Averages of the rewards of agents so far, by name.
    #[serde(skip_serializing_if = "RoleBaselines::is_empty")]
    pub roles: RoleBaselines,
}

impl AlgorithmState {
    /// The state after the advantages of a batch. The weight of the KL adapts to the batch's divergence for the next
    /// batch.
    #[must_use]
    pub fn after_batch(&self, algorithm: &Algorithm, advantages: &Advantages) -> Self {
        let report = &advantages.report;
        let spec = algorithm.advantage_at(self);
        let mut next = Self { rewards: advantages.running, roles: advantages.roles.clone(), ..self.clone() };
        if let (Some(control), Some(spec), Some(observed)) = (algorithm.kl_control, spec, report.kl) {
            next.kl_coef = Some(control.next(spec.kl_coef, observed, report.episodes as u64));
        }
        next
    }

    /// The state after an optimiser step. A step without tokens does not change it.
    #[must_use]
    pub fn after_step(&self, algorithm: &Algorithm, metrics: &LossMetrics) -> Self {
        let (Some(control), Some(entropy)) = (algorithm.entropy_control, metrics.entropy) else {
            return self.clone();
        };
        let coef = self.entropy_coef.unwrap_or(algorithm.loss.entropy_coef);
        Self { entropy_coef: Some(control.next(coef, entropy)), entropy: Some(entropy), ..self.clone() }
    }
}

impl Algorithm {
    /// The advantage of the next batch; `None` for supervised methods.
    pub fn advantage_at(&self, state: &AlgorithmState) -> Option<AdvantageSpec> {
        let adapted = state.kl_coef.filter(|_| self.kl_control.is_some());
        self.advantage.map(|spec| AdvantageSpec { kl_coef: adapted.unwrap_or(spec.kl_coef), ..spec })
    }

    /// The loss of the next optimiser step.
    pub fn loss_at(&self, state: &AlgorithmState) -> PolicyLoss {
        let Some(control) = self.entropy_control else { return self.loss };
        let coef = state.entropy_coef.unwrap_or(self.loss.entropy_coef);
        PolicyLoss { entropy_coef: control.applied(coef, state.entropy), ..self.loss }
    }
}
