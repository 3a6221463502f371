//! The configuration's own tables as they are written in a file. The other tables are read by the types of the crates
//! that own them; their schemas are part of the schema of the file.

use std::collections::BTreeMap;
use std::fmt;

use rloom_algo::{AlgorithmSettings, Method};
use rloom_cluster::ClusterSettings;
use rloom_data::{DataSettings, Order};
use rloom_engine::{RolloutEngineSettings, SamplingSettings};
use rloom_env::EnvironmentSettings;
use rloom_model::{Dtype, NewModel, NumericPath};
use rloom_reward::RewardSettings;
use rloom_sched::ScheduleSettings;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::domains::DomainSettings;
use crate::policies::PolicySettings;
use crate::schema::{TrainerTable, method_schema};
use crate::settings::{EvalSet, RunSettings};
use crate::teacher::TeacherSettings;
use crate::validation::ValidationSettings;

/// A table whose content is read elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subtable;

impl<'de> Deserialize<'de> for Subtable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyTable;
        impl<'de> Visitor<'de> for AnyTable {
            type Value = Subtable;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Subtable, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Subtable)
            }
        }
        deserializer.deserialize_map(AnyTable)
    }
}

/// The list of stages, which are read one by one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stages;

impl<'de> Deserialize<'de> for Stages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Subtable>::deserialize(deserializer).map(|_| Self)
    }
}

/// A recipe of RLoom.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "some fields only declare a key that is read elsewhere")]
pub(crate) struct RootKeys {
    /// The run: its name, directory, threads and checkpoints.
    #[serde(default)]
    pub(crate) run: RunSettings,
    /// The model that training starts from: either `path` or `[model.new]`.
    #[serde(default)]
    pub(crate) model: ModelKeys,
    /// Tokenizer of a new model. Its tokens are characters.
    pub(crate) tokenizer: Option<TokenizerKeys>,
    /// The machines of the run. Without this table a run uses this machine alone, and nothing listens on its network.
    pub(crate) cluster: Option<ClusterSettings>,
    /// Tasks of all stages and of evaluation: `path` or `generator`, with the keys of that source, or `sources`. A stage's own
    /// table overrides single keys.
    #[schemars(with = "Option<DataSettings>")]
    data: Option<Subtable>,
    /// Environment of all stages and of evaluation, with the keys of its kind.
    #[schemars(with = "Option<EnvironmentSettings>")]
    environment: Option<Subtable>,
    /// Sampling of training rollouts in all stages. Evaluation takes over `max_new_tokens` and `stop` only.
    #[schemars(with = "Option<SamplingSettings>")]
    sampling: Option<Subtable>,
    /// Reward of all stages and of evaluation.
    #[schemars(with = "Option<RewardSettings>")]
    reward: Option<Subtable>,
    /// Optimiser and training engine of all stages.
    #[schemars(with = "Option<TrainerTable>")]
    trainer: Option<Subtable>,
    /// Rollout engine of all stages and of evaluation.
    #[schemars(with = "Option<RolloutEngineSettings>")]
    rollout: Option<Subtable>,
    /// Interleaving of rollouts and training in all stages that sample.
    #[schemars(with = "Option<ScheduleSettings>")]
    schedule: Option<Subtable>,
    /// Quotas, filters and curriculum by domain, in all stages that sample.
    #[schemars(with = "Option<DomainSettings>")]
    domains: Option<Subtable>,
    /// Loss on held-out rows in all stages that learn from rows.
    #[schemars(with = "Option<ValidationSettings>")]
    validation: Option<Subtable>,
    /// Policies in addition to the main one, `[policies.NAME]`, for agents of the environment that name them.
    #[serde(default)]
    pub(crate) policies: BTreeMap<String, PolicySettings>,
    /// Evaluation on held-out tasks. Without this table nothing is evaluated.
    pub(crate) eval: Option<EvalKeys>,
    /// The stages of the run, in order.
    #[schemars(with = "Vec<StageKeys>")]
    stage: Option<Stages>,
}

/// `[model]`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelKeys {
    /// Hugging Face folder, or `organisation/name[@revision]` on the hub. A run records the commit.
    pub(crate) path: Option<String>,
    /// Architecture of a model initialised from scratch.
    pub(crate) new: Option<NewModel>,
    /// Format of weights and activations in matrix products, in training, rollouts and evaluation alike.
    pub(crate) dtype: Dtype,
    /// Order in which bf16 products are summed here. A run records the processor's, and keeps it when it is resumed or
    /// replayed on another one.
    pub(crate) numeric_path: NumericPath,
}

/// `[tokenizer]`.
#[derive(Debug, Default, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TokenizerKeys {
    /// The characters, one token each. Default: the characters of the generated tasks and of the environment.
    pub(crate) alphabet: Option<String>,
    /// Starts every sequence with a beginning-of-sequence token.
    pub(crate) bos: bool,
    /// Jinja template of conversations. Default: none, prompts are plain text.
    pub(crate) chat_template: Option<String>,
}

/// `[eval]`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EvalKeys {
    /// Steps between evaluations, at least 1. The first and last version of a stage are always evaluated.
    pub(crate) every: u64,
    /// Number of held-out tasks, the same ones in every evaluation; at least 1.
    pub(crate) tasks: u64,
    /// Samples per task in addition to the greedy completion that gives the accuracy; they estimate `eval/pass@k` for k =
    /// 1, 2, 4 … up to this number. 0: greedy only.
    pub(crate) samples: u32,
    /// Sampling of evaluation, over `max_new_tokens` and `stop` of the last stage that samples.
    #[schemars(with = "Option<SamplingSettings>")]
    sampling: Option<Subtable>,
    /// Overrides of the last stage's data. Its held-out tasks are evaluated; keys of the training tasks alone are refused.
    #[schemars(with = "Option<DataSettings>")]
    data: Option<Subtable>,
    /// Overrides of the last stage's environment.
    #[schemars(with = "Option<EnvironmentSettings>")]
    environment: Option<Subtable>,
    /// Overrides of the reward of the last stage that samples. It needs a verifier, which determines the accuracy.
    #[schemars(with = "Option<RewardSettings>")]
    reward: Option<Subtable>,
    /// Overrides of the rollout engine of the last stage that samples, for supervised stages and `rloom eval`. Stages that
    /// sample evaluate with their own engine: if no other stage is evaluated, only `timeout_seconds` may differ.
    #[schemars(with = "Option<RolloutEngineSettings>")]
    rollout: Option<Subtable>,
    /// Further sets of held-out tasks, evaluated together with these. Sampling and engine are the same.
    pub(crate) sets: Vec<EvalSet>,
}

impl Default for EvalKeys {
    fn default() -> Self {
        Self {
            every: 10,
            tasks: 128,
            samples: 0,
            sampling: None,
            data: None,
            environment: None,
            reward: None,
            rollout: None,
            sets: Vec::new(),
        }
    }
}

/// `[[stage]]`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "some fields only declare a key that is read elsewhere")]
pub(crate) struct StageKeys {
    /// Name in checkpoints, the journal and overrides (`--set stage.NAME.steps=20`). Required.
    pub(crate) name: String,
    /// Training method. Required.
    #[schemars(schema_with = "method_schema")]
    pub(crate) method: Method,
    /// Initial weights: `"model"` for `[model]`, `"previous"`, or the name of an earlier stage. Default: the previous
    /// stage, or `"model"` in the first one.
    pub(crate) from: Option<String>,
    /// Number of steps; each trains one batch. Required, at least 1.
    pub(crate) steps: u64,
    /// Batch size: groups, each of `algorithm.group_size` episodes of one task, or demonstrations in supervised stages.
    /// Required, at least 1.
    pub(crate) groups_per_batch: u64,
    /// Order of the tasks.
    #[serde(default)]
    pub(crate) order: Order,
    /// Steps between evaluations; 0 for none in this stage. Default: `eval.every`. Stages that train a reward model generate nothing
    /// to evaluate: see `validation`.
    pub(crate) eval_every: Option<u64>,
    /// Steps between checkpoints; 0 saves only at the end of the stage. Default: `run.checkpoint_every`.
    pub(crate) checkpoint_every: Option<u64>,
    /// Allows training on samples of a truncated distribution (`top_k`, `top_p`, `min_p`, `min_new_tokens`), whose
    /// importance ratios are then biased. Default: false.
    pub(crate) allow_truncated_sampling: Option<bool>,
    /// Overrides of the method's settings. Defaults depend on the method: see its page in `docs/algorithms`.
    #[serde(default)]
    pub(crate) algorithm: AlgorithmSettings,
    /// Teacher of a distillation; in other methods the model that `algorithm.kl` is measured to, instead of the weights that
    /// the stage starts from.
    pub(crate) teacher: Option<TeacherSettings>,
    /// Overrides of `[data]` in this stage.
    #[schemars(with = "Option<DataSettings>")]
    data: Option<Subtable>,
    /// Overrides of `[environment]` in this stage.
    #[schemars(with = "Option<EnvironmentSettings>")]
    environment: Option<Subtable>,
    /// Overrides of `[sampling]` in this stage.
    #[schemars(with = "Option<SamplingSettings>")]
    sampling: Option<Subtable>,
    /// Overrides of `[reward]` in this stage.
    #[schemars(with = "Option<RewardSettings>")]
    reward: Option<Subtable>,
    /// Overrides of `[trainer]` in this stage.
    #[schemars(with = "Option<TrainerTable>")]
    trainer: Option<Subtable>,
    /// Overrides of `[rollout]` in this stage.
    #[schemars(with = "Option<RolloutEngineSettings>")]
    rollout: Option<Subtable>,
    /// Overrides of `[schedule]` in this stage.
    #[schemars(with = "Option<ScheduleSettings>")]
    schedule: Option<Subtable>,
    /// Overrides of `[domains]` in this stage.
    #[schemars(with = "Option<DomainSettings>")]
    domains: Option<Subtable>,
    /// Overrides of `[validation]` in this stage.
    #[schemars(with = "Option<ValidationSettings>")]
    validation: Option<Subtable>,
}
