//! Results of training on a batch.

use std::collections::BTreeMap;

use rloom_algo::{AlgorithmState, LossMetrics};
use rloom_core::metric;
use rloom_engine::{LossReport, TrainError};

use crate::GivenAdvantages;

/// Result of training on a batch.
#[derive(Debug, Clone, Default)]
pub struct BatchReport {
    /// Metrics by name: means over the optimiser steps.
    pub metrics: BTreeMap<String, f64>,
    /// Norm of the policy's gradient before clipping: mean over the policy's optimiser steps.
    pub grad_norm: Option<f64>,
    /// Learning rate of the last optimiser step.
    pub learning_rate: f64,
    /// Optimiser steps counted by the learning-rate schedule, including those that only train the critic.
    pub optimizer_steps: u64,
    /// Reasons why optimiser steps were skipped, each with the number of steps: what was not finite.
    pub skipped_steps: Vec<SkippedSteps>,
    /// Tokens processed forward and backward, over all models.
    pub tokens: u64,
    /// Tokens of sequences without any coefficient: scored, not back-propagated.
    pub(crate) skipped: u64,
    /// Prompt tokens computed once for several sequences.
    pub(crate) shared: u64,
    /// Advantage of each episode's first token, `[group][episode]`; empty for supervised methods.
    pub advantages: Vec<Vec<f64>>,
    /// Advantages that a Python function has computed.
    pub given_advantages: Option<GivenAdvantages>,
    /// State of the algorithm for the next batch.
    pub state: AlgorithmState,
}

/// Optimiser steps that were skipped because a number was not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedSteps {
    /// Number of steps.
    pub steps: u64,
    /// The error of the first.
    pub error: String,
}

impl BatchReport {
    /// Notes that `steps` optimiser steps are skipped because of `error`; fails with it if it is not about a number that is
    /// not finite, or if more than `limit` steps of the batch would be skipped.
    pub(crate) fn skip(&mut self, steps: u64, error: TrainError, limit: u64) -> Result<(), TrainError> {
        if !error.is_not_finite() || self.steps_skipped() + steps > limit {
            return Err(error);
        }
        self.skipped_steps.push(SkippedSteps { steps, error: error.to_string() });
        let skipped = self.steps_skipped() as f64;
        self.metrics.insert(metric::OPTIMIZER_STEPS_SKIPPED.to_owned(), skipped);
        Ok(())
    }

    /// Number of optimiser steps that were skipped.
    pub fn steps_skipped(&self) -> u64 {
        self.skipped_steps.iter().map(|skipped| skipped.steps).sum()
    }

    pub(crate) fn count(&mut self, accumulated: &LossReport) {
        self.tokens += accumulated.tokens;
        self.skipped += accumulated.skipped;
        self.shared += accumulated.shared;
    }

    /// Adds the token counts to the metrics.
    pub(crate) fn add_token_counts(&mut self) {
        for (name, tokens) in [
            (metric::TOKENS_TRAINED, self.tokens),
            (metric::TOKENS_SKIPPED, self.skipped),
            (metric::TOKENS_SHARED, self.shared),
        ] {
            self.metrics.insert(name.to_owned(), tokens as f64);
        }
    }
}

/// Measurements of each optimiser step of a batch.
#[derive(Debug, Default)]
pub(crate) struct StepMeasurements {
    pub(crate) policy: Vec<LossMetrics>,
    pub(crate) critic: Vec<LossMetrics>,
    pub(crate) grad_norm: Vec<f64>,
    pub(crate) critic_grad_norm: Vec<f64>,
}

impl StepMeasurements {
    /// Adds the means over the optimiser steps to a report.
    pub(crate) fn summarize(&self, report: &mut BatchReport) {
        let named =
            |metrics: &[LossMetrics]| LossMetrics::over_steps(metrics).map(|m| m.named()).unwrap_or_default();
        for (name, value) in named(&self.policy) {
            report.metrics.insert(name.to_owned(), value);
        }
        for (name, value) in
            named(&self.critic).into_iter().filter(|(name, _)| name.starts_with(metric::VALUE_PREFIX))
        {
            report.metrics.insert(name.to_owned(), value);
        }
        report.grad_norm = mean(&self.grad_norm);
        if let Some(norm) = mean(&self.critic_grad_norm) {
            report.metrics.insert(metric::VALUE_GRAD_NORM.into(), norm);
        }
    }
}

impl StepMeasurements {
    /// The means over the optimiser steps of a further policy, under its name.
    pub(crate) fn of_policy(&self, name: &str) -> BTreeMap<String, f64> {
        let losses = LossMetrics::over_steps(&self.policy).map(|m| m.named()).unwrap_or_default();
        let norm = mean(&self.grad_norm).map(|norm| (metric::GRAD_NORM, norm));
        let named = losses.into_iter().chain(norm);
        named.map(|(metric, value)| (format!("{}{name}/{metric}", metric::POLICY_PREFIX), value)).collect()
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
