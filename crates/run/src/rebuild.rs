//! Weights of any version of a stage: from a checkpoint, or retrained from an earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rloom_algo::AlgorithmState;
use rloom_config::{Config, Stage};
use rloom_core::{Group, PolicyVersion};
use rloom_engine::{Form, PublishedPolicy, TrainEngine};
use rloom_learn::{BatchPosition, BatchTrainer, Models};
use rloom_store::checkpoint::{CheckpointName, CheckpointState, Checkpoints, pinned_weights_folder, verify};
use serde::Serialize;

use crate::assembly::{EngineFactory, StageStart};
use crate::recorded::RecordedStage;
use crate::stage_setup::{RunInputs, batch_trainer, optimizer_steps, start_of};
use crate::{RunError, teacher};
use rloom_stage::restore_models;

/// Origin of the weights of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The weights that the stage started from.
    Start,
    /// A checkpoint.
    Checkpoint(PathBuf),
    /// Retrained on the recorded batches.
    Rebuilt {
        /// The version from which retraining started.
        from: u64,
    },
}

/// The versions of one stage of a run, whose files are only read.
pub(crate) struct Versions<'a, F> {
    pub(crate) config: &'a Config,
    pub(crate) run: &'a Path,
    pub(crate) index: usize,
    pub(crate) stage: &'a Stage,
    pub(crate) engines: &'a F,
    pub(crate) inputs: &'a RunInputs,
    pub(crate) recorded: &'a RecordedStage,
    /// True if the sampler was exact when the stage was trained.
    pub(crate) is_exact: bool,
}

impl<F: EngineFactory> Versions<'_, F> {
    /// Valid checkpoints of the stage by version.
    fn checkpoints(&self) -> Result<BTreeMap<u64, PathBuf>, RunError> {
        let (list, _) = Checkpoints::open_for_reading(self.run.join("checkpoints")).list()?;
        let own = list
            .into_iter()
            .filter(|(name, path)| name.stage_name == self.stage.name && verify(path).is_ok());
        Ok(own.map(|(name, path)| (name.step, path)).collect())
    }

    /// The checkpoint that contains the weights of an older version, for groups that are pinned to it.
    fn checkpoint_with(checkpoints: &BTreeMap<u64, PathBuf>, version: u64) -> Option<PathBuf> {
        let mut later = checkpoints.range(version + 1..).map(|(_, path)| path);
        later.find(|path| pinned_weights_folder(path, PolicyVersion(version)).is_dir()).cloned()
    }

    /// The weights that the stage started from.
    fn start(&self) -> Result<StageStart, RunError> {
        let Some(from) = start_of(self.stage) else { return Ok(StageStart::Initial) };
        let source = &self.config.stages[from];
        let name = CheckpointName {
            policy: self.inputs.policy,
            stage: from as u32,
            step: source.steps,
            stage_name: source.name.clone(),
        };
        let folder = self.run.join("checkpoints").join(name.folder());
        verify(&folder)?;
        Ok(StageStart::Published(self.engines.open(&folder, PolicyVersion(0))?))
    }

    fn models(&self, start: StageStart) -> Result<Models<F::Train>, RunError> {
        let mut models = self.engines.models(self.stage, self.inputs.threads, start)?;
        if let Some(teacher) = teacher::open(self.config, self.stage, self.run, self.inputs)? {
            self.engines.add_teacher(&mut models, teacher)?;
        }
        Ok(models)
    }

    /// Returns the weights of the `wanted` versions and their origins. Versions that are not available are retrained if
    /// `rebuild` is set; `progress` receives the number of retrained batches and their total.
    pub(crate) fn policies(
        &self,
        wanted: &BTreeSet<u64>,
        rebuild: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BTreeMap<u64, (PublishedPolicy, Origin)>, RunError> {
        let checkpoints = self.checkpoints()?;
        let own = |opened: PublishedPolicy| PublishedPolicy { policy: self.inputs.policy, ..opened };
        let mut found = BTreeMap::new();
        let mut missing = BTreeSet::new();
        for &version in wanted {
            if version == 0 {
                found.insert(0, (own(self.engines.open_start(self.start()?)?), Origin::Start));
            } else if let Some(path) = checkpoints.get(&version) {
                verify(path)?;
                let policy = self.engines.open(path, PolicyVersion(version))?;
                found.insert(version, (own(policy), Origin::Checkpoint(path.clone())));
            } else if let Some(path) = Self::checkpoint_with(&checkpoints, version) {
                verify(&path)?;
                let folder = pinned_weights_folder(&path, PolicyVersion(version));
                let policy = self.engines.open(&folder, PolicyVersion(version))?;
                found.insert(version, (own(policy), Origin::Checkpoint(path)));
            } else {
                missing.insert(version);
            }
        }
        let (Some(&first), Some(&last)) = (missing.first(), missing.last()) else { return Ok(found) };
        let from = checkpoints.range(..first).next_back();
        let base = from.map_or(0, |(version, _)| *version);
        let missing_batch = (base..last).find(|&batch| !self.recorded.has_batch(batch));
        if !rebuild || missing_batch.is_some() {
            return Err(RunError::VersionMissing {
                stage: self.stage.name.clone(),
                missing: missing.into_iter().collect(),
                available: std::iter::once(0).chain(checkpoints.into_keys()).collect(),
                base,
                missing_batch,
            });
        }
        let mut retrained = RetrainedStage::start(self, from.map(|(_, path)| path.as_path()))?;
        for batch in base..last {
            let groups = self.recorded.batch(batch)?.unwrap_or_default();
            let policy = retrained.train(self, batch, &groups)?;
            progress(batch + 1 - base, last - base);
            if missing.contains(&(batch + 1)) {
                found.insert(batch + 1, (policy, Origin::Rebuilt { from: base }));
            }
        }
        Ok(found)
    }
}

/// A stage that is retrained on its recorded batches.
struct RetrainedStage<T> {
    models: Models<T>,
    training: BatchTrainer,
    algorithm: AlgorithmState,
    optimizer_steps: u64,
    skipped_steps: u64,
}

impl<T: TrainEngine> RetrainedStage<T> {
    fn start<F: EngineFactory<Train = T>>(
        versions: &Versions<'_, F>,
        checkpoint: Option<&Path>,
    ) -> Result<Self, RunError> {
        let Versions { stage, inputs, .. } = versions;
        let mut models = versions.models(versions.start()?)?;
        let (index, is_exact) = (versions.index as u32, versions.is_exact);
        let training = batch_trainer(stage, index, inputs.seed, inputs.context, is_exact)?;
        let Some(path) = checkpoint else {
            let algorithm = AlgorithmState::default();
            return Ok(Self { models, training, algorithm, optimizer_steps: 0, skipped_steps: 0 });
        };
        verify(path)?;
        restore_models(&mut models, path)?;
        let CheckpointState { algorithm, optimizer_steps, skipped_steps, .. } = CheckpointState::load(path)?;
        Ok(Self { models, training, algorithm, optimizer_steps, skipped_steps })
    }

    /// Retrains a batch and returns the weights after it.
    fn train<F: EngineFactory<Train = T>>(
        &mut self,
        versions: &Versions<'_, F>,
        batch: u64,
        groups: &[Group],
    ) -> Result<PublishedPolicy, RunError> {
        let (before, total) = (self.optimizer_steps, optimizer_steps(versions.stage));
        let rate = |step: u64| versions.stage.optimizer.learning_rate_at(before + step, total);
        let given = versions.recorded.advantages(batch)?;
        let position = BatchPosition {
            version: PolicyVersion(batch),
            state: self.algorithm.clone(),
            skipped_steps: self.skipped_steps,
            given_advantages: given.as_ref(),
            learning_rate: &rate,
        };
        let report = self.training.train(&mut self.models, groups, &position, &mut |_, _| {})?;
        self.optimizer_steps += report.optimizer_steps;
        self.skipped_steps += report.steps_skipped();
        self.algorithm = report.state;
        let policy = self.models.policy.publish(PolicyVersion(batch + 1), Form::Memory)?;
        match versions.recorded.weights(batch) {
            Some(recorded) if recorded != policy.digest => Err(RunError::OtherWeights {
                stage: versions.stage.name.clone(),
                batch,
                numeric_path: versions.engines.train_capabilities(versions.stage).numeric_path,
            }),
            _ => Ok(policy),
        }
    }
}
