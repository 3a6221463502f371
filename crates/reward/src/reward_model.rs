//! Reward models in folders of transformers, computed by this program or by processes of their own with PyTorch.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rloom_core::{SettingProblem, ValueRange};
use rloom_function::{Host, Limits, Peer, Pool, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::function::FunctionReward;
use crate::judge::{JudgeModels, ModelError, RewardModelKind, RewardScorer};
use crate::kind::KindSettings;
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward, StepRewards};

/// A reward model in a folder of transformers. The value is its last output, without an activation, or made of its judgements of
/// the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardModel {
    /// The folder, or `stage:NAME` for the model of an earlier stage of method `reward_model` or `prm`.
    pub model: String,
    /// The model is a process-reward model, which judges every step of a completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepRewards>,
    /// What computes it.
    #[serde(default)]
    pub backend: RewardBackend,
    /// Number of processes of PyTorch, from 1 to 1024, each with the whole model on a device of its own. They judge different groups.
    #[serde(default = "default_ranks")]
    pub ranks: u32,
    /// The processes use the GPUs of the trainer's ranks, the first ones, instead of others.
    #[serde(default)]
    pub colocate: bool,
    /// Most tokens that are computed at a time, those of padding included; at least one completion.
    #[serde(default = "default_batch_tokens")]
    pub batch_tokens: u64,
    /// The interpreter, which needs torch and transformers. Default: that of the environment `rloom engines install torch`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub python: String,
    /// The model sees the whole episode after the prompt, with the observations of the environment. Otherwise it sees what the policy wrote.
    #[serde(default)]
    pub observations: bool,
    /// The value from which on the task counts as solved, which makes the component a verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved_at: Option<f64>,
}

/// What computes a reward model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardBackend {
    /// PyTorch and transformers, in processes of their own.
    #[default]
    Torch,
    /// The engine of this program, for the architectures that it trains.
    Embedded,
}

/// Start of the name of a model that an earlier stage trains.
const STAGE: &str = "stage:";

impl RewardModel {
    /// The stage that trains the model, if it is not a folder.
    pub fn stage(&self) -> Option<&str> {
        self.model.strip_prefix(STAGE)
    }
}

fn default_ranks() -> u32 {
    1
}

fn default_batch_tokens() -> u64 {
    16_384
}

impl KindSettings for RewardModel {
    fn validate(&self) -> Result<(), ComponentError> {
        if self.model.trim().is_empty() {
            return Err(SettingProblem::Empty.at("model").into());
        }
        ValueRange::between(1.0, 1024.0).check("ranks", self.ranks.into())?;
        ValueRange::between(1.0, 1e9).check("batch_tokens", self.batch_tokens as f64)?;
        if self.backend != RewardBackend::Torch {
            for (key, is_set) in [
                ("ranks", self.ranks != default_ranks()),
                ("colocate", self.colocate),
                ("python", !self.python.is_empty()),
            ] {
                if is_set {
                    let unused = SettingProblem::Unused { other: "backend", value: "\"torch\"" };
                    return Err(unused.at(key).into());
                }
            }
        }
        if let Some(steps) = &self.steps {
            steps.validate()?;
        }
        if let Some(least) = self.solved_at {
            ValueRange::between(f64::MIN, f64::MAX).check("solved_at", least)?;
        }
        Ok(())
    }

    fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
        if self.backend == RewardBackend::Embedded {
            return Ok(Box::new(EmbeddedReward { settings: self.clone(), scorer: OnceLock::new() }));
        }
        Ok(Box::new(RanksOfModel {
            settings: self.clone(),
            timeout,
            host: OnceLock::new(),
            ranks: OnceLock::new(),
        }))
    }

    fn is_verifier(&self) -> bool {
        self.solved_at.is_some()
    }

    fn takes_solved_at(&self) -> bool {
        true
    }

    fn needs_machine(&self) -> bool {
        self.stage().is_none()
    }

    fn processes(&self) -> Option<usize> {
        (self.backend == RewardBackend::Torch).then_some(self.ranks as usize)
    }

    fn make_absolute(&mut self) {
        let absolute = |path: &mut String| {
            if let Ok(found) = std::path::absolute(&*path) {
                *path = found.display().to_string();
            }
        };
        if self.stage().is_none() {
            absolute(&mut self.model);
        }
        if self.python.contains('/') {
            absolute(&mut self.python);
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![Path::new(&self.model).join("config.json")]
    }
}

/// The processes of a reward model. They start with the first call.
#[derive(Debug)]
struct RanksOfModel {
    settings: RewardModel,
    timeout: Duration,
    host: OnceLock<Arc<dyn Host>>,
    ranks: OnceLock<FunctionReward>,
}

impl RanksOfModel {
    fn ranks(&self) -> Result<&FunctionReward, ModelError> {
        self.ranks.get().ok_or_else(|| self.failed("it has not been opened"))
    }

    fn failed(&self, reason: &str) -> ModelError {
        ModelError::Embedded { model: self.settings.model.clone(), reason: reason.to_owned() }
    }

    fn start(&self, python: &str) -> FunctionReward {
        let RewardModel { model, ranks, batch_tokens, observations, solved_at, steps, .. } = &self.settings;
        let steps = steps.as_ref().map(|steps| (steps.reduce.name(), &*steps.separator));
        let peer = Peer::reward_model(model, *batch_tokens, steps, python, Role::Reward { group: true });
        let limits = Limits { workers: *ranks as usize, timeout: self.timeout, recycle: None, memory: None };
        let pool = Pool::new(peer, limits);
        if let Some(host) = self.host.get() {
            pool.place(Arc::clone(host));
        }
        FunctionReward::of_groups(pool.into(), *observations, *solved_at)
    }
}

impl Reward for RanksOfModel {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        self.ranks()?.judge(completion)
    }

    fn judge_group(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        self.ranks()?.judge_group(completions)
    }

    fn judges_groups(&self) -> bool {
        true
    }

    fn reads_observations(&self) -> bool {
        self.settings.observations
    }

    fn waiting_slots(&self) -> usize {
        self.settings.ranks as usize
    }

    fn place(&self, host: Arc<dyn Host>) {
        // Called once, before the processes start.
        let _ = self.host.set(host);
    }

    fn open_models(&self, models: &dyn JudgeModels) -> Result<(), JudgeError> {
        if self.settings.stage().is_some() {
            // Before its stage has run.
            return Ok(());
        }
        let python = match self.settings.python.as_str() {
            "" => models.python().ok_or_else(|| {
                self.failed("there is no environment of PyTorch: make one with `rloom engines install torch`, or name an interpreter in `python`")
            })?,
            python => python.to_owned(),
        };
        self.ranks.get_or_init(|| self.start(&python));
        Ok(())
    }

    fn prepare(&self) -> Result<(), JudgeError> {
        if self.settings.stage().is_some() {
            return Ok(());
        }
        self.ranks()?.prepare()
    }

    fn close(&self) {
        if let Some(ranks) = self.ranks.get() {
            ranks.close();
        }
    }

    fn is_verifier(&self) -> bool {
        self.settings.solved_at.is_some()
    }
}

/// A reward model that this program computes.
#[derive(Debug)]
struct EmbeddedReward {
    settings: RewardModel,
    scorer: OnceLock<Arc<dyn RewardScorer>>,
}

impl EmbeddedReward {
    fn score(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        let RewardModel { model, solved_at, steps, .. } = &self.settings;
        let scorer = self.scorer.get().ok_or_else(|| ModelError::Embedded {
            model: model.clone(),
            reason: "it has not been opened".to_owned(),
        })?;
        let Some(first) = completions.first() else { return Ok(Vec::new()) };
        let texts: Vec<&str> = completions.iter().map(|completion| completion.text).collect();
        let values = match steps {
            None => scorer.score(first.task, &texts)?,
            Some(steps) => {
                let divided: Vec<_> = texts.iter().map(|text| steps.divide(text)).collect();
                let logits = scorer.score_steps(first.task, &divided)?;
                logits.iter().map(|logits| steps.value(logits)).collect()
            }
        };
        let assessed = |value: f64| Assessment {
            solved: solved_at.map(|least| value >= least),
            ..Assessment::value(value)
        };
        Ok(values.into_iter().map(assessed).collect())
    }
}

impl Reward for EmbeddedReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let assessed = self.score(&[*completion])?;
        Ok(assessed.into_iter().next().unwrap_or_default())
    }

    fn judge_group(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        self.score(completions)
    }

    fn judges_groups(&self) -> bool {
        true
    }

    fn reads_observations(&self) -> bool {
        self.settings.observations
    }

    fn open_models(&self, models: &dyn JudgeModels) -> Result<(), JudgeError> {
        if self.settings.stage().is_some() || self.scorer.get().is_some() {
            // Before its stage has run there is no model.
            return Ok(());
        }
        let RewardModel { model, batch_tokens, steps, .. } = &self.settings;
        let kind = if steps.is_some() { RewardModelKind::Process } else { RewardModelKind::Sequence };
        let scorer = models.reward_model(model, kind, *batch_tokens)?;
        self.scorer.get_or_init(|| scorer);
        Ok(())
    }

    fn is_verifier(&self) -> bool {
        self.settings.solved_at.is_some()
    }
}
