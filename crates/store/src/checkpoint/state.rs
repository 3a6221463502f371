//! The resumable state of a run besides models and optimisers: `trainer/state.json` of a checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rloom_algo::AlgorithmState;
use rloom_core::{PolicyId, PolicyVersion, Ticket};
use rloom_sched::{SchedulerState, SuccessRates};
use serde::{Deserialize, Serialize};

use super::CheckpointName;
use crate::disk::write_atomically;
use crate::{CheckpointDamage, StoreError};

/// Measure of the best version.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BestScore {
    /// Held-out accuracy, from 0 to 1.
    Accuracy(f64),
    /// Loss on held-out rows, in a run that evaluates nothing.
    ValidationLoss(f64),
}

/// The best version so far, by held-out accuracy or by validation loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The score.
    #[serde(flatten)]
    pub score: BestScore,
    /// Name of the stage that trained it.
    pub stage: String,
    /// Step within the stage.
    pub step: u64,
}

impl Best {
    /// True if this is the checkpoint of that name.
    pub(super) fn names(&self, name: &CheckpointName) -> bool {
        (self.stage.as_str(), self.step) == (name.stage_name.as_str(), name.step)
    }
}

/// Counters of the groups generated in a stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupCounters {
    /// Tokens of the groups completed in the stage so far.
    pub tokens: u64,
    /// Groups filtered out since the last batch, by reason.
    pub filtered: BTreeMap<String, u64>,
    /// Groups failed since the last batch.
    pub failed: u64,
    /// Groups filtered out since the last batch, by domain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filtered_domains: BTreeMap<String, u64>,
    /// Success of the domains that a curriculum follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<SuccessRates>,
}

/// Position of a run in its recipe, and the state of scheduler and algorithm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointState {
    /// The trained policy.
    pub policy: PolicyId,
    /// Index of the stage in the recipe.
    pub stage: u32,
    /// Name of the stage, to detect a changed recipe.
    pub stage_name: String,
    /// Total steps of the earlier stages.
    pub stage_base: u64,
    /// State of the stage's scheduler.
    pub scheduler: SchedulerState,
    /// Optimiser steps of the stage so far.
    pub optimizer_steps: u64,
    /// Those that were skipped because a number was not finite.
    #[serde(default)]
    pub skipped_steps: u64,
    /// State that the algorithm carries from batch to batch.
    pub algorithm: AlgorithmState,
    /// Counters of the stage's groups.
    pub counters: GroupCounters,
    /// The best version so far.
    pub best: Option<Best>,
    /// Numeric path of the trainer (instruction set and bf16 products). Results of another path may differ in bytes.
    pub numeric_path: String,
    /// Seed of the run.
    pub seed: u64,
    /// Versions that the leagues of the stage keep, by the names of their policies.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leagues: BTreeMap<String, LeagueState>,
    /// Older versions whose weights are saved in [`pinned_weights_folder`], because groups in flight are pinned to them.
    pub pinned_versions: Vec<PolicyVersion>,
}

/// Versions of a policy that a league keeps as opponents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeagueState {
    /// The versions, by their places in the league.
    pub kept: Vec<KeptVersion>,
    /// Number of versions kept so far, those that were replaced included.
    pub taken: u64,
    /// Opponents of the groups that have begun.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drawn: BTreeMap<Ticket, PolicyId>,
}

/// A version that a league keeps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KeptVersion {
    /// The version.
    pub version: PolicyVersion,
    /// Trained episodes against it.
    pub played: u64,
    /// Those that it lost; a draw counts one half.
    pub lost: f64,
}

const FILE: &str = "trainer/state.json";

/// Folder in a checkpoint of the weights of an older version.
pub fn pinned_weights_folder(checkpoint: &Path, version: PolicyVersion) -> PathBuf {
    checkpoint.join(format!("trainer/pinned-{:06}", version.0))
}

/// Folder in a checkpoint of a policy other than the main one.
pub fn policy_folder(checkpoint: &Path, name: &str) -> PathBuf {
    checkpoint.join("policies").join(name)
}

impl CheckpointState {
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
