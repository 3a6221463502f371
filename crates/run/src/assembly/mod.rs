//! Assembly of the engines of a run: the one place that names the embedded ones.

mod agents;
mod configured;
mod functions;
mod further;
mod judges;
mod placement;
mod ranks;
mod reward_models;
mod rollout;
mod running_servers;
mod servers;
mod train;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Sampling from logits, for commands that step a model themselves.
pub use placement::{Offer, Place, PlacedRole, Placement, PlacementError, Slots};
use rloom_algo::{Algorithm, Backbone};
use rloom_config::{Config, Stage};
use rloom_core::{PolicyId, PolicyVersion};
use rloom_embedded::{
    EmbeddedRolloutEngine, EmbeddedTrainEngine, adapted, model_of, publish_model, publish_packed,
};
pub use rloom_embedded::{Prediction, SampleScratch, Sampler, lora_config, model_checkpointing};
use rloom_engine::sizing::CacheShape;
use rloom_engine::{
    ActivationCheckpointing, LoraSettings, PublishedPolicy, PublishedWeights, RolloutCapabilities,
    RolloutEngine, RolloutEngineSettings, RolloutSettings, TrainCapabilities, TrainEngine, TrainError,
};
use rloom_hub::Hub;
use rloom_learn::Models;
use rloom_model::{Dtype, GenerationConfig, Model, ModelConfig, OptimizerSettings, OutputHeads};
use rloom_ops::Ctx;
use rloom_stage::{PolicyWriter, StageError};
use rloom_text::Tokenizer;

pub use self::agents::AgentServers;
pub(crate) use self::configured::ConfiguredEngines;
pub use self::functions::FunctionHosts;
pub use self::judges::EmbeddedJudges;
pub(crate) use self::placement::eval_prefix;
pub use self::running_servers::running_servers;
pub(crate) use self::servers::Servers;
use crate::teacher::StageTeacher;
use crate::{Policy, RunError};

/// Weights that a stage starts from.
#[derive(Debug, Clone)]
pub enum StageStart {
    /// Those that the configuration names.
    Initial,
    /// Those that an earlier stage of this process published last.
    Published(PublishedPolicy),
}

/// Builds the engines of a run. The product has [`EmbeddedEngines`]; tests build runs on other engines.
pub trait EngineFactory {
    /// Generates the rollouts.
    type Rollout: RolloutEngine + 'static;
    /// Trains the models.
    type Train: TrainEngine + 'static;

    /// Builds a rollout engine for the policy's architecture.
    fn rollout(&self, settings: &RolloutEngineSettings) -> Result<Self::Rollout, RunError>;

    /// Builds a rollout engine for the policies of a stage. By default, it is that of any stage.
    fn rollout_of_stage(
        &self,
        settings: &RolloutEngineSettings,
        stage: &Stage,
        start: &StageStart,
    ) -> Result<Self::Rollout, RunError> {
        let _ = (stage, start);
        self.rollout(settings)
    }

    /// Builds the train engines of a stage on `threads` threads: policy, and critic and process-reward model if the
    /// algorithm has them. All start from `start`.
    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<Self::Train>, RunError>;

    /// Opens a Hugging Face folder that a checkpoint holds as the publication of a version.
    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError>;

    /// The weights of a start as a publication of version 0.
    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError>;

    /// Capabilities of the train engines of a stage.
    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities;

    /// True if completions that a stage samples with the policy that it trains have the log-probabilities that the trainer computes, bit
    /// by bit: the rollout engines' capabilities will say so.
    fn is_sampler_exact(&self, stage: &Stage) -> bool;

    /// Writes publications to folders.
    fn writer(&self) -> Arc<dyn PolicyWriter>;

    /// Gives the policy a teacher, which the default refuses.
    fn add_teacher(&self, models: &mut Models<Self::Train>, teacher: StageTeacher) -> Result<(), RunError> {
        let _ = (models, teacher);
        Err(RunError::NoTeacherEngine)
    }

    /// The engines of a further policy with a model of its own, which the default refuses.
    fn of_policy(&self, policy: &Policy) -> Result<Box<PolicyEngines<'_, Self>>, RunError>
    where
        Self: Sized,
    {
        let _ = policy;
        Err(RunError::OnePolicy)
    }
}

/// Engines of a further policy, of the same types as those of the main one.
pub type PolicyEngines<'a, F> =
    dyn EngineFactory<Rollout = <F as EngineFactory>::Rollout, Train = <F as EngineFactory>::Train> + 'a;

/// The embedded engines: training and rollouts inside this process.
#[derive(Debug)]
pub struct EmbeddedEngines {
    ctx: Ctx,
    policy: Policy,
    dtype: Dtype,
    /// Seed of new adapters.
    seed: u64,
}

impl EmbeddedEngines {
    /// Creates the engines of a policy in the configuration's dtype, computing in `ctx`.
    pub fn new(policy: &Policy, config: &Config, ctx: Ctx) -> Self {
        Self { ctx, policy: policy.clone(), dtype: config.dtype, seed: config.run.seed }
    }

    /// The engines of another policy, in the same context.
    fn for_policy(&self, policy: &Policy) -> Self {
        Self { ctx: self.ctx.clone(), policy: policy.clone(), dtype: self.dtype, seed: self.seed }
    }

    /// A compute context of `threads` threads.
    fn ctx_of(&self, threads: usize) -> Result<Ctx, RunError> {
        if threads == self.ctx.threads() {
            return Ok(self.ctx.clone());
        }
        Ok(self.ctx.with_threads(threads)?)
    }

    fn model(&self, start: StageStart) -> Result<Arc<Model>, RunError> {
        let StageStart::Published(policy) = start else { return self.policy.model() };
        if let PublishedWeights::Folder(folder) | PublishedWeights::Adapter(folder) = &policy.weights {
            if Model::is_merged_when_read(folder.path())? {
                return Err(RunError::DoraStart { path: folder.path().to_owned() });
            }
            return self.load(folder.path());
        }
        let model = model_of(&policy).ok_or(StageError::ForeignWeights { form: policy.form() })?;
        drop(policy);
        Ok(without_value_head(model))
    }

    /// Reads a folder. An adapter of the run's model shares its weights.
    fn load(&self, folder: &Path) -> Result<Arc<Model>, RunError> {
        let Some(base) = Model::base_of(folder)? else {
            return Ok(Arc::new(Model::load(folder)?.with_dtype(self.dtype)));
        };
        if let Some(own) = self.policy.folder()
            && is_same_folder(own, &base)
        {
            return Ok(Arc::new(self.policy.model()?.with_stored_adapter(folder)?));
        }
        Ok(Arc::new(Model::load_frozen(folder, self.dtype)?))
    }

    /// The model in a folder as the reference of a stage.
    fn reference(&self, stage: &Stage, folder: &Path, policy: &Model) -> Result<Arc<Model>, RunError> {
        let model = Arc::new(Model::load(folder)?.with_dtype(self.dtype));
        let [own, expected] = [model.config(), policy.config()].map(|config| config.vocab_size);
        if own != expected {
            return Err(RunError::OtherVocabulary { stage: stage.name.clone(), own, expected });
        }
        Ok(self.scored(stage, &model))
    }

    /// A model as the reference of a stage: its weights in rows if it moves, otherwise it is only scored.
    fn scored(&self, stage: &Stage, model: &Arc<Model>) -> Arc<Model> {
        let moves = stage.trainer.reference.as_ref().is_some_and(|reference| reference.sync().is_some());
        if moves { Arc::clone(model) } else { Arc::new(model.packed_only(&self.ctx)) }
    }

    /// Policy and reference of a stage.
    fn policy_and_reference(&self, stage: &Stage, start: Arc<Model>) -> Result<[Arc<Model>; 2], RunError> {
        let stage_name = || stage.name.clone();
        match &stage.trainer.lora {
            Some(lora) => adapted(&start, lora_config(lora), self.seed)
                .ok_or_else(|| RunError::OtherAdapter { stage: stage_name() }),
            None if start.lora().is_some() => Err(RunError::AdapterStart { stage: stage_name() }),
            None => {
                let reference = self.scored(stage, &start);
                Ok([start, reference])
            }
        }
    }
}

/// Folder of the reference of a stage that has a model of its own.
fn reference_folder(stage: &Stage) -> Result<Option<PathBuf>, RunError> {
    let source = stage.trainer.reference.as_ref().and_then(|reference| reference.model.as_deref());
    let source = source.filter(|_| stage.algorithm.needs_reference() && stage.teacher.is_none());
    Ok(source.map(|source| Hub::from_env().model(source)).transpose()?)
}

fn is_same_folder(a: &Path, b: &Path) -> bool {
    a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
}

/// True if the log-probabilities of a stage's samples are bitwise those that the trainer computes.
pub(crate) fn is_exact(stage: &Stage, rollout: &RolloutCapabilities, trainer: &TrainCapabilities) -> bool {
    let schedule = stage.schedule();
    rollout.is_exact(trainer, schedule.overlaps().then_some(schedule.on_update))
}

/// Drops a value head: a stage starts from the same weights as from the checkpoint of the stage before.
fn without_value_head(model: Arc<Model>) -> Arc<Model> {
    match model.config().output_heads {
        OutputHeads::LanguageAndValue => Arc::new(Arc::unwrap_or_clone(model).without_value_head()),
        _ => model,
    }
}

/// Creates an in-process rollout engine, for commands that generate outside of a run. Stop strings need a tokenizer.
pub fn rollout_engine(
    model: &ModelConfig,
    ctx: &Ctx,
    settings: &RolloutSettings,
    tokenizer: Option<Tokenizer>,
) -> Result<impl RolloutEngine + use<>, RunError> {
    Ok(EmbeddedRolloutEngine::new(model, ctx, settings, tokenizer)?)
}

/// Creates an in-process train engine without a reference, for benchmarks.
pub fn train_engine(
    ctx: &Ctx,
    model: Model,
    optimizer: OptimizerSettings,
    checkpointing: ActivationCheckpointing,
) -> impl TrainEngine + use<> {
    EmbeddedTrainEngine::new(ctx.clone(), Arc::new(model), None, optimizer, GenerationConfig::default())
        .with_activation_checkpointing(checkpointing)
}

/// Creates an in-process train engine whose reference is the model itself, for tests.
#[cfg(test)]
pub(crate) fn engine_with_reference(model: Model) -> impl TrainEngine + use<> {
    let (model, optimizer) = (Arc::new(model), OptimizerSettings::default());
    let reference = Some(Arc::clone(&model));
    EmbeddedTrainEngine::new(Ctx::serial(), model, reference, optimizer, GenerationConfig::default())
}

/// Publishes a model in memory, for commands that generate outside of a run.
pub fn publish(ctx: &Ctx, model: &Model, version: PolicyVersion) -> PublishedPolicy {
    publish_packed(PolicyId::MAIN, version, ctx, model)
}

/// Bytes of an adapter of a model, which is f32.
pub fn adapter_bytes(lora: &LoraSettings, model: &ModelConfig) -> u64 {
    lora_config(lora).parameter_count(model) * size_of::<f32>() as u64
}

/// Number of lanes of the in-process rollout engine, with `threads` threads on this machine.
pub fn lanes(model: &ModelConfig, threads: usize, settings: &RolloutSettings) -> usize {
    rloom_embedded::lanes(model, threads, settings)
}

/// Layout of the in-process rollout engine's key-value cache.
pub fn cache_shape(model: &ModelConfig) -> CacheShape {
    rloom_embedded::cache_shape(model)
}

/// Bytes of activations that the in-process train engine keeps per token.
pub fn activation_bytes_per_token(model: &ModelConfig, checkpointing: ActivationCheckpointing) -> u64 {
    model.training_bytes_per_token(model_checkpointing(checkpointing))
}

impl EngineFactory for EmbeddedEngines {
    type Rollout = EmbeddedRolloutEngine;
    type Train = EmbeddedTrainEngine;

    fn rollout(&self, settings: &RolloutEngineSettings) -> Result<Self::Rollout, RunError> {
        let settings = settings.embedded().ok_or(RunError::NotEmbedded { engine: settings.name() })?;
        let tokenizer = Some((*self.policy.tokenizer).clone());
        Ok(EmbeddedRolloutEngine::new(&self.policy.shape()?, &self.ctx, settings, tokenizer)?)
    }

    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<Self::Train>, RunError> {
        let ctx = self.ctx_of(threads)?;
        let start = self.model(start)?;
        let Algorithm { critic, prm, .. } = &stage.algorithm;
        let checkpointing = stage.trainer.activation_checkpointing;
        let save_dtype = stage.trainer.save_dtype();
        let dropout = stage.trainer.lora.as_ref().map_or(0.0, |lora| lora.dropout);
        let optimizer = || stage.optimizer.clone();
        let configured = |engine: EmbeddedTrainEngine| {
            engine
                .with_activation_checkpointing(checkpointing)
                .with_save_dtype(save_dtype)
                .with_adapter_dropout(dropout, self.seed)
        };
        if let Some(spec) = stage.algorithm.reward_model {
            let [policy, _] = self.policy_and_reference(stage, start)?;
            let pad = self.policy.tokenizer.pad_id();
            let engine = EmbeddedTrainEngine::reward(ctx.clone(), &policy, spec, pad, optimizer());
            return Ok(Models::of_policy(configured(engine)));
        }
        let generation = || self.policy.generation.clone();
        let engine = |policy: Arc<Model>, reference| {
            configured(EmbeddedTrainEngine::new(ctx.clone(), policy, reference, optimizer(), generation()))
        };
        let backbone = critic.as_ref().map(|critic| critic.backbone);
        let critic = (backbone == Some(Backbone::Own)).then(|| {
            EmbeddedTrainEngine::critic(ctx.clone(), &start, optimizer())
                .with_activation_checkpointing(checkpointing)
        });
        let [policy, base] = self.policy_and_reference(stage, start)?;
        let reference = match reference_folder(stage)? {
            Some(folder) => Some(self.reference(stage, &folder, &policy)?),
            None => stage.algorithm.needs_reference().then(|| Arc::clone(&base)),
        };
        Ok(Models {
            critic,
            prm: prm.as_ref().map(|_| engine(Arc::clone(&policy), Some(base))),
            policy: if backbone == Some(Backbone::Shared) {
                let ctx = ctx.clone();
                let optimizer = optimizer();
                let engine =
                    EmbeddedTrainEngine::with_value_head(ctx, policy, reference, optimizer, generation());
                configured(engine)
            } else {
                engine(policy, reference)
            },
            further: Vec::new(),
        })
    }

    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        Ok(publish_model(PolicyId::MAIN, version, &self.load(folder)?))
    }

    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError> {
        Ok(publish_model(PolicyId::MAIN, PolicyVersion(0), &self.model(start)?))
    }

    fn train_capabilities(&self, _: &Stage) -> TrainCapabilities {
        EmbeddedTrainEngine::capabilities_of(&self.ctx, self.dtype)
    }

    fn is_sampler_exact(&self, stage: &Stage) -> bool {
        stage.rollout.as_ref().is_none_or(|rollout| rollout.engine.quantize().is_none())
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        Arc::new(EmbeddedWriter { generation: self.policy.generation.clone() })
    }

    fn add_teacher(&self, models: &mut Models<Self::Train>, teacher: StageTeacher) -> Result<(), RunError> {
        set_teacher(&mut models.policy, teacher)
    }

    fn of_policy(&self, policy: &Policy) -> Result<Box<PolicyEngines<'_, Self>>, RunError> {
        Ok(Box::new(self.for_policy(policy)))
    }
}

/// Gives the embedded engine a teacher.
fn set_teacher(engine: &mut EmbeddedTrainEngine, teacher: StageTeacher) -> Result<(), RunError> {
    match teacher {
        StageTeacher::Model { policy, .. } => engine.set_teacher(policy.model()?),
        StageTeacher::Endpoint(endpoint) => engine.set_remote_teacher(endpoint),
    }
    Ok(())
}

#[derive(Debug)]
struct EmbeddedWriter {
    generation: GenerationConfig,
}

impl PolicyWriter for EmbeddedWriter {
    fn write(&self, policy: &PublishedPolicy, folder: &Path) -> Result<(), StageError> {
        let model = model_of(policy).ok_or(StageError::ForeignWeights { form: policy.form() })?;
        let saved = model.save(folder, &self.generation);
        Ok(saved.map_err(|error| TrainError::Checkpoint(Box::new(error)))?)
    }
}
