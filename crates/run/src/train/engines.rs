//! Weights and engines that a stage starts with.

use std::path::Path;
use std::sync::Arc;

use rloom_config::Stage as StageConfig;
use rloom_core::PolicyVersion;
use rloom_engine::{Form, PolicyRouter, PublishedPolicy, RolloutCapabilities, TrainCapabilities};
use rloom_learn::Models;
use rloom_stage::{Publication, restore_models};
use rloom_store::checkpoint::{CheckpointName, CheckpointState, pinned_weights_folder, verify};

use super::Run;
use crate::assembly::{EngineFactory, StageStart};
use crate::policies::start_of_next;
use crate::stage_setup::{rollout_settings, start_of};
use crate::{RunError, teacher};

/// The weights that a stage starts from.
pub(super) struct StageStarts {
    pub(super) main: StageStart,
    /// Those of further policies that an earlier stage has trained.
    pub(super) further: Vec<PublishedPolicy>,
}

/// The rollout engine of a stage, for all policies.
pub(super) type Router<F> = PolicyRouter<<F as EngineFactory>::Rollout>;

impl<F: EngineFactory> Run<'_, '_, F> {
    /// The weights that a stage starts from.
    pub(super) fn stage_start(
        &self,
        index: usize,
        stage: &StageConfig,
        previous: Option<(usize, Publication)>,
    ) -> Result<StageStarts, RunError> {
        let Some(from) = start_of(stage) else {
            return Ok(StageStarts { main: StageStart::Initial, further: Vec::new() });
        };
        if let Some((trained, weights)) = previous
            && trained == from
            // The base of an adapter is a folder.
            && stage.trainer.lora.is_none()
        {
            let (main, further) = start_of_next(weights);
            return Ok(StageStarts { main, further });
        }
        let source = &self.config.stages[from];
        let name = CheckpointName {
            policy: self.inputs.policy,
            stage: from as u32,
            step: source.steps,
            stage_name: source.name.clone(),
        };
        let path = self.directory.checkpoints().join(name.folder());
        verify(&path).map_err(|error| RunError::StartMissing {
            stage: index,
            source_stage: source.name.clone(),
            error: Box::new(error),
        })?;
        let version = PolicyVersion(source.steps);
        let further = if source.rollout.is_some() {
            self.policies.ends(self.engines, &path, version)?
        } else {
            Vec::new()
        };
        Ok(StageStarts { main: StageStart::Published(self.engines.open(&path, version)?), further })
    }

    /// Builds the rollout engine of a stage; `None` if it neither samples nor evaluates. A stage that does not sample
    /// evaluates the main policy in all roles.
    pub(super) fn rollout_engine(
        &self,
        stage: &StageConfig,
        start: &StageStart,
    ) -> Result<Option<Arc<Router<F>>>, RunError> {
        let settings = rollout_settings(stage, self.config.eval.as_ref(), self.inputs.threads);
        let Some(settings) = settings else { return Ok(None) };
        Ok(Some(Arc::new(if stage.rollout.is_some() {
            self.policies.rollout(self.engines, &settings, stage, start)?
        } else {
            PolicyRouter::new(self.engines.rollout_of_stage(&settings, stage, start)?)
        })))
    }

    /// Builds the train engines of a stage, and the weights of its frozen policies, from its start or from a checkpoint.
    pub(super) fn models(
        &self,
        stage: &StageConfig,
        threads: usize,
        start: StageStarts,
        checkpoint: Option<(&Path, &CheckpointState)>,
    ) -> Result<(Models<F::Train>, Vec<PublishedPolicy>), RunError> {
        let StageStarts { main, further } = start;
        let has_policies = stage.rollout.is_some() && !self.policies.is_empty();
        let frozen =
            if has_policies { self.policies.frozen(self.engines, &main, checkpoint)? } else { Vec::new() };
        let of_further = has_policies.then(|| (main.clone(), further));
        let mut models = self.engines.models(stage, threads, main)?;
        if let Some((main, further)) = of_further {
            self.policies.add_models(&mut models, self.engines, stage, threads, &main, &further)?;
        }
        if let Some(teacher) = teacher::open(self.config, stage, self.directory.path(), self.inputs)? {
            self.engines.add_teacher(&mut models, teacher)?;
        }
        if let Some((path, _)) = checkpoint {
            restore_models(&mut models, path)?;
        }
        Ok((models, frozen))
    }

    /// The weights of older versions that the groups of a resumed stage are pinned to.
    pub(super) fn pinned_weights(
        &self,
        resumed: Option<&CheckpointState>,
    ) -> Result<Vec<PublishedPolicy>, RunError> {
        let Some((state, (_, path))) = resumed.zip(self.found.as_ref()) else { return Ok(Vec::new()) };
        let open = |&version: &PolicyVersion| {
            let opened = self.engines.open(&pinned_weights_folder(path, version), version)?;
            Ok(PublishedPolicy { policy: self.inputs.policy, ..opened })
        };
        state.pinned_versions.iter().map(open).collect()
    }
}

/// The first form that the rollout engine loads and the trainer publishes.
pub(super) fn common_form(
    rollout: Option<&RolloutCapabilities>,
    trainer: &TrainCapabilities,
) -> Result<Form, RunError> {
    let Some(rollout) = rollout else {
        return trainer
            .forms
            .first()
            .copied()
            .ok_or(RunError::NoCommonForm { published: Vec::new(), loaded: Vec::new() });
    };
    let common = rollout.forms.iter().find(|form| trainer.forms.contains(form)).copied();
    common.ok_or_else(|| RunError::NoCommonForm {
        published: trainer.forms.clone(),
        loaded: rollout.forms.clone(),
    })
}
