//! What a checkpoint holds beside model, tokenizer and optimiser: `trainer/state.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rloom_algo::AlgorithmState;
use rloom_core::PolicyVersion;
use rloom_sched::SchedulerState;
use serde::{Deserialize, Serialize};

use crate::disk::write_atomically;
use crate::{CheckpointDamage, StoreError};

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

/// Groups that were generated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// Tokens of the groups that became complete in the stage so far.
    pub tokens: u64,
    /// Groups replaced by others since the last batch, by reason.
    pub filtered: BTreeMap<String, u64>,
    /// Groups that failed since the last batch.
    pub failed: u64,
}

/// The run's place in its recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Place of the stage in the recipe.
    pub stage: u32,
    /// The stage's name, as a guard against a recipe that has changed.
    pub stage_name: String,
    /// Steps of the stages before.
    pub stage_base: u64,
    /// The scheduler of the stage.
    pub scheduler: SchedulerState,
    /// Optimiser steps of the stage.
    pub optimizer_steps: u64,
    /// What the algorithm carries from batch to batch.
    #[serde(default)]
    pub algorithm: AlgorithmState,
    /// What was drawn in the stage so far.
    #[serde(default)]
    pub drawn: Drawn,
    /// The best version so far.
    pub best: Option<Best>,
    /// How it was computed (instruction set, and the products of bf16): in another way the bytes of later results may
    /// differ.
    pub isa: String,
    /// Seed of the run.
    pub seed: u64,
    /// Older versions whose weights lie beside, because groups under way are pinned to them.
    #[serde(default)]
    pub samplers: Vec<PolicyVersion>,
}

const FILE: &str = "trainer/state.json";

/// Where a checkpoint keeps the weights of an older version.
pub fn sampler_folder(checkpoint: &Path, version: PolicyVersion) -> PathBuf {
    checkpoint.join(format!("trainer/sampler-{:06}", version.0))
}

impl TrainerState {
    /// Writes the state into a checkpoint.
    pub fn save(&self, checkpoint: &Path) -> Result<(), StoreError> {
        let path = checkpoint.join(FILE);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| StoreError::io("encode", &path, std::io::Error::other(e)))?;
        write_atomically("state", &path, &text)
    }

    /// Reads the state of a checkpoint.
    pub fn load(checkpoint: &Path) -> Result<Self, StoreError> {
        let path = checkpoint.join(FILE);
        let text = std::fs::read(&path).map_err(|source| StoreError::io("read", &path, source))?;
        serde_json::from_slice(&text).map_err(|source| {
            let damage = CheckpointDamage::Invalid { file: FILE.to_owned(), source };
            StoreError::damaged_checkpoint(checkpoint, damage)
        })
    }
}
