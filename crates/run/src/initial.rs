//! The initial model of a run. A run keeps the files of a model that it has not made itself in its folder `initial`, if resumed
//! attempts need the weights: for the reference of a stage, or for a later stage that starts from them.

use std::path::{Path, PathBuf};

use rloom_config::{Config, ModelSource, Stage};
use rloom_hub::Hub;
use rloom_model::{Model, ModelFiles};
use rloom_store::checkpoint::{
    Checkpoints, StoredCheckpoint, copy_folder, first_difference, verify, write_folder,
};
use rloom_store::directory::{INITIAL, RunDirectory};
use rloom_store::{StoreError, disk};

use crate::stage_setup::start_of;
use crate::{Policy, RunError};

/// Opens a policy. Its weights are read at once if a stage trains them in this process.
fn open_policy(folder: &Path, config: &Config) -> Result<Policy, RunError> {
    if Model::is_merged_when_read(folder)? {
        return Err(RunError::DoraStart { path: folder.to_owned() });
    }
    if config.stages.iter().all(Stage::trains_outside) {
        Policy::open_outside(folder, config.dtype)
    } else if config.stages.iter().all(has_adapter) {
        Policy::open_frozen(folder, config.dtype)
    } else {
        Policy::open(folder, config.dtype)
    }
}

fn has_adapter(stage: &Stage) -> bool {
    stage.trainer.lora.is_some()
}

/// Name of the file operations.
const AREA: &str = "initial";

/// True if the stage reads the weights that it started from until its end.
pub(crate) fn reads_start(stage: &Stage) -> bool {
    let has_own = stage.trainer.reference.as_ref().is_some_and(|reference| reference.model.is_some());
    (stage.algorithm.needs_reference() && !has_own) || stage.algorithm.prm.is_some() || has_adapter(stage)
}

/// The first stage that reads the initial weights in an attempt that resumes from a checkpoint of the stage at `first`.
fn reader(config: &Config, first: usize) -> Option<&Stage> {
    let mut stages = config.stages.iter().enumerate().skip(first);
    let reads = |(index, stage): &(usize, &Stage)| {
        // No checkpoint of a reward model is a policy, from which a resumed attempt takes the tokenizer and the shape.
        stage.trains_reward_model() || (start_of(stage).is_none() && (*index > first || reads_start(stage)))
    };
    stages.find(reads).map(|(_, stage)| stage)
}

/// The initial policy of a new run, whose files are kept if resumed attempts need them.
pub(crate) fn policy_of_new_run(
    directory: &RunDirectory,
    config: &Config,
    hub: &Hub,
) -> Result<Policy, RunError> {
    let ModelSource::Path(source) = &config.model else { return Policy::initial(config, hub) };
    let folder = hub.model(source)?;
    let policy = open_policy(&folder, config)?;
    if reader(config, 0).is_some() {
        keep(directory, &folder, &policy)?;
    }
    if config.stages.iter().any(has_adapter) && directory.path().join(INITIAL).exists() {
        // Adapters name the run's own copy as their base, in this attempt and in later ones.
        drop(policy);
        return open_policy(&directory.path().join(INITIAL), config);
    }
    Ok(policy)
}

/// Need of the initial weights, as opposed to the tokenizer and the shape of the model, which every checkpoint has.
#[derive(Debug, Clone, Copy)]
enum Need<'a> {
    /// There is no checkpoint.
    NoCheckpoint,
    /// A stage reads them.
    Stage(&'a str),
    /// The checkpoint in this folder suffices.
    Checkpoint(&'a Path),
}

impl<'a> Need<'a> {
    /// The need of an attempt that resumes from a checkpoint.
    fn to_resume(config: &'a Config, newest: Option<&'a StoredCheckpoint>) -> Self {
        let Some((name, path)) = newest else { return Self::NoCheckpoint };
        reader(config, name.stage as usize).map_or(Self::Checkpoint(path), |stage| Self::Stage(&stage.name))
    }
}

/// The policy that an attempt resumes with, from the newest checkpoint `newest`. `kept` is the folder with the initial model;
/// where it is missing or damaged, the model's source is opened, and its files are kept again if they are needed.
pub(crate) fn policy_to_resume(
    directory: &RunDirectory,
    config: &Config,
    newest: Option<&StoredCheckpoint>,
    kept: &Path,
    hub: &Hub,
    warn: &mut dyn FnMut(String),
) -> Result<Policy, RunError> {
    let need = Need::to_resume(config, newest);
    let (policy, source) = open(directory.path(), config, need, kept, hub, warn)?;
    let first = newest.map_or(0, |(name, _)| name.stage as usize);
    if let Some(folder) = source
        && reader(config, first).is_some()
    {
        keep(directory, &folder, &policy)?;
    }
    Ok(policy)
}

/// The policy of the run in `run` for commands that only read its files. `reader` is the stage whose initial weights are
/// needed, if any.
pub(crate) fn policy_to_read(
    run: &Path,
    config: &Config,
    reader: Option<&str>,
    hub: &Hub,
) -> Result<Policy, RunError> {
    if matches!(config.model, ModelSource::New { .. }) {
        return Policy::initial(config, hub);
    }
    let newest = Checkpoints::open_for_reading(run.join("checkpoints")).newest_valid()?.0;
    let need = match (reader, &newest) {
        (Some(stage), _) => Need::Stage(stage),
        (None, Some((_, path))) => Need::Checkpoint(path),
        (None, None) => Need::NoCheckpoint,
    };
    Ok(open(run, config, need, &run.join(INITIAL), hub, &mut |_| {})?.0)
}

/// Opens the kept files, a checkpoint or the source, whichever is the first that is available and sufficient. Returns the
/// folder of the source if that was opened.
fn open(
    run: &Path,
    config: &Config,
    need: Need<'_>,
    kept: &Path,
    hub: &Hub,
    warn: &mut dyn FnMut(String),
) -> Result<(Policy, Option<PathBuf>), RunError> {
    let ModelSource::Path(source) = &config.model else { return Ok((Policy::initial(config, hub)?, None)) };
    let is_damaged = kept.exists()
        && match verify(kept) {
            Ok(()) => return Ok((open_policy(kept, config)?, None)),
            Err(error) => {
                warn(damage(&error, need, source));
                true
            }
        };
    if let Need::Checkpoint(path) = need {
        return Ok((open_policy(path, config)?, None));
    }
    let folder = hub.model(source).map_err(|error| RunError::InitialModelMissing {
        run: run.to_owned(),
        reason: match need {
            Need::Stage(stage) => {
                format!("stage `{stage}` reads the initial weights, which no checkpoint contains")
            }
            Need::NoCheckpoint | Need::Checkpoint(_) => "the run has no checkpoint yet".to_owned(),
        },
        error,
    })?;
    if is_damaged && let Some(file) = first_difference(kept, &folder) {
        return Err(RunError::InitialModelChanged { kept: kept.to_owned(), path: folder.join(file) });
    }
    Ok((open_policy(&folder, config)?, Some(folder)))
}

/// The warning about a damaged folder.
fn damage(error: &StoreError, need: Need<'_>, source: &str) -> String {
    let damage = match error {
        StoreError::CheckpointDamaged { path, damage } => {
            format!("the initial model in {} is damaged: {damage}", path.display())
        }
        error => error.to_string(),
    };
    match need {
        Need::Checkpoint(path) => format!("{damage}; the tokenizer is that of {}", path.display()),
        Need::NoCheckpoint | Need::Stage(_) => format!("{damage}; opening {source} again"),
    }
}

/// Keeps the files of the model in `folder`. Weights are linked where the file system allows it.
fn keep(directory: &RunDirectory, folder: &Path, policy: &Policy) -> Result<(), RunError> {
    let kept = write_folder(AREA, directory.path(), INITIAL, |partial| {
        if Model::base_of(folder)?.is_some() {
            // Names its base where it was found.
            policy.model()?.save(partial, &policy.generation)?;
            return Ok(policy.tokenizer.save(partial)?);
        }
        let ModelFiles { tensors, settings } =
            ModelFiles::of(folder).map_err(rloom_model::LoadError::from)?;
        let target = |path: &Path| partial.join(path.file_name().unwrap_or_default());
        tensors.iter().try_for_each(|path| disk::link_or_copy(AREA, path, &target(path)))?;
        settings.iter().try_for_each(|path| disk::copy(AREA, path, &target(path)))?;
        Ok::<_, RunError>(policy.tokenizer.save(partial)?)
    });
    kept.map(drop).map_err(|error| RunError::InitialModelNotKept {
        path: directory.path().join(INITIAL),
        error: Box::new(error),
    })
}

/// Copies the initial model of the run in `source` to another run. Returns the folder to read it from: the copy, or the
/// original where that is missing or damaged.
pub(crate) fn copy(source: &Path, directory: &RunDirectory) -> Result<PathBuf, RunError> {
    let original = source.join(INITIAL);
    if verify(&original).is_err() {
        return Ok(original);
    }
    copy_folder(AREA, &original, directory.path(), INITIAL, disk::link_or_copy).map_err(|error| {
        RunError::InitialModelNotKept { path: directory.path().join(INITIAL), error: Box::new(error.into()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(stages: &str) -> Config {
        let text = format!(
            "model.path = 'org/model'\nsampling.max_new_tokens = 4\ndata.generator = 'arithmetic'\n\
             reward.components = [{{ kind = 'exact' }}]\n{stages}"
        );
        Config::from_text("test.toml", &text, &[] as &[&str]).map_err(|errors| errors.to_string()).unwrap()
    }

    #[test]
    fn initial_weights_are_read_by_references_and_by_later_stages_that_start_from_them() {
        let stage = |name: &str, method: &str, more: &str| {
            format!(
                "[[stage]]\nname = '{name}'\nmethod = '{method}'\nsteps = 1\ngroups_per_batch = 1\n{more}\n"
            )
        };
        let (sft, grpo) = (stage("sft", "sft", ""), stage("rl", "grpo", ""));
        let kl = stage("kl", "grpo", "algorithm.kl.coef = 0.1");
        let fresh = stage("fresh", "grpo", "from = 'model'");
        for (stages, readers) in [
            (vec![&grpo], vec![None]),
            (vec![&sft, &grpo], vec![None, None]),
            (vec![&kl], vec![Some("kl")]),
            // The reference of the second stage is the end of the first one.
            (vec![&sft, &kl], vec![None, None]),
            (vec![&sft, &fresh], vec![Some("fresh"), None]),
            (vec![&kl, &sft], vec![Some("kl"), None]),
        ] {
            let text: String = stages.into_iter().map(String::as_str).collect();
            let config = config(&text);
            let found: Vec<Option<&str>> = (0..config.stages.len())
                .map(|first| reader(&config, first).map(|stage| stage.name.as_str()))
                .collect();
            assert_eq!(found, readers, "{text}");
        }
    }
}
