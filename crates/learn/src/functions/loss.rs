//! Losses of micro-batches from a function.

use rloom_algo::{GivenLoss, GlobalCounts, LossInputs, PolicyLoss, RatioTo, TokenScores};
use rloom_core::PolicyVersion;
use rloom_function::{LossAnswer, LossCall, MethodFunction};

use super::{MethodError, MethodFunctions};

/// A function with the parts of its inputs that are the same for all micro-batches of an optimiser step.
pub(super) struct LossFunction<'a> {
    pub(super) function: &'a MethodFunction,
    pub(super) loss: &'a PolicyLoss,
    pub(super) version: PolicyVersion,
    pub(super) counts: &'a GlobalCounts,
}

impl MethodFunctions {
    /// True if a function computes the loss.
    pub(crate) fn computes_loss(&self) -> bool {
        self.loss.is_some()
    }

    /// Adds the value and the coefficients of the loss to the inputs of each micro-batch, from the scores of the policy.
    pub(crate) fn add_losses(
        &self,
        loss: &PolicyLoss,
        version: PolicyVersion,
        counts: &GlobalCounts,
        scores: &[TokenScores],
        inputs: &mut [LossInputs],
    ) -> Result<(), MethodError> {
        let Some(function) = &self.loss else { return Ok(()) };
        let function = LossFunction { function, loss, version, counts };
        for (inputs, scores) in inputs.iter_mut().zip(scores) {
            let LossAnswer { value, d_logprob, d_entropy } =
                function.evaluate(inputs, scores, &scores.logprob)?;
            inputs.given = Some(GivenLoss { value, d_logprob, d_entropy });
        }
        Ok(())
    }
}

impl LossFunction<'_> {
    /// Value and coefficients of a micro-batch. `held` are the log-probabilities for factors that are held constant.
    pub(super) fn evaluate(
        &self,
        inputs: &LossInputs,
        scores: &TokenScores,
        held: &[f32],
    ) -> Result<LossAnswer, MethodError> {
        let Self { function, loss, version, counts } = self;
        let behavior = inputs.behavior.as_deref().unwrap_or_default();
        let old = self.old(inputs, held);
        // Sequences without policy tokens have no entries in the arrays.
        let rows = || inputs.rows.iter().enumerate().filter(|(_, row)| !row.is_empty());
        let divisor = |index: usize, own: usize| {
            let length = inputs.episode_tokens.get(index).copied().unwrap_or(own);
            loss.aggregation.divisor(length, counts)
        };
        Ok(function.loss(&LossCall {
            step: version.0,
            lengths: rows().map(|(_, row)| row.len()).collect(),
            divisors: rows().map(|(i, row)| divisor(i, row.len())).collect::<Result<_, _>>()?,
            masked: rows().map(|(i, _)| inputs.masked.get(i).copied().unwrap_or(false)).collect(),
            tokens: counts.tokens,
            sequences: counts.episodes(),
            completion_limit: counts.completion_limit,
            logprob: &scores.logprob,
            held,
            old: &old,
            behavior,
            reference: inputs.reference.as_deref().unwrap_or_default(),
            entropy: &scores.entropy,
            advantage: inputs.advantage.as_deref().unwrap_or_default(),
        })?)
    }

    /// Denominator of the ratio.
    fn old(&self, inputs: &LossInputs, held: &[f32]) -> Vec<f32> {
        let behavior = inputs.behavior.as_deref().unwrap_or_default();
        if self.loss.ratio_to == RatioTo::Behavior {
            return behavior.to_vec();
        }
        if let Some(interpolation) = &inputs.interpolation {
            let between = held.iter().zip(behavior).zip(interpolation);
            return between.map(|((lp, behavior), a)| behavior + a * (lp - behavior)).collect();
        }
        inputs.old.as_deref().unwrap_or(behavior).to_vec()
    }
}
