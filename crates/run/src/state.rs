//! What a checkpoint holds beside model, tokenizer and optimiser: `trainer/state.json`.

use std::path::Path;

use rloom_algo::AlgorithmState;
use rloom_core::PolicyVersion;
use rloom_sched::SchedulerState;
use serde::{Deserialize, Serialize};

use crate::RunError;
use crate::disk::write_atomically;
use crate::stage::Drawn;

/// The best version so far, by held-out accuracy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its accuracy.
    pub accuracy: f64,
    /// Its stage.
    pub stage: String,
    /// Its step.
    pub step: u64,
}

/// The run's place in its recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrainerState {
    /// Place of the stage in the recipe.
    pub(crate) stage: u32,
    /// The stage's name, as a guard against a recipe that has changed.
    pub(crate) stage_name: String,
    /// Steps of the stages before.
    pub(crate) stage_base: u64,
    /// The scheduler of the stage.
    pub(crate) scheduler: SchedulerState,
    /// Optimiser steps of the stage.
    pub(crate) optimizer_steps: u64,
    /// What the algorithm carries from batch to batch.
    #[serde(default)]
    pub(crate) algorithm: AlgorithmState,
    /// What was drawn in the stage so far.
    #[serde(default)]
    pub(crate) drawn: Drawn,
    /// The best version so far.
    pub(crate) best: Option<Best>,
    /// How it was computed (instruction set, and the products of bf16): in another way the bytes of later results may
    /// differ.
    pub(crate) isa: String,
    /// Seed of the run.
    pub(crate) seed: u64,
    /// Older versions whose weights lie beside, because groups under way are pinned to them.
    #[serde(default)]
    pub(crate) samplers: Vec<PolicyVersion>,
}

const FILE: &str = "trainer/state.json";

/// Where a checkpoint keeps the weights of an older version.
pub(crate) fn sampler_folder(checkpoint: &Path, version: PolicyVersion) -> std::path::PathBuf {
    checkpoint.join(format!("trainer/sampler-{:06}", version.0))
}

impl TrainerState {
    pub(crate) fn save(&self, checkpoint: &Path) -> Result<(), RunError> {
        let path = checkpoint.join(FILE);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| RunError::io("encode", &path, std::io::Error::other(e)))?;
        write_atomically("state", &path, &text)
    }

    pub(crate) fn load(checkpoint: &Path) -> Result<Self, RunError> {
        let path = checkpoint.join(FILE);
        let text = std::fs::read(&path).map_err(|source| RunError::io("read", &path, source))?;
        serde_json::from_slice(&text).map_err(|e| RunError::CheckpointDamaged {
            path: checkpoint.to_owned(),
            reason: format!("{FILE}: {e}"),
        })
    }
}
