//! Engines of a further policy of a configured run: those of this process.

use std::path::Path;
use std::sync::Arc;

use rloom_config::Stage;
use rloom_core::PolicyVersion;
use rloom_engine::{PublishedPolicy, RolloutEngineSettings, TrainCapabilities};
use rloom_learn::Models;
use rloom_stage::PolicyWriter;

use super::rollout::ConfiguredRollout;
use super::train::ConfiguredTrainer;
use super::{EmbeddedEngines, EngineFactory, StageStart};
use crate::RunError;

/// Builds the engines of one further policy.
#[derive(Debug)]
pub(super) struct FurtherEngines(pub(super) EmbeddedEngines);

impl EngineFactory for FurtherEngines {
    type Rollout = ConfiguredRollout;
    type Train = ConfiguredTrainer;

    fn rollout(&self, settings: &RolloutEngineSettings) -> Result<Self::Rollout, RunError> {
        Ok(ConfiguredRollout::Embedded(Box::new(self.0.rollout(settings)?)))
    }

    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<Self::Train>, RunError> {
        let Models { policy, .. } = self.0.models(stage, threads, start)?;
        Ok(Models::of_policy(ConfiguredTrainer::Embedded(Box::new(policy))))
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
        self.0.is_sampler_exact(stage)
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        self.0.writer()
    }
}
