use rloom_algo::{
    AlgoError, DistillationLoss, EmbeddingNoise, LossGrad, LossStep, Objective, Scope, TokenScores,
};

/// A loss as the engine evaluates it. [`LossStep`] is the only implementation outside of tests, which check that the
/// engine rejects coefficients that no correct loss produces.
pub(crate) trait StepLoss: Sync {
    /// Part of the optimizer step that the loss must see at once. It determines which of the next two methods is called.
    fn scope(&self) -> Scope;

    /// Loss and derivatives of micro-batch number `micro_batch`.
    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError>;

    /// For [`Scope::Step`]: losses and derivatives of all micro-batches, in order.
    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError>;

    /// Marks the sequences of micro-batch number `micro_batch` whose coefficients are all 0 for any scores. Empty if
    /// there are none.
    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        let _ = micro_batch;
        Vec::new()
    }

    /// Noise on the embeddings of the trained tokens.
    fn noise(&self) -> Option<EmbeddingNoise> {
        None
    }

    /// The distillation, whose scores include the comparison with the teacher; `None` for other losses.
    fn distillation(&self) -> Option<DistillationLoss> {
        None
    }
}

impl StepLoss for LossStep<'_> {
    fn scope(&self) -> Scope {
        LossStep::scope(self)
    }

    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        LossStep::evaluate(self, micro_batch, scores)
    }

    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        LossStep::evaluate_step(self, scores)
    }

    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        LossStep::inert(self, micro_batch)
    }

    fn noise(&self) -> Option<EmbeddingNoise> {
        self.noise
    }

    fn distillation(&self) -> Option<DistillationLoss> {
        if let Objective::Distillation(loss) = self.objective { Some(loss) } else { None }
    }
}
