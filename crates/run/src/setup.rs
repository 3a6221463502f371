//! From a configuration to the parts of a run: model, tokenizer, data, engines.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rloom_config::{Config, EvalSettings, ModelSource, Priority, Stage as StageConfig, StageRollout, Start};
use rloom_data::{Cursor, Dataset, Split};
use rloom_env::EnvironmentSettings;
use rloom_model::{Compute, GenerationConfig, Model, hub};
use rloom_ops::{Ctx, Isa};
use rloom_reward::{RewardSettings, Scorer};
use rloom_rollout::{EmbeddedEngine, RolloutSettings};
use rloom_text::Tokenizer;
use tokio::sync::Semaphore;

use crate::RunError;
use crate::checkpoint::Checkpoints;
use crate::demonstrations::DemonstrationSource;
use crate::episodes::{Attempts, Counters, GroupSource};
use crate::evaluate::Evaluator;
use crate::stage::Source;
use crate::waits::Waits;

fn setup(error: impl std::fmt::Display) -> RunError {
    RunError::Setup(error.to_string())
}

/// A policy as a folder holds it.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The weights.
    pub model: Arc<Model>,
    /// The tokenizer that belongs to them.
    pub tokenizer: Arc<Tokenizer>,
    /// What ends a text, and recommended sampling.
    pub generation: GenerationConfig,
}

impl Policy {
    /// Opens a Hugging Face folder, to be computed with in this format.
    pub fn open(folder: &Path, compute: Compute) -> Result<Self, RunError> {
        let model = Model::load(folder).map_err(setup)?.with_compute(compute);
        let tokenizer = Tokenizer::load(folder).map_err(setup)?;
        let generation = GenerationConfig::load(folder, model.config()).map_err(setup)?;
        Ok(Self { model: Arc::new(model), tokenizer: Arc::new(tokenizer), generation })
    }

    /// Opens a local folder or a model of the hub.
    pub fn resolve(source: &str, compute: Compute) -> Result<Self, RunError> {
        let folder = hub::resolve(source, &hub::HubOptions::from_env()).map_err(setup)?;
        Self::open(&folder, compute)
    }

    /// What the configuration's `[model]` says, before any training.
    pub fn initial(config: &Config) -> Result<Self, RunError> {
        match &config.model {
            ModelSource::Path(source) => Self::resolve(source, config.compute),
            ModelSource::New { model, tokenizer } => {
                let tokenizer = Tokenizer::characters(tokenizer).map_err(setup)?;
                let shape = model.config(tokenizer.vocab_size()).map_err(setup)?;
                let mut model = Model::init(&shape, config.run.seed).with_compute(config.compute);
                let eos = tokenizer.eos_ids().to_vec();
                model.set_special_tokens(tokenizer.bos_id(), &eos, tokenizer.pad_id());
                let generation = GenerationConfig::new(tokenizer.bos_id(), eos, tokenizer.pad_id());
                Ok(Self { model: Arc::new(model), tokenizer: Arc::new(tokenizer), generation })
            }
        }
    }

    /// Ids that end a completion: the tokenizer's and those of `generation_config.json`.
    pub fn stop_tokens(&self) -> Arc<[u32]> {
        let mut ids = self.tokenizer.eos_ids().to_vec();
        ids.extend(&self.generation.eos_token_ids);
        ids.sort_unstable();
        ids.dedup();
        ids.into()
    }
}

/// The tokenizer of the run in `directory`, from its files alone: nothing is downloaded. `None` where it is not at hand.
pub(crate) fn tokenizer_of(directory: &Path) -> Option<Tokenizer> {
    let (checkpoints, _) = Checkpoints::at(directory.join("checkpoints")).list().ok()?;
    if let Some((_, folder)) = checkpoints.last() {
        return Tokenizer::load(folder).ok();
    }
    let config = Config::load(&[directory.join("config.toml")], &[] as &[&str]).ok()?;
    match &config.model {
        ModelSource::Path(folder) => Tokenizer::load(Path::new(folder)).ok(),
        ModelSource::New { tokenizer, .. } => Tokenizer::characters(tokenizer).ok(),
    }
}

/// What all stages share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) seed: u64,
    pub(crate) ctx: Ctx,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) stop_tokens: Arc<[u32]>,
    pub(crate) context: usize,
}

/// The compute context of a run: its threads on this machine.
pub fn context(threads: usize) -> Result<Ctx, RunError> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ctx::new(if threads == 0 { available } else { threads }).map_err(setup)
}

/// What a run records of how it is computed: in f32 the instruction set, in bf16 the way in which products are summed,
/// which is what the bits depend on.
pub(crate) fn numeric_path(ctx: &Ctx, compute: Compute) -> String {
    match (compute, ctx.isa()) {
        // Both have more to multiply bf16 numbers with, and nothing else.
        (Compute::F32, Isa::Avx512Bf16 | Isa::Amx) => Isa::Avx512.name().to_owned(),
        (Compute::F32, isa) => isa.name().to_owned(),
        (Compute::Bf16, Isa::Amx) => "bf16 tiles".to_owned(),
        (Compute::Bf16, _) => "bf16 dot pairs".to_owned(),
    }
}

impl Shared {
    pub(crate) fn new(policy: &Policy, ctx: Ctx, seed: u64) -> Self {
        Self {
            seed,
            ctx,
            tokenizer: Arc::clone(&policy.tokenizer),
            stop_tokens: policy.stop_tokens(),
            context: policy.model.config().max_positions,
        }
    }

    /// A context of so many threads on the run's instruction set.
    pub(crate) fn ctx_of(&self, threads: usize) -> Result<Ctx, RunError> {
        if threads == self.ctx.threads() {
            return Ok(self.ctx.clone());
        }
        Ctx::with_isa(threads, self.ctx.isa()).map_err(setup)
    }

    pub(crate) fn engine(
        &self,
        policy: &Policy,
        settings: &RolloutSettings,
    ) -> Result<Arc<EmbeddedEngine>, RunError> {
        let tokenizer = Some((*self.tokenizer).clone());
        let engine = EmbeddedEngine::new(policy.model.config(), &self.ctx, settings, tokenizer);
        engine.map(Arc::new).map_err(setup)
    }

    fn attempts(
        &self,
        engine: &Arc<EmbeddedEngine>,
        environment: EnvironmentSettings,
        reward: &RewardSettings,
        rollout: &RolloutSettings,
        stage: u32,
    ) -> Result<Arc<Attempts<EmbeddedEngine>>, RunError> {
        Ok(Arc::new(Attempts {
            engine: Arc::clone(engine),
            environment: environment.environment(),
            tokenizer: Arc::clone(&self.tokenizer),
            scorer: Arc::new(Scorer::new(reward, self.seed, stage).map_err(setup)?),
            context: self.context,
            seed: self.seed,
            stage,
            stop_tokens: Arc::clone(&self.stop_tokens),
            judges: Semaphore::new(self.ctx.threads() + 2),
            deadline: Duration::from_secs_f64(rollout.deadline_seconds),
            reward_deadline: Duration::from_secs_f64(reward.timeout_seconds),
            stopping: AtomicBool::new(false),
            waits: Waits::default(),
        }))
    }

    /// Where the groups of a stage come from.
    pub(crate) fn source(
        &self,
        index: u32,
        stage: &StageConfig,
        engine: Option<&Arc<EmbeddedEngine>>,
    ) -> Result<Source, RunError> {
        let seed = self.seed;
        let open = |split| Dataset::open(&stage.data, split, seed).map_err(setup);
        let cursor = |dataset: &Dataset| Cursor::new(dataset.len(), stage.order, seed, index).map_err(setup);
        let Some((rollout, engine)) = stage.rollout.as_ref().zip(engine) else {
            let dataset = open(Split::Demonstration)?;
            let cursor = cursor(&dataset)?;
            let tokenizer = Arc::clone(&self.tokenizer);
            return Ok(Source::Demonstrations(DemonstrationSource {
                dataset,
                cursor,
                tokenizer,
                environment: stage.environment.environment(),
                context: self.context,
                deadline: Duration::from_secs_f64(RolloutSettings::default().deadline_seconds),
            }));
        };
        let dataset = open(Split::Train)?;
        Ok(Source::Rollouts(Arc::new(GroupSource {
            attempts: self.attempts(engine, stage.environment, &rollout.reward, &rollout.engine, index)?,
            cursor: cursor(&dataset)?,
            dataset: Arc::new(dataset),
            group_size: stage.algorithm.group_size,
            has_baseline: stage.algorithm.needs_baseline_episode(),
            overlong: stage.algorithm.overlong,
            completion_limit: completion_limit(stage, rollout),
            sampling: rollout.sampling.clone(),
            oldest_first: rollout.schedule.priority == Priority::Oldest,
            counters: Arc::new(Counters::default()),
        })))
    }

    /// The held-out evaluation. Its random streams belong to no stage, so that all evaluations share their noise.
    pub(crate) fn evaluator(
        &self,
        eval: &EvalSettings,
        engine: &Arc<EmbeddedEngine>,
    ) -> Result<Evaluator<EmbeddedEngine>, RunError> {
        let dataset = Dataset::open(&eval.data, Split::Eval, self.seed).map_err(setup)?;
        let tasks = eval.tasks.min(dataset.len());
        Ok(Evaluator {
            attempts: self.attempts(engine, eval.environment, &eval.reward, &eval.rollout, u32::MAX)?,
            dataset,
            tasks,
            samples: if eval.sampling.is_greedy() { 0 } else { eval.samples },
            sampling: eval.sampling.clone(),
            counters: Arc::new(Counters::default()),
        })
    }
}

/// Most policy tokens of an episode of a stage that samples, over all its turns.
pub(crate) fn completion_limit(stage: &StageConfig, rollout: &StageRollout) -> u64 {
    (rollout.sampling.max_new_tokens * stage.environment.max_turns()) as u64
}

/// The stage whose end another one starts from; `None` for the configuration's model.
pub(crate) fn start_of(stage: &StageConfig) -> Option<usize> {
    match stage.start {
        Start::Model => None,
        Start::Stage(place) => Some(place),
    }
}
