//! Batches and losses that the ranks refuse.

use rloom_algo::{LossStep, Objective, Scope};
use rloom_engine::{Feature, PackedBatch, TrainError};

use super::engine::Gang;
use super::settings::RankBackend;

impl Gang {
    /// Refuses comparisons that the ranks do not make. Returns the temperature of candidates that a loss reads.
    pub(super) fn check_comparison(
        &self,
        step: &[PackedBatch],
        loss: &LossStep<'_>,
    ) -> Result<Option<f64>, TrainError> {
        let distillation = match &loss.objective {
            Objective::Distillation(loss) => Some(loss.distillation),
            _ => None,
        };
        let reads_candidates = distillation.is_some_and(|distillation| distillation.top_k().is_some());
        if !reads_candidates && step.iter().any(|batch| batch.candidates.is_some()) {
            return Err(TrainError::Unsupported { feature: Feature::CandidatesInLoss });
        }
        match distillation {
            None => Ok(None),
            Some(_) if !self.compares() => Err(TrainError::Unsupported { feature: Feature::Candidates }),
            Some(distillation) => {
                if !reads_candidates {
                    self.check_teacher()?;
                }
                Ok(Some(distillation.temperature()))
            }
        }
    }

    /// True if the ranks score candidates and compare the policy with a teacher.
    pub(super) fn compares(&self) -> bool {
        self.settings.backend == RankBackend::Torch
    }

    /// Refuses noise that the ranks do not add.
    pub(super) fn check_noise(&self, loss: &LossStep<'_>) -> Result<(), TrainError> {
        if loss.noise.is_none() {
            return Ok(());
        }
        if loss.scope() == Scope::Step {
            return Err(TrainError::Unsupported { feature: Feature::SharedNoise });
        }
        match self.settings.backend {
            RankBackend::Torch | RankBackend::Deepspeed => Ok(()),
            RankBackend::Megatron => Err(TrainError::Unsupported { feature: Feature::EmbeddingNoise }),
        }
    }
}

/// Refuses batches with attachments.
pub(super) fn check_features(step: &[PackedBatch]) -> Result<(), TrainError> {
    if step.iter().all(|batch| batch.attachments.is_empty()) {
        Ok(())
    } else {
        Err(TrainError::Unsupported { feature: Feature::Attachments })
    }
}
