//! Accumulation that also returns the scores of its forward pass.

use std::sync::{Mutex, PoisonError};

use rloom_algo::{AlgoError, DistillationLoss, EmbeddingNoise, LossGrad, LossStep, Scope, TokenScores};
use rloom_engine::{LossReport, PackedBatch, TrainError};

use super::EmbeddedTrainEngine;
use super::loss::StepLoss;

/// A loss that keeps the scores it is evaluated on, in the order of the micro-batches.
struct Recording<'a> {
    loss: &'a LossStep<'a>,
    scores: Mutex<Vec<TokenScores>>,
}

impl Recording<'_> {
    fn record(&self, scores: &[TokenScores]) {
        self.scores.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(scores);
    }
}

impl StepLoss for Recording<'_> {
    fn scope(&self) -> Scope {
        self.loss.scope()
    }

    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        self.record(std::slice::from_ref(scores));
        self.loss.evaluate(micro_batch, scores)
    }

    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        self.record(scores);
        self.loss.evaluate_step(scores)
    }

    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        self.loss.inert(micro_batch)
    }

    fn noise(&self) -> Option<EmbeddingNoise> {
        self.loss.noise
    }

    fn distillation(&self) -> Option<DistillationLoss> {
        StepLoss::distillation(self.loss)
    }
}

impl EmbeddedTrainEngine {
    /// As [`accumulate`](rloom_engine::TrainEngine::accumulate), also returning the scores of each micro-batch, which need
    /// no forward pass of their own.
    pub fn accumulate_with_scores(
        &mut self,
        step: &[PackedBatch],
        loss: &LossStep<'_>,
    ) -> Result<(LossReport, Vec<TokenScores>), TrainError> {
        let recording = Recording { loss, scores: Mutex::default() };
        let report = self.accumulate_loss(step, &recording)?;
        Ok((report, recording.scores.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }
}
