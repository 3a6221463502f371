//! A stage's settings as its batches are trained by them.

use rloom_config::Stage;
use rloom_engine::OnUpdate;
use rloom_reward::RewardSettings;

use super::BatchTraining;
use crate::outcome::OutcomeRule;
use crate::setup::completion_limit;

impl BatchTraining {
    /// How the stage in place `index` of its recipe trains. `context` is what the policy can hold.
    pub(crate) fn of_stage(stage: &Stage, index: u32, seed: u64, context: usize) -> Self {
        let reward = stage.rollout.as_ref().map(|rollout| &rollout.reward);
        let limit = stage.rollout.as_ref().map(|rollout| completion_limit(stage, rollout));
        Self {
            algorithm: stage.algorithm,
            completion_limit: limit.unwrap_or(context as u64),
            micro_batch_tokens: stage.trainer.micro_batch_tokens,
            share_prompts: stage.trainer.share_prompts,
            is_sampler_exact: is_sampler_exact(stage),
            seed,
            stage: index,
            outcome: OutcomeRule {
                has_verifier: reward.is_some_and(RewardSettings::has_verifier),
                is_shaped: stage.algorithm.overlong.is_some(),
            },
            step_reward_weight: reward.and_then(RewardSettings::environment_weight).unwrap_or(0.0),
        }
    }
}

/// The embedded engine computes what the trainer does, in the same format and to the bit. Only keys and values of an older
/// version that it goes on with give log-probabilities that no weights give again.
fn is_sampler_exact(stage: &Stage) -> bool {
    let schedule = stage.schedule();
    schedule.max_staleness == 0 || schedule.on_update != OnUpdate::Keep
}

/// Optimiser steps of the whole stage: what its learning-rate schedule ends at.
pub(crate) fn optimizer_steps(stage: &Stage) -> u64 {
    stage.steps * u64::from(stage.algorithm.epochs) * u64::from(stage.algorithm.minibatches)
}
