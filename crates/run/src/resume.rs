//! Resumes a run, with the settings that may change.

use std::path::Path;
use std::sync::Arc;

use rloom_config::{ChangeEffect, Config, SettingChange, setting_changes};
use rloom_hub::Hub;
use rloom_store::checkpoint::Checkpoints;
use rloom_store::directory::{INITIAL, RunDirectory};
use rloom_store::disk;
use rloom_store::journal::Journal;
use rloom_telemetry::Observer;

use crate::data_record::DataRecord;
use crate::initial::{self, policy_to_resume};
use crate::start::engines;
use crate::train::{Summary, attempt, run};
use crate::{RunError, StopFlag};

/// Options of a resumed run.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResumeOptions {
    /// Continues with data that has changed since the run started.
    pub accept_changed_data: bool,
}

/// Resumes the run in `path` with `config`: its resolved configuration, or one with changes that a resumed run may make.
/// The changed configuration becomes that of the run.
pub fn resume(
    path: &Path,
    config: &Config,
    options: ResumeOptions,
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    let directory = RunDirectory::open(path)?;
    let changes = setting_changes(&Config::load(&[directory.config()], &[] as &[&str])?, config);
    // Before the attempt: what is refused here leaves no trace in the run.
    let effect = effect_of(&changes)?;
    let newest = Checkpoints::open_for_reading(directory.checkpoints()).newest_valid()?.0;
    let (stage, step) = newest.as_ref().map_or((0, 0), |(name, _)| (name.stage, name.step));
    check_steps(&changes, config, stage, step)?;
    let data = DataRecord::open(&directory, config, options.accept_changed_data)?;
    let hub = Arc::new(observer.observe_hub(Hub::from_env()));
    attempt(&directory, observer, |events| {
        if !changes.is_empty() {
            let text: Vec<String> = changes.iter().map(ToString::to_string).collect();
            events.warn(format!("settings have changed: {}", text.join("; ")));
            // First, so that a process that is killed here resumes with the old configuration and a shorter journal.
            if effect == ChangeEffect::FromCheckpoint {
                Journal::discard_after(&directory.journal(), stage, step)?;
            }
            store(&directory, config)?;
        }
        let (kept, mut warn) = (path.join(INITIAL), |message| events.warn(message));
        let policy = policy_to_resume(&directory, config, newest.as_ref(), &kept, &hub, &mut warn)?;
        let (engines, inputs) = engines(&directory, config, &policy, &hub, events, stop)?;
        run(config, &directory, &engines, &inputs, data, events, stop)
    })
}

/// Starts a run in `config.run_directory()` from a checkpoint of the run in `source`, which stays as it is. `config` is the
/// source's resolved configuration with another name, and with changes that a resumed run may make.
pub fn fork(
    source: &Path,
    checkpoint: &str,
    config: &Config,
    options: ResumeOptions,
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    let checkpoints = Checkpoints::open_for_reading(source.join("checkpoints"));
    let (list, _) = checkpoints.list()?;
    let Some((name, _)) = list.iter().find(|(name, _)| name.folder() == checkpoint) else {
        let available = list.iter().map(|(name, _)| name.folder()).collect();
        return Err(RunError::NoCheckpoint {
            run: source.to_owned(),
            name: checkpoint.to_owned(),
            available,
        });
    };
    let mut changes = setting_changes(&Config::load(&[source.join("config.toml")], &[] as &[&str])?, config);
    changes.retain(|change| !matches!(change.key.as_str(), "run.name" | "run.directory"));
    effect_of(&changes)?;
    check_steps(&changes, config, name.stage, name.step)?;
    let data = DataRecord::compared(source, config, options.accept_changed_data)?;
    // Later stages may start from the ends of earlier ones.
    let needed: Vec<_> = list
        .iter()
        .filter(|(own, _)| {
            own.folder() == checkpoint
                || (own.stage < name.stage
                    && config.stages.get(own.stage as usize).is_some_and(|stage| stage.steps == own.step))
        })
        .collect();
    let directory = RunDirectory::create(&config.run_directory())?;
    let copies = Checkpoints::open(directory.checkpoints())?;
    let mut newest = None;
    for (own, path) in needed {
        newest = newest.max(Some((own.clone(), copies.copy(own, path)?)));
    }
    let kept = initial::copy(source, &directory)?;
    Journal::copy_snapshot(&source.join("journal"), &directory.journal(), name.stage, name.step)?;
    let data = data.move_to(&directory)?;
    // Last: a folder without it is not a run.
    disk::write_atomically("config", &directory.config(), config.to_toml().as_bytes())?;
    let hub = Arc::new(observer.observe_hub(Hub::from_env()));
    attempt(&directory, observer, |events| {
        events.warn(format!("continues {} of {}", checkpoint, source.display()));
        let mut warn = |message| events.warn(message);
        let policy = policy_to_resume(&directory, config, newest.as_ref(), &kept, &hub, &mut warn)?;
        let (engines, inputs) = engines(&directory, config, &policy, &hub, events, stop)?;
        run(config, &directory, &engines, &inputs, data, events, stop)
    })
}

/// Returns the effect of all changes; fails for changes that a resumed run cannot make.
fn effect_of(changes: &[SettingChange]) -> Result<ChangeEffect, RunError> {
    let mut effect = ChangeEffect::None;
    let mut refused = Vec::new();
    for change in changes {
        match change.effect() {
            Ok(own) => effect = effect.max(own),
            Err(reason) => refused.push(format!("{change} ({reason})")),
        }
    }
    if refused.is_empty() { Ok(effect) } else { Err(RunError::CannotChange { refused }) }
}

/// Checks that no stage has fewer steps than are done at a checkpoint, and that finished stages keep theirs.
fn check_steps(changes: &[SettingChange], config: &Config, stage: u32, step: u64) -> Result<(), RunError> {
    for name in changes.iter().filter_map(SettingChange::stage_with_other_steps) {
        let Some(at) = config.stages.iter().position(|own| own.name == name) else { continue };
        let steps = config.stages[at].steps;
        let is_done = at < stage as usize;
        if is_done || (at == stage as usize && steps < step) {
            let done = if is_done { "all its steps".to_owned() } else { format!("{step} steps") };
            let trained = (!is_done).then_some(step);
            return Err(RunError::StepsAreDone { stage: name.to_owned(), steps, done, trained });
        }
    }
    Ok(())
}

/// Makes the changed configuration that of the run; the one before is kept as `config-1.toml`, `config-2.toml` …
fn store(directory: &RunDirectory, config: &Config) -> Result<(), RunError> {
    let before = std::fs::read(directory.config())
        .map_err(|source| rloom_store::StoreError::io("read", &directory.config(), source))?;
    let kept = (1u64..).map(|n| directory.path().join(format!("config-{n}.toml")));
    if let Some(path) = kept.into_iter().find(|path| !path.exists()) {
        disk::write_atomically("config", &path, &before)?;
    }
    Ok(disk::write_atomically("config", &directory.config(), config.to_toml().as_bytes())?)
}
