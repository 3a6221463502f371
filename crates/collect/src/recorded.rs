//! Groups of an earlier run, read from its rollout logs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rloom_core::{Group, Role, Ticket};
use rloom_telemetry::{StepFiles, rollout_log};

use crate::{CollectError, GroupFailure};

/// Gives a stage the groups that another run trained on, in their order. Nothing is sampled or scored.
#[derive(Debug)]
pub struct RecordedSource {
    run: PathBuf,
    stage: String,
    files: StepFiles,
    groups_per_batch: u64,
    group_size: u32,
    /// The step that was read last, with its groups.
    last: Mutex<Option<(u64, Vec<Group>)>>,
}

impl RecordedSource {
    /// The groups that `run` trained on in its stage `stage`, for `steps` steps of `groups_per_batch` groups.
    ///
    /// # Errors
    ///
    /// [`CollectError::NotRecorded`] if the rollouts of one of the steps were not kept.
    pub fn open(
        run: &Path,
        stage: &str,
        steps: u64,
        groups_per_batch: u64,
        group_size: u32,
    ) -> Result<Self, CollectError> {
        let files = StepFiles::new(run, stage, u64::MAX);
        if let Some(step) = (1..=steps).find(|&step| !files.has(step)) {
            return Err(CollectError::NotRecorded {
                run: run.to_owned(),
                stage: stage.to_owned(),
                step,
                steps,
            });
        }
        let (run, stage) = (run.to_owned(), stage.to_owned());
        Ok(Self { run, stage, files, groups_per_batch, group_size, last: Mutex::default() })
    }

    /// Returns the group of a ticket. Its trajectories are those of the other run under this ticket.
    pub fn group(&self, ticket: Ticket) -> Result<Group, GroupFailure> {
        self.read(ticket).map_err(|error| GroupFailure::new(ticket.0, &error))
    }

    fn read(&self, ticket: Ticket) -> Result<Group, CollectError> {
        let (step, index) = (ticket.0 / self.groups_per_batch + 1, ticket.0 % self.groups_per_batch);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = match &*last {
            Some((read, groups)) if *read == step => groups,
            _ => {
                let path = self.files.path(step);
                let mut groups = rollout_log::read(&path)?;
                // The others are reused: they were new in an earlier step.
                groups.truncate(rollout_log::tickets(&path)?.len());
                self.check(step, &groups)?;
                &last.insert((step, groups)).1
            }
        };
        let mut group = groups[index as usize].clone();
        group.ticket = ticket;
        for trajectory in group.episodes.iter_mut().flat_map(|episode| &mut episode.segments) {
            trajectory.key.ticket = ticket;
        }
        Ok(group)
    }

    /// Checks that a step has the batch size and the group size of this run.
    fn check(&self, step: u64, groups: &[Group]) -> Result<(), CollectError> {
        let trained = |group: &Group| group.episodes.iter().filter(|e| e.role == Role::Train).count() as u64;
        let size = groups.iter().map(trained).find(|&size| size != u64::from(self.group_size));
        let differs = |key, recorded, wanted| {
            Err(CollectError::OtherBatch {
                run: self.run.clone(),
                stage: self.stage.clone(),
                step,
                key,
                recorded,
                wanted,
            })
        };
        match size {
            _ if groups.len() as u64 != self.groups_per_batch => {
                differs("groups_per_batch", groups.len() as u64, self.groups_per_batch)
            }
            Some(size) => differs("algorithm.group_size", size, self.group_size.into()),
            None => Ok(()),
        }
    }
}
