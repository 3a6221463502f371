//! The resolved configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rloom_algo::{Algorithm, AlgorithmSettings};
use rloom_cluster::ClusterSettings;
use rloom_data::{DataSettings, Order};
use rloom_engine::{RolloutEngineSettings, SamplingSettings, TrainSettings};
use rloom_env::EnvironmentSettings;
use rloom_model::{Dtype, NewModel, NumericPath, OptimizerSettings};
use rloom_reward::RewardSettings;
use rloom_sched::ScheduleSettings;
use rloom_telemetry::Tracking;
use rloom_text::CharacterSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domains::DomainSettings;
use crate::keep_rollouts::KeepRollouts;
use crate::policies::PolicySettings;
use crate::teacher::TeacherSettings;
use crate::validation::ValidationSettings;

/// All settings of a run. [`Config::to_toml`] writes them; reading that text again gives an equal value.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The run: its name, directory, threads and checkpoints.
    pub run: RunSettings,
    /// Initial model of the first stage.
    pub model: ModelSource,
    /// Format of weights and activations in matrix products, in training, rollouts and evaluation alike: `model.dtype`.
    pub dtype: Dtype,
    /// Order in which bf16 products are summed: `model.numeric_path`.
    pub numeric_path: NumericPath,
    /// The machines of the run; `None` for this one alone.
    pub cluster: Option<ClusterSettings>,
    /// Policies besides the main one, by their names.
    pub policies: BTreeMap<String, PolicySettings>,
    /// Evaluation on held-out tasks; `None` for none.
    pub eval: Option<EvalSettings>,
    /// The stages, in order; at least one.
    pub stages: Vec<Stage>,
}

/// `[run]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunSettings {
    /// Name of the run and of its folder. Default: the name of the first configuration file, without its extension.
    pub name: String,
    /// Folder of the run directories.
    pub directory: PathBuf,
    /// Seed of all random streams.
    pub seed: u64,
    /// Compute threads; 0 for one per processor core. Does not affect results.
    pub threads: usize,
    /// Steps between checkpoints; 0 saves only at the end of each stage.
    pub checkpoint_every: u64,
    /// Time without any progress (a token, a reward, a micro-batch, a byte of a checkpoint) after which the run ends with a
    /// report of all waits, in seconds; 1 to 31536000 (a year).
    pub stall_seconds: u64,
    /// Number of most recent checkpoints to keep, at least 1.
    pub keep_last: u64,
    /// Also keeps every checkpoint whose step is a multiple of this number; 0 for none. The best checkpoint and the last
    /// one of each stage are always kept.
    pub keep_every: u64,
    /// Steps of each stage whose rollouts are kept, the most recent ones, or "all". 0 writes no rollout files. Lineage, replay
    /// and calibration need the rollouts of the steps that they look at; training and resuming do not.
    pub keep_rollouts: KeepRollouts,
    /// Folder of a run whose recorded rollouts are trained on instead of sampling, to debug training; `--rollouts` sets it.
    /// Nothing is sampled or evaluated. Stages, batch size and group size must be those of that run; log-probabilities are
    /// treated as those of an inexact sampler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollouts: Option<PathBuf>,
    /// With `"auto"`, the same command continues the run if it exists, as job schedulers need that start it again. Settings
    /// may change as with `--resume`. By default `rloom train` starts another run, with a number after its name.
    pub resume: Resume,
    /// Experiment trackers that the run is passed to while it trains: their names (`"wandb"`, `"mlflow"`, `"trackio"`), or
    /// tables such as `{ kind = "wandb", project = "sums", python = ".venv/bin/python" }`. The interpreter needs the
    /// package of the tracker. A tracker that fails is a warning.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tracking: Vec<Tracking>,
}

/// Behaviour if the run exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// Starts another run.
    #[default]
    Never,
    /// Continues the run.
    Auto,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            directory: PathBuf::from("runs"),
            seed: 0,
            threads: 0,
            checkpoint_every: 50,
            stall_seconds: 3600,
            keep_last: 2,
            keep_every: 0,
            keep_rollouts: KeepRollouts::All,
            rollouts: None,
            resume: Resume::Never,
            tracking: Vec::new(),
        }
    }
}

/// `[model]`: source of the initial model.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelSource {
    /// A Hugging Face folder, or `organisation/name[@revision]` on the hub.
    Path(String),
    /// A model initialised from scratch.
    New {
        /// Architecture of the transformer.
        model: NewModel,
        /// Character tokenizer of the model.
        tokenizer: CharacterSettings,
    },
}

/// `[eval]`: evaluation on held-out tasks, the same in every stage, so that results are comparable across the run.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalSettings {
    /// Steps between evaluations, unless a stage sets `eval_every`.
    pub every: u64,
    /// Number of held-out tasks.
    pub tasks: u64,
    /// Samples per task in addition to the greedy completion; 0 for none.
    pub samples: u32,
    /// Sampling; greedy without samples. Length and stop strings apply to greedy completions as well.
    pub sampling: SamplingSettings,
    /// Source of the tasks; its held-out split is used.
    pub data: DataSettings,
    /// Environment of the episodes.
    pub environment: EnvironmentSettings,
    /// Scoring of the completions.
    pub reward: RewardSettings,
    /// Rollout engine.
    pub rollout: RolloutEngineSettings,
    /// Further sets of held-out tasks.
    pub sets: Vec<EvalSet>,
}

/// One of `[[eval.sets]]`: a named set of held-out tasks, evaluated in addition to those of `[eval]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvalSet {
    /// Name, as in the metric `eval_set/<name>/accuracy`.
    pub name: String,
    /// Number of tasks, at least 1. Default: `eval.tasks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// Source of the tasks, with all of its keys; its held-out split is used.
    pub data: DataSettings,
    /// Environment of the episodes. Default: that of `[eval]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentSettings>,
    /// Scoring of the completions. Default: that of `[eval]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardSettings>,
}

impl EvalSettings {
    /// The evaluation of one of the further sets alone.
    #[must_use]
    pub fn of_set(&self, set: &EvalSet) -> Self {
        let EvalSet { tasks, data, environment, reward, .. } = set.clone();
        Self {
            tasks: tasks.unwrap_or(self.tasks),
            data,
            environment: environment.unwrap_or_else(|| self.environment.clone()),
            reward: reward.unwrap_or_else(|| self.reward.clone()),
            sets: Vec::new(),
            ..self.clone()
        }
    }

    /// The evaluation without its further sets, and each of these, with their names; the first has none.
    pub fn all_sets(&self) -> impl Iterator<Item = (Option<&str>, Self)> {
        let first = (None, Self { sets: Vec::new(), ..self.clone() });
        std::iter::once(first).chain(self.sets.iter().map(|set| (Some(set.name.as_str()), self.of_set(set))))
    }

    /// The data of all sets.
    pub fn all_data(&mut self) -> impl Iterator<Item = &mut DataSettings> {
        std::iter::once(&mut self.data).chain(self.sets.iter_mut().map(|set| &mut set.data))
    }
}

/// One `[[stage]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Name in checkpoints, the journal and overrides.
    pub name: String,
    /// Initial weights.
    pub start: Start,
    /// Number of steps; each trains one batch.
    pub steps: u64,
    /// Batch size: groups, or demonstrations in supervised stages.
    pub groups_per_batch: u64,
    /// Order of the tasks.
    pub order: Order,
    /// Steps between evaluations; 0 for none in this stage, and in stages of reward models, which generate nothing.
    pub eval_every: u64,
    /// Steps between checkpoints; 0 saves only at the end of the stage.
    pub checkpoint_every: u64,
    /// The method with all of its settings.
    pub algorithm: Algorithm,
    /// Settings of the algorithm without the defaults that depend on the sampler. For an exact sampler they resolve to
    /// [`algorithm`](Self::algorithm).
    pub algorithm_settings: AlgorithmSettings,
    /// Optimiser: its part of `[stage.trainer]`.
    pub optimizer: OptimizerSettings,
    /// Training engine: the rest of `[stage.trainer]`.
    pub trainer: TrainSettings,
    /// Source of the tasks.
    pub data: DataSettings,
    /// Environment of the episodes and of the demonstrations.
    pub environment: EnvironmentSettings,
    /// The teacher of a distillation, or the model that a KL is measured to instead of the start of the stage.
    pub teacher: Option<TeacherSettings>,
    /// Settings of sampling and scoring; `None` in supervised stages.
    pub rollout: Option<StageRollout>,
    /// Loss on held-out rows; `None` for none.
    pub validation: Option<ValidationSettings>,
}

/// Settings of a stage that samples and scores completions.
#[derive(Debug, Clone, PartialEq)]
pub struct StageRollout {
    /// Sampling of tokens.
    pub sampling: SamplingSettings,
    /// Allows training on samples of a truncated distribution.
    pub allow_truncated_sampling: bool,
    /// Rollout engine.
    pub engine: RolloutEngineSettings,
    /// Scoring of the completions.
    pub reward: RewardSettings,
    /// Interleaving of rollouts and training.
    pub schedule: ScheduleSettings,
    /// Quotas, filters and curriculum by domain.
    pub domains: DomainSettings,
}

impl Stage {
    /// True if the stage is trained in other processes.
    pub fn trains_outside(&self) -> bool {
        self.trainer.ranks().is_some()
    }

    /// True if the stage samples the held-out tasks of `[eval]`.
    pub fn samples_held_out(&self) -> bool {
        self.eval_every > 0
    }

    /// True if the stage trains a reward model, not a policy.
    pub fn trains_reward_model(&self) -> bool {
        self.algorithm.method.trains_reward_model()
    }

    /// Returns the schedule; in a supervised stage the default, which is synchronous.
    pub fn schedule(&self) -> ScheduleSettings {
        self.rollout.as_ref().map(|rollout| rollout.schedule).unwrap_or_default()
    }
}

/// Source of a stage's initial weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The model of `[model]`. Default of the first stage.
    Model,
    /// The final weights of an earlier stage, by index. Default: the previous stage.
    Stage(usize),
}

/// Value of `from` for the previous stage.
pub(crate) const PREVIOUS: &str = "previous";
/// Value of `from` for `[model]`.
pub(crate) const MODEL: &str = "model";

impl Config {
    /// Returns the run's directory.
    pub fn run_directory(&self) -> PathBuf {
        self.run.directory.join(&self.run.name)
    }

    /// Returns the value of a stage's `from`.
    pub fn start_name(&self, stage: &Stage) -> &str {
        match stage.start {
            Start::Model => MODEL,
            Start::Stage(index) => self.stages.get(index).map_or(PREVIOUS, |s| &s.name),
        }
    }
}
