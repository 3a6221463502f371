//! The typed configuration, resolved: what a run is made of.

use std::path::PathBuf;

use rloom_algo::{Algorithm, AlgorithmSettings};
use rloom_data::{DataSettings, Order};
use rloom_engine::TrainSettings;
use rloom_engine::{RolloutSettings, SamplingSettings};
use rloom_env::EnvironmentSettings;
use rloom_model::{Dtype, NewModel, OptimizerSettings};
use rloom_reward::RewardSettings;
use rloom_sched::ScheduleSettings;
use rloom_text::CharacterSettings;
use serde::{Deserialize, Serialize};

/// Everything that a run is told. [`Config::to_toml`] writes it, and reading that again gives the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The run itself.
    pub run: RunSettings,
    /// What the first stage starts from.
    pub model: ModelSource,
    /// `model.compute`: the format of activations and of the weights in matrix products, in training, rollouts and
    /// evaluation alike.
    pub dtype: Dtype,
    /// How held-out tasks are tried; `None` for no evaluation.
    pub eval: Option<EvalSettings>,
    /// What is trained, in order; at least one stage.
    pub stages: Vec<Stage>,
}

/// `[run]`: name, place and upkeep of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSettings {
    /// The run's name, which is its folder's; by default that of the first configuration file.
    pub name: String,
    /// The folder that holds run directories.
    pub directory: PathBuf,
    /// Seed of every random stream.
    pub seed: u64,
    /// Threads that compute; 0 takes one per processor core. No result depends on it.
    pub threads: usize,
    /// Steps between checkpoints; 0 saves at the end of each stage alone.
    pub checkpoint_every: u64,
    /// Longest time in which nothing at all happens: no token, no reward, no optimiser step (seconds). Then the run ends
    /// and says who waited for whom.
    pub stall_seconds: u64,
    /// Newest checkpoints that are kept.
    pub keep_last: u64,
    /// Checkpoints whose step is a multiple of this are kept for ever; 0 keeps none but the newest, the best and the
    /// last of each stage.
    pub keep_every: u64,
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
        }
    }
}

/// `[model]`: where the first policy comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelSource {
    /// `path`: a Hugging Face folder, or `organisation/name[@revision]` on the hub.
    Path(String),
    /// `[model.new]` and `[tokenizer]`: made from nothing.
    New {
        /// The transformer.
        model: NewModel,
        /// Its character tokenizer.
        tokenizer: CharacterSettings,
    },
}

/// `[eval]`: how held-out tasks are tried, in every stage alike, so that numbers compare over the whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalSettings {
    /// Steps between evaluations; the first and the last version of a stage are always evaluated. A stage may say
    /// otherwise with `eval_every`.
    pub every: u64,
    /// Held-out tasks, the same ones every time.
    pub tasks: u64,
    /// Every task is tried once greedily, which gives the accuracy. With `samples` above 0 it is also sampled so many
    /// times, from which `eval/pass@k` is estimated for k = 1, 2, 4 … up to it.
    pub samples: u32,
    /// How the samples are drawn; greedy where there are none. Length and stop strings hold for greedy completions,
    /// too, and are by default the last reinforcement-learning stage's.
    pub sampling: SamplingSettings,
    /// Where the tasks come from: by default the last stage's data, whose held-out split is used.
    pub data: DataSettings,
    /// What they are played in: by default the last stage's environment.
    pub environment: EnvironmentSettings,
    /// How completions are judged: by default as in the last reinforcement-learning stage.
    pub reward: RewardSettings,
    /// The engine that generates: by default as in the last reinforcement-learning stage.
    pub rollout: RolloutSettings,
}

/// One `[[stage]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Its name: checkpoints, journal and overrides carry it.
    pub name: String,
    /// The model that it starts from.
    pub start: Start,
    /// Batches to train.
    pub steps: u64,
    /// Tasks of a batch: sequences in supervised stages, groups elsewhere.
    pub groups_per_batch: u64,
    /// In which order tasks come.
    pub order: Order,
    /// Steps between evaluations; 0 for none in this stage, not even at its ends.
    pub eval_every: u64,
    /// Steps between checkpoints; 0 saves at the end of the stage alone.
    pub checkpoint_every: u64,
    /// The method with all its knobs.
    pub algorithm: Algorithm,
    /// The settings of the algorithm that the recipe states; [`algorithm`](Self::algorithm) is resolved from them for an exact
    /// sampler.
    pub algorithm_settings: AlgorithmSettings,
    /// How weights change: the part of `[stage.trainer]` that is the optimiser's.
    pub optimizer: OptimizerSettings,
    /// How the trainer divides its work: the rest of `[stage.trainer]`.
    pub trainer: TrainSettings,
    /// Where tasks come from.
    pub data: DataSettings,
    /// What the policy acts in, and what demonstrations are played in.
    pub environment: EnvironmentSettings,
    /// What only a stage that samples has; `None` in supervised ones.
    pub rollout: Option<StageRollout>,
}

/// The settings of a stage that samples completions and judges them.
#[derive(Debug, Clone, PartialEq)]
pub struct StageRollout {
    /// How tokens are chosen.
    pub sampling: SamplingSettings,
    /// Trains although the sampler is another distribution than the one whose log-probabilities are reported.
    pub allow_truncated_sampling: bool,
    /// The engine.
    pub engine: RolloutSettings,
    /// How completions are judged.
    pub reward: RewardSettings,
    /// How far rollouts may run ahead of training, and what happens to those that are late or fail.
    pub schedule: ScheduleSettings,
}

impl Stage {
    /// How rollouts and training go together; a supervised stage takes turns.
    pub fn schedule(&self) -> ScheduleSettings {
        self.rollout.as_ref().map(|rollout| rollout.schedule).unwrap_or_default()
    }
}

/// Where a stage's weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// `from = "model"`: what `[model]` says. The first stage starts here.
    Model,
    /// The end of an earlier stage, by its place. By default the one before.
    Stage(usize),
}

/// `from` for the stage before.
pub(crate) const PREVIOUS: &str = "previous";
/// `from` for the `[model]`.
pub(crate) const MODEL: &str = "model";

impl Config {
    /// The run's directory.
    pub fn run_directory(&self) -> PathBuf {
        self.run.directory.join(&self.run.name)
    }

    /// What a stage's `from` says.
    pub fn start_name(&self, stage: &Stage) -> &str {
        match stage.start {
            Start::Model => MODEL,
            Start::Stage(place) => self.stages.get(place).map_or(PREVIOUS, |s| &s.name),
        }
    }
}
