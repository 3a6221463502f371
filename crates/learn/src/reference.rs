//! The reference of a stage: known scores, and moves towards the policy.

use std::fmt::Debug;
use std::sync::Arc;

use rloom_algo::Anchor;
use rloom_core::{Group, PolicyVersion, Trajectory};
use rloom_engine::{ReferenceSync, TrainEngine, TrainError, Which, pack_unshared};

use crate::BatchTrainer;
use crate::preference::mismatched;
use crate::rows::{members, split_scores};

/// Log-probabilities that the reference has computed before.
pub trait ReferenceScores: Debug + Send + Sync {
    /// Those of the policy tokens of a trajectory.
    fn get(&self, trajectory: &Trajectory) -> Option<Vec<f32>>;
}

/// Use of the reference in a stage.
#[derive(Debug, Clone, Default)]
pub struct ReferenceUse {
    /// True if the reference is another model than the policy at the start of the stage, or becomes one.
    pub is_other: bool,
    /// Moves towards the policy.
    pub sync: Option<ReferenceSync>,
    /// Known log-probabilities.
    pub scores: Option<Arc<dyn ReferenceScores>>,
}

impl ReferenceUse {
    /// Moves the reference after every `sync_every` batches. `version` is that before the batch.
    pub(crate) fn after_batch<E: TrainEngine>(
        &self,
        engine: &mut E,
        version: PolicyVersion,
    ) -> Result<(), TrainError> {
        match self.sync {
            Some(sync) if (version.0 + 1).is_multiple_of(sync.every) => engine.sync_reference(sync.mixup),
            _ => Ok(()),
        }
    }

    /// The known log-probabilities of a trajectory.
    pub(crate) fn known(&self, trajectory: &Trajectory) -> Option<Vec<f32>> {
        self.scores.as_ref().and_then(|scores| scores.get(trajectory))
    }
}

impl BatchTrainer {
    /// The trajectories that the reference scores for a batch of a stage that learns from given completions.
    pub fn scored_by_reference(&self, groups: &[Group]) -> Vec<Trajectory> {
        let members = members(groups);
        let mut all: Vec<Trajectory> = members.iter().map(|member| member.trajectory.clone()).collect();
        let anchor = self.algorithm.preference.and_then(|preference| preference.anchor());
        if anchor == Some(Anchor::Mismatched) {
            all.extend(mismatched(&members, self.completion_limit as usize));
        }
        all
    }

    /// Log-probabilities of the reference for the policy tokens of each trajectory. Those that are known are not computed.
    pub fn reference_logprobs<E: TrainEngine>(
        &self,
        engine: &mut E,
        trajectories: &[Trajectory],
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let known: Vec<Option<Vec<f32>>> = trajectories.iter().map(|own| self.reference.known(own)).collect();
        let unknown =
            trajectories.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(own, _)| own);
        let packed = pack_unshared(unknown, self.micro_batch_tokens)?;
        let scores = if packed.is_empty() { Vec::new() } else { engine.score(Which::Reference, &packed)? };
        let mut computed = split_scores(&packed, &scores).logprob.into_iter();
        Ok(known.into_iter().map(|known| known.or_else(|| computed.next()).unwrap_or_default()).collect())
    }
}
