//! The policy of any version of a stage: from its checkpoint, or trained again from one before it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_algo::AlgorithmState;
use rloom_config::{Config, Stage};
use rloom_core::{Group, PolicyVersion};
use rloom_model::{Dtype, Model};
use rloom_ops::Ctx;
use rloom_train::EmbeddedTrainEngine;
use serde::Serialize;

use crate::RunError;
use crate::batch::{BatchTraining, Engines, Moment, optimizer_steps};
use crate::checkpoint::{CheckpointName, Checkpoints, verify};
use crate::generated::History;
use crate::setup::{Policy, numeric_path, start_of};
use crate::state::{TrainerState, sampler_folder};
use crate::trainer::checksum;

/// Where the weights of a version came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// What the stage started from.
    Start,
    /// A checkpoint.
    Checkpoint(PathBuf),
    /// Trained again, by the recorded batches, from this version on.
    Rebuilt {
        /// The version.
        from: u64,
    },
}

/// The versions of one stage of a run that is not touched.
pub(crate) struct Versions<'a> {
    pub(crate) config: &'a Config,
    pub(crate) run: &'a Path,
    pub(crate) index: usize,
    pub(crate) stage: &'a Stage,
    pub(crate) initial: &'a Policy,
    pub(crate) ctx: &'a Ctx,
    pub(crate) history: &'a History,
}

impl Versions<'_> {
    /// Checkpoints of the stage by version: those that are whole.
    fn checkpoints(&self) -> Result<BTreeMap<u64, PathBuf>, RunError> {
        let (list, _) = Checkpoints::at(self.run.join("checkpoints")).list()?;
        let own = list
            .into_iter()
            .filter(|(name, path)| name.stage_name == self.stage.name && verify(path).is_ok());
        Ok(own.map(|(name, path)| (name.step, path)).collect())
    }

    /// The checkpoint that keeps the weights of an older version, for groups that are sampled under it.
    fn keeper(checkpoints: &BTreeMap<u64, PathBuf>, version: u64) -> Option<PathBuf> {
        let mut later = checkpoints.range(version + 1..).map(|(_, path)| path);
        later.find(|path| sampler_folder(path, PolicyVersion(version)).is_dir()).cloned()
    }

    /// What the stage started from.
    fn start(&self) -> Result<Arc<Model>, RunError> {
        let Some(from) = start_of(self.stage) else { return Ok(Arc::clone(&self.initial.model)) };
        let source = &self.config.stages[from];
        let name = CheckpointName { stage: from as u32, step: source.steps, stage_name: source.name.clone() };
        load(&self.run.join("checkpoints").join(name.folder()), self.config.compute)
    }

    /// The policies of `wanted` versions and where they came from. One that is not at hand is trained again if
    /// `rebuild` says so; `progress` is told of batches trained and their total.
    pub(crate) fn policies(
        &self,
        wanted: &BTreeSet<u64>,
        rebuild: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BTreeMap<u64, (Arc<Model>, Origin)>, RunError> {
        let checkpoints = self.checkpoints()?;
        let mut found = BTreeMap::new();
        let mut missing = BTreeSet::new();
        for &version in wanted {
            if version == 0 {
                found.insert(0, (self.start()?, Origin::Start));
            } else if let Some(path) = checkpoints.get(&version) {
                found.insert(version, (load(path, self.config.compute)?, Origin::Checkpoint(path.clone())));
            } else if let Some(path) = Self::keeper(&checkpoints, version) {
                verify(&path)?;
                let model = open(&sampler_folder(&path, PolicyVersion(version)), self.config.compute)?;
                found.insert(version, (model, Origin::Checkpoint(path)));
            } else {
                missing.insert(version);
            }
        }
        let (Some(&first), Some(&last)) = (missing.first(), missing.last()) else { return Ok(found) };
        let from = checkpoints.range(..first).next_back();
        let base = from.map_or(0, |(version, _)| *version);
        let missing_batch = (base..last).find(|&batch| !self.history.has_batch(batch));
        if !rebuild || missing_batch.is_some() {
            return Err(RunError::VersionMissing {
                stage: self.stage.name.clone(),
                missing: missing.into_iter().collect(),
                at_hand: std::iter::once(0).chain(checkpoints.into_keys()).collect(),
                base,
                missing_batch,
            });
        }
        let start = self.start()?;
        let mut replayed = Replayed::begin(self, start, from.map(|(_, path)| path.as_path()))?;
        for batch in base..last {
            let groups = self.history.batch(batch)?.unwrap_or_default();
            replayed.train(self, batch, &groups)?;
            progress(batch + 1 - base, last - base);
            if missing.contains(&(batch + 1)) {
                let model = Arc::clone(replayed.engines.policy.policy());
                found.insert(batch + 1, (model, Origin::Rebuilt { from: base }));
            }
        }
        Ok(found)
    }
}

fn load(folder: &Path, compute: Dtype) -> Result<Arc<Model>, RunError> {
    verify(folder)?;
    open(folder, compute)
}

fn open(folder: &Path, compute: Dtype) -> Result<Arc<Model>, RunError> {
    let model = Model::load(folder).map_err(|e| RunError::Setup(e.to_string()))?;
    Ok(Arc::new(model.with_dtype(compute)))
}

/// A stage that is trained again.
struct Replayed {
    engines: Engines<EmbeddedTrainEngine>,
    training: BatchTraining,
    algorithm: AlgorithmState,
    optimizer_steps: u64,
}

impl Replayed {
    fn begin(
        versions: &Versions<'_>,
        start: Arc<Model>,
        checkpoint: Option<&Path>,
    ) -> Result<Self, RunError> {
        let Versions { stage, initial, ctx, .. } = versions;
        let context = initial.model.config().max_positions;
        let seed = versions.config.run.seed;
        let training = BatchTraining::of_stage(stage, versions.index as u32, seed, context);
        let mut engines = Engines::of_stage(
            ctx,
            &stage.algorithm,
            &stage.optimizer,
            stage.trainer.recompute,
            start,
            &initial.generation,
        );
        let Some(path) = checkpoint else {
            let algorithm = AlgorithmState::default();
            return Ok(Self { engines, training, algorithm, optimizer_steps: 0 });
        };
        verify(path)?;
        engines.restore(path)?;
        let TrainerState { algorithm, optimizer_steps, .. } = TrainerState::load(path)?;
        Ok(Self { engines, training, algorithm, optimizer_steps })
    }

    fn train(&mut self, versions: &Versions<'_>, batch: u64, groups: &[Group]) -> Result<(), RunError> {
        let (before, total) = (self.optimizer_steps, optimizer_steps(versions.stage));
        let rate = |step: u64| versions.stage.optimizer.learning_rate_at(before + step, total);
        let moment = Moment { version: PolicyVersion(batch), state: self.algorithm, learning_rate: &rate };
        let trained = self.training.train(&mut self.engines, groups, &moment, &mut |_, _| {});
        let report = trained.map_err(|e| RunError::Setup(format!("batch {batch}, trained again: {e}")))?;
        self.optimizer_steps += report.optimizer_steps;
        self.algorithm = report.state;
        self.engines.policy.set_version(PolicyVersion(batch + 1));
        let now = checksum(self.engines.policy.policy());
        match versions.history.weights(batch) {
            Some(recorded) if recorded != now => Err(RunError::OtherWeights {
                stage: versions.stage.name.clone(),
                batch,
                isa: numeric_path(versions.ctx, versions.config.compute),
            }),
            _ => Ok(()),
        }
    }
}
