use std::path::Path;

use rloom_algo::{AlgoError, LossGrad, LossTerms, Scope, TokenScores};
use rloom_model::Weights;

use crate::{PackedBatch, TrainError};

/// Which policy scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The one that is trained.
    Policy,
    /// The fixed one that KL is measured against.
    Reference,
}

/// Scores in, coefficients out. Implemented by the driver over `rloom-algo`'s pure functions.
///
/// The coefficients of a micro-batch have an entry for each scored token by every score of the policy's heads, and none
/// by the others: a policy without a value head takes no `d_value`, a critic takes nothing else.
pub trait LossFn: Sync {
    /// What the loss must see at once. It decides which of the two other methods is called.
    fn scope(&self) -> Scope;
    /// The loss of micro-batch number `micro_batch` of the step and its derivative by each score.
    fn loss(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError>;
    /// For [`Scope::Step`]: the losses of all micro-batches of the step, in their order.
    fn step_loss(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError>;
    /// Of each sequence of micro-batch number `micro_batch`: whether all its coefficients are 0 whatever the scores, so
    /// that it is scored and not back-propagated. The loss still gets its scores and counts it. Empty for none.
    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        let _ = micro_batch;
        Vec::new()
    }
}

/// What an accumulation saw.
#[derive(Debug, Clone, Default)]
pub struct LossReport {
    /// Sums over the step, merged in micro-batch order.
    pub terms: LossTerms,
    /// Tokens (prompt and completion) that went through forward and backward.
    pub tokens: u64,
    /// Tokens of sequences without any coefficient: they were scored and not back-propagated.
    pub skipped: u64,
    /// Prompt tokens that went through neither again, because another sequence's pass had them. With the other two they
    /// are all tokens of the sequences.
    pub shared: u64,
}

/// One optimiser step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimStep {
    /// Its learning rate.
    pub learning_rate: f64,
}

/// What an optimiser step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
}

/// What a policy is to whoever trains it.
///
/// An optimiser step is [`accumulate`](Self::accumulate) over its micro-batches, then [`step`](Self::step). The
/// engine chooses order, placement and overlap of the micro-batches; their sums are merged in their order. Scores
/// are flat over a micro-batch's scored tokens; those of a head that the policy does not have are empty. Second
/// implementation in sight: PyTorch workers, which run the same `rloom-algo` on their own side instead of taking a
/// [`LossFn`] over the wire.
pub trait TrainEngine {
    /// Scores without a gradient: the same, to the bit, that a loss is given.
    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError>;
    /// Forward, hand the scores to `loss`, back-propagate its coefficients, add to the gradient. For a loss of
    /// [`Scope::Step`] all micro-batches are scored before the first is back-propagated. A sequence whose coefficients
    /// are known to be 0 before its forward pass has none but for its scores; one that [`LossFn::inert`] names and the
    /// loss then trains is an error.
    fn accumulate(&mut self, step: &[PackedBatch], loss: &dyn LossFn) -> Result<LossReport, TrainError>;
    /// Applies the accumulated gradient and clears it. A gradient that is not finite is an error, and the weights
    /// stay as they were.
    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError>;
    /// An immutable, versioned hand-over of the current weights; an error for a critic, which nobody samples from.
    fn publish(&mut self) -> Result<Weights, TrainError>;
    /// Writes a Hugging Face folder and, in `trainer/`, the optimiser's state and a policy's value head.
    fn save(&self, directory: &Path) -> Result<(), TrainError>;
    /// Goes on from what [`save`](Self::save) wrote, with the heads that the engine was made with.
    fn restore(&mut self, directory: &Path) -> Result<(), TrainError>;
}
