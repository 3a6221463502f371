//! The losses as a training engine calls them.

use rloom_algo::{
    AlgoError, GlobalCounts, LossGrad, Mismatch, PolicyLoss, Scope, TokenScores, ValueLoss, policy_loss,
    step_loss, value_loss,
};
use rloom_core::RandomStream;
use rloom_engine::LossFn;

use super::rows::Inputs;

/// The policy's loss, or the process-reward model's, over the micro-batches of one optimiser step.
pub(super) struct PolicyObjective<'a> {
    pub(super) loss: &'a PolicyLoss,
    pub(super) inputs: &'a [Inputs],
    pub(super) counts: GlobalCounts,
    pub(super) mismatch: Mismatch,
    /// Draws of losses that pick tokens.
    pub(super) draws: RandomStream,
}

impl LossFn for PolicyObjective<'_> {
    fn scope(&self) -> Scope {
        self.loss.scope()
    }

    fn loss(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        policy_loss(self.loss, &self.inputs[micro_batch].batch(self.mismatch), scores, &self.counts)
    }

    fn step_loss(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        let batches: Vec<_> = self.inputs.iter().map(|inputs| inputs.batch(self.mismatch)).collect();
        step_loss(self.loss, &batches, scores, &self.counts, &|i| self.draws.bits(i))
    }

    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        self.loss.inert(&self.inputs[micro_batch].batch(self.mismatch))
    }
}

/// The loss of a critic of its own.
pub(super) struct ValueObjective<'a> {
    pub(super) loss: ValueLoss,
    pub(super) inputs: &'a [Inputs],
    pub(super) counts: GlobalCounts,
}

impl LossFn for ValueObjective<'_> {
    fn scope(&self) -> Scope {
        Scope::Token
    }

    fn loss(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        value_loss(&self.loss, &self.inputs[micro_batch].batch(Mismatch::Unmeasured), scores, &self.counts)
    }

    fn step_loss(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        scores.iter().enumerate().map(|(i, scores)| self.loss(i, scores)).collect()
    }

    /// Masked sequences: what an error in the value is, only the scores say.
    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        self.inputs[micro_batch].batch(Mismatch::Unmeasured).masked.to_vec()
    }
}
