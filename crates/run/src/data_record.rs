//! Record of a run's data and functions, by which a resumed run notices that they have changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rloom_config::Config;
use rloom_data::{Cursor, CursorFingerprint, DataChange, DataSettings, FileFingerprint, first_change};
use rloom_store::directory::RunDirectory;
use rloom_store::{StoreError, disk};
use serde::{Deserialize, Serialize};

use crate::{RunError, functions};

/// Data of a run as its first attempt found it: `data.json` in the run directory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    /// Files of each stage.
    stages: BTreeMap<String, Vec<FileFingerprint>>,
    /// Files of the held-out evaluation.
    eval: Vec<FileFingerprint>,
    /// Files of Python functions. Their imports are not among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    functions: Vec<FileFingerprint>,
    /// Order of the tasks of each stage that has started.
    orders: BTreeMap<String, CursorFingerprint>,
}

/// The record of a run's data, compared with the present data.
#[derive(Debug)]
pub(crate) struct DataRecord {
    path: PathBuf,
    recorded: Recorded,
    accepts_changes: bool,
}

impl DataRecord {
    /// Compares the files with those that the run started with. Records them for a new run, and with
    /// `accepts_changes`.
    pub(crate) fn open(
        directory: &RunDirectory,
        config: &Config,
        accepts_changes: bool,
    ) -> Result<Self, RunError> {
        let record = Self::compared(directory.path(), config, accepts_changes)?;
        record.write()?;
        Ok(record)
    }

    /// Compares the data files with those that the run in `folder` started with. Writes nothing.
    pub(crate) fn compared(folder: &Path, config: &Config, accepts_changes: bool) -> Result<Self, RunError> {
        let path = folder.join("data.json");
        let present = fingerprints(config)?;
        let recorded = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| RunError::DataRecord { path: path.clone(), source })?,
            // A new run, or one of an earlier version.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => present.clone(),
            Err(source) => return Err(StoreError::io("read", &path, source).into()),
        };
        if !accepts_changes && let Some(change) = change_between(&recorded, &present) {
            return Err(RunError::DataChanged { run: folder.to_owned(), change });
        }
        Ok(Self { path, recorded: Recorded { orders: recorded.orders, ..present }, accepts_changes })
    }

    /// Makes this the record of the run in `directory`.
    pub(crate) fn move_to(mut self, directory: &RunDirectory) -> Result<Self, RunError> {
        self.path = directory.path().join("data.json");
        self.write()?;
        Ok(self)
    }

    /// Compares the order of a stage's tasks with that of an earlier attempt, or records it.
    pub(crate) fn check_order(&mut self, stage: &str, cursor: &Cursor) -> Result<(), RunError> {
        let found = cursor.fingerprint();
        match self.recorded.orders.get(stage) {
            Some(saved) if saved == found => Ok(()),
            Some(saved) if !self.accepts_changes => Ok(cursor.verify(saved)?),
            _ => {
                self.recorded.orders.insert(stage.to_owned(), found.clone());
                self.write()
            }
        }
    }

    fn write(&self) -> Result<(), RunError> {
        let text = serde_json::to_vec_pretty(&self.recorded)
            .map_err(|source| RunError::DataRecord { path: self.path.clone(), source })?;
        Ok(disk::write_atomically("data", &self.path, &text)?)
    }
}

fn fingerprints(config: &Config) -> Result<Recorded, RunError> {
    let mut known: Vec<(&DataSettings, Vec<FileFingerprint>)> = Vec::new();
    let mut recorded = Recorded::default();
    for stage in &config.stages {
        recorded.stages.insert(stage.name.clone(), files(&mut known, &stage.data)?);
    }
    if let Some(eval) = &config.eval {
        recorded.eval = files(&mut known, &eval.data)?;
        for set in &eval.sets {
            recorded.eval.extend(files(&mut known, &set.data)?);
        }
    }
    for file in functions::files(config) {
        recorded.functions.push(FileFingerprint::of(&file)?);
    }
    Ok(recorded)
}

/// Fingerprints of the files of `settings`. Stages often share their data: it is read once.
fn files<'c>(
    known: &mut Vec<(&'c DataSettings, Vec<FileFingerprint>)>,
    settings: &'c DataSettings,
) -> Result<Vec<FileFingerprint>, RunError> {
    if let Some((_, files)) = known.iter().find(|(known, _)| *known == settings) {
        return Ok(files.clone());
    }
    let files = settings.fingerprints()?;
    known.push((settings, files.clone()));
    Ok(files)
}

/// The first difference between the data of a run and the present data.
fn change_between(recorded: &Recorded, present: &Recorded) -> Option<DataChange> {
    let of_stages = recorded.stages.iter().filter_map(|(name, was)| Some((was, present.stages.get(name)?)));
    // An earlier version has recorded no functions.
    let functions = Some((&recorded.functions, &present.functions)).filter(|(was, _)| !was.is_empty());
    let of_evaluation = [(&recorded.eval, &present.eval)];
    of_stages.chain(of_evaluation).chain(functions).find_map(|(was, is)| first_change(was, is))
}
