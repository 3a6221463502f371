use std::path::{Path, PathBuf};

use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The reference policy, which a preference loss or a KL compares with. By default it is the policy at the start of the stage, and
/// scores each batch before its first optimiser step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReferenceSettings {
    /// Model folder, or name of a model on the hub, with the tokenizer of the policy. Default: the policy at the start of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Folder of log-probabilities that the reference has computed, for stages that learn from given completions. Those that
    /// it lacks are computed before the first step; the reference is then freed. Runs may share a folder. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// Steps after which the reference moves towards the policy (TR-DPO, arXiv:2404.09656). Default: it does not move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_every: Option<u64>,
    /// With `sync_every`: weight of the policy in the new reference, above 0; 1 replaces it. Default: 0.6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixup: Option<f64>,
}

/// Moves of a reference towards the policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceSync {
    /// Steps between two moves.
    pub every: u64,
    /// Weight of the policy.
    pub mixup: f64,
}

/// Weight of the policy where none is set, as in the paper.
const MIXUP: f64 = 0.6;

impl ReferenceSettings {
    /// The moves of the reference; `None` if it is fixed.
    pub fn sync(&self) -> Option<ReferenceSync> {
        self.sync_every.map(|every| ReferenceSync { every, mixup: self.mixup.unwrap_or(MIXUP) })
    }

    /// Makes the paths of local folders independent of the working directory.
    pub fn make_absolute(&mut self) {
        if let Some(cache) = &mut self.cache
            && let Ok(path) = std::path::absolute(&*cache)
        {
            *cache = path;
        }
        if let Some(model) = &mut self.model
            && Path::new(model).is_dir()
            && let Ok(path) = std::path::absolute(&*model)
        {
            *model = path.display().to_string();
        }
    }

    /// Checks the values; keys are relative to the table of the trainer.
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if let Some(every) = self.sync_every {
            ValueRange::at_least(1.0).check("reference.sync_every", every as f64)?;
            if self.cache.is_some() {
                return Err(SettingProblem::Conflict { other: "reference.sync_every" }.at("reference.cache"));
            }
        }
        let Some(mixup) = self.mixup else { return Ok(()) };
        if self.sync_every.is_none() {
            let (value, expected) = (mixup.to_string(), "absent without `reference.sync_every`");
            return Err(SettingProblem::Invalid { value, expected }.at("reference.mixup"));
        }
        ValueRange::above(0.0, 1.0).check("reference.mixup", mixup)
    }
}
