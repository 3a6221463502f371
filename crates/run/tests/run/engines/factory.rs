//! Runs on other engines: trainers behind bytes, and rollouts on the embedded engine or on the folder sampler.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_config::{Config, Stage};
use rloom_core::PolicyVersion;
use rloom_engine::{
    Form, PublishedPolicy, PublishedWeights, RolloutEngineSettings, TrainCapabilities, WeightFolder,
};
use rloom_hub::Hub;
use rloom_learn::Models;
use rloom_run::assembly::{EmbeddedEngines, EngineFactory, StageStart};
use rloom_run::{Policy, RunError, RunInputs, context};
use rloom_stage::{PolicyWriter, StageError};

use super::byte_trainer::ByteTrainer;
use super::extras::Received;
use super::folder_sampler::FolderSampler;

/// Copies published folders.
#[derive(Debug)]
struct FolderWriter;

impl PolicyWriter for FolderWriter {
    fn write(&self, policy: &PublishedPolicy, folder: &Path) -> Result<(), StageError> {
        let PublishedWeights::Folder(source) = &policy.weights else {
            return Err(StageError::ForeignWeights { form: policy.form() });
        };
        for entry in std::fs::read_dir(source.path()).expect("a published folder").flatten() {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copied file");
            }
        }
        Ok(())
    }
}

/// What the factories share: the embedded engines, and a place for publications.
pub(crate) struct Parts {
    embedded: EmbeddedEngines,
    publications: PathBuf,
    received: Arc<Received>,
}

impl Parts {
    /// The parts for a configuration, with the inputs of its run.
    pub(crate) fn new(config: &Config) -> (Self, RunInputs) {
        let ctx = context(config.run.threads).expect("compute threads");
        let policy = Policy::initial(config, &Hub::from_env()).expect("a model");
        let inputs = RunInputs::new(&policy, Arc::new(Hub::from_env()), ctx.threads(), config.run.seed);
        let publications = config.run.directory.join("publications");
        let embedded = EmbeddedEngines::new(&policy, config, ctx);
        (Self { embedded, publications, received: Arc::default() }, inputs)
    }

    /// Attachments and candidates that reach the trainers' far side.
    pub(crate) fn received(&self) -> Arc<Received> {
        Arc::clone(&self.received)
    }

    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<ByteTrainer>, RunError> {
        let Models { policy, critic, prm, .. } = self.embedded.models(stage, threads, start)?;
        let behind_bytes =
            |engine| ByteTrainer::new(engine, self.publications.clone(), Arc::clone(&self.received));
        Ok(Models {
            policy: behind_bytes(policy),
            critic: critic.map(behind_bytes),
            prm: prm.map(behind_bytes),
            further: Vec::new(),
        })
    }

    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        let opened = self.embedded.open(folder, version)?;
        Ok(PublishedPolicy {
            weights: PublishedWeights::Folder(Arc::new(WeightFolder::kept(folder))),
            ..opened
        })
    }

    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError> {
        self.embedded.open_start(start)
    }

    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities {
        let own = self.embedded.train_capabilities(stage);
        TrainCapabilities { forms: vec![Form::Folder], attachments: true, ..own }
    }
}

/// Trainers behind bytes, rollouts on the embedded engine.
pub(crate) struct ByteTraining(pub(crate) Parts);

impl EngineFactory for ByteTraining {
    type Rollout = <EmbeddedEngines as EngineFactory>::Rollout;
    type Train = ByteTrainer;

    fn rollout(&self, settings: &RolloutEngineSettings) -> Result<Self::Rollout, RunError> {
        self.0.embedded.rollout(settings)
    }

    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<ByteTrainer>, RunError> {
        self.0.models(stage, threads, start)
    }

    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        self.0.open(folder, version)
    }

    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError> {
        self.0.open_start(start)
    }

    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities {
        self.0.train_capabilities(stage)
    }

    fn is_sampler_exact(&self, stage: &Stage) -> bool {
        self.0.embedded.is_sampler_exact(stage)
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        Arc::new(FolderWriter)
    }
}

/// Trainers behind bytes, rollouts on the folder sampler.
pub(crate) struct FolderSampling {
    pub(crate) parts: Parts,
    pub(crate) sampler: FolderSampler,
}

impl EngineFactory for FolderSampling {
    type Rollout = FolderSampler;
    type Train = ByteTrainer;

    fn rollout(&self, _: &RolloutEngineSettings) -> Result<Self::Rollout, RunError> {
        Ok(self.sampler.clone())
    }

    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<ByteTrainer>, RunError> {
        self.parts.models(stage, threads, start)
    }

    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        self.parts.open(folder, version)
    }

    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError> {
        self.parts.open_start(start)
    }

    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities {
        self.parts.train_capabilities(stage)
    }

    fn is_sampler_exact(&self, _: &Stage) -> bool {
        false
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        Arc::new(FolderWriter)
    }
}
