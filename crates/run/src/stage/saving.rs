//! Checkpoints, and the journal's segments that follow them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use rloom_core::{PolicyVersion, Ticket};
use rloom_sched::{InFlightWork, SchedulerEvent, SchedulerState};

use super::groups::UnderWay;
use super::{Source, Stage, Told};
use crate::RunError;
use crate::checkpoint::CheckpointName;
use crate::events::{Activity, Event, Lane};
use crate::journal::Record;
use crate::state::TrainerState;
use crate::trainer::SaveJob;

impl Stage<'_, '_> {
    /// The scheduler wants the current version saved, which it may be already.
    pub(super) fn checkpoint(&mut self, version: PolicyVersion) -> Result<(), RunError> {
        self.checkpoint_asked = true;
        if self.saving == Some(version.0) {
            return Ok(());
        }
        if self.saved.as_ref().is_some_and(|(saved, _)| *saved == version.0) {
            // A history that is replayed says itself when this was noticed.
            if self.replay.is_over() {
                self.checkpointed(version);
            }
            return Ok(());
        }
        self.save()
    }

    /// The scheduler is to hear that the version is saved.
    pub(super) fn checkpointed(&mut self, version: PolicyVersion) {
        if std::mem::take(&mut self.checkpoint_asked) {
            let told = Told::recorded(SchedulerEvent::Checkpointed, Record::Checkpointed { version });
            self.pending.push_back(told);
        }
    }

    /// Has the current version, the best so far, saved, unless it is already: the journal follows the state that was
    /// saved, and not a later one of the same version.
    pub(super) fn save_best(&mut self) -> Result<(), RunError> {
        match &self.saved {
            Some((saved, path)) if *saved == self.scheduler.version().0 => {
                self.checkpoints.point("best", path)
            }
            _ => self.save(),
        }
    }

    /// Has a checkpoint of the current version written, and begins the journal's segment that follows it.
    pub(super) fn save(&mut self) -> Result<(), RunError> {
        self.waited_for_batch();
        let version = self.scheduler.version().0;
        let name = CheckpointName {
            stage: self.parts.index,
            step: version,
            stage_name: self.parts.outline.name.clone(),
        };
        let state = TrainerState {
            stage: self.parts.index,
            stage_name: self.parts.outline.name.clone(),
            stage_base: self.parts.base,
            scheduler: self.scheduler.state(),
            optimizer_steps: self.optimizer_steps,
            algorithm: self.algorithm,
            drawn: self.drawn.clone(),
            best: self.best.clone(),
            isa: self.parts.isa.clone(),
            seed: self.parts.seed,
            samplers: Vec::new(),
        };
        self.journal.roll(version, &self.alive(&state.scheduler))?;
        self.saving = Some(version);
        let older = self.older_weights();
        if let Some(trainer) = &self.trainer {
            trainer.save(SaveJob { name, state, older });
        }
        Ok(())
    }

    /// What is alive, as the records that a segment begins with: without the groups that `state` has ended and that are
    /// about to be let go.
    fn alive(&self, state: &SchedulerState) -> Vec<Record> {
        let mut records = Vec::new();
        if matches!(self.parts.source, Source::Demonstrations(_)) {
            return records;
        }
        let mut alive: BTreeSet<Ticket> = state.open_groups.iter().map(|group| group.ticket).collect();
        if let InFlightWork::Training(tickets) = &state.in_flight {
            alive.extend(tickets);
        }
        for (&ticket, group) in self.groups.ready.iter().filter(|(ticket, _)| alive.contains(ticket)) {
            for (sample, episode) in (0..).zip(&group.episodes) {
                records.push(Record::Episode { ticket, sample, episode: episode.clone() });
            }
            let oldest = group.oldest_version().unwrap_or(self.scheduler.version());
            records.push(Record::Ready { ticket, task: group.task.clone(), oldest });
        }
        let begun = self.groups.under_way.iter().chain(&self.groups.left);
        for (&ticket, UnderWay { episodes, partials, .. }) in
            begun.filter(|(ticket, _)| alive.contains(ticket))
        {
            for (&sample, episode) in episodes {
                records.push(Record::Episode { ticket, sample, episode: episode.clone() });
            }
            for (&sample, partial) in partials {
                records.push(Record::Partial { ticket, sample, partial: partial.clone() });
            }
        }
        records
    }

    /// A checkpoint is durable, or could not be written. What it contains, and what is older than those that are kept,
    /// can go.
    pub(super) fn saved(
        &mut self,
        version: u64,
        result: Result<(PathBuf, u64), RunError>,
        start: Instant,
        end: Instant,
    ) -> Result<(), RunError> {
        let (path, bytes) = result?;
        self.saving = None;
        self.checkpoints.point("latest", &path)?;
        let is_best =
            |best: &crate::state::Best| best.stage == self.parts.outline.name && best.step == version;
        if self.best.as_ref().is_some_and(is_best) {
            self.checkpoints.point("best", &path)?;
        }
        let best = self
            .best
            .as_ref()
            .map(|best| self.directory.checkpoints().join(format!("{}-step-{:06}", best.stage, best.step)));
        self.checkpoints.prune(self.parts.keeping.last, self.parts.keeping.every, best.as_deref())?;
        self.journal.prune(self.oldest_resumable()?)?;
        self.watch.saved(end - start);
        let relative = path.strip_prefix(self.directory.path()).unwrap_or(&path).display().to_string();
        self.place_events(PolicyVersion(version));
        self.activity(Lane::Train, Activity::Checkpoint, start, end, version, None);
        self.events.emit(Event::Checkpoint { path: relative, bytes });
        self.saved = Some((version, path));
        if self.scheduler.counts().in_batch == 0 {
            self.watch.trainer_idle();
        }
        self.checkpointed(PolicyVersion(version));
        Ok(())
    }

    /// The oldest of the newest checkpoints that are kept: with the journal since then any of them can be gone on from,
    /// should the later ones turn out to be damaged.
    fn oldest_resumable(&self) -> Result<u64, RunError> {
        let (list, _) = self.checkpoints.list()?;
        let own: Vec<u64> = list
            .iter()
            .filter(|(name, _)| name.stage == self.parts.index)
            .map(|(name, _)| name.step)
            .collect();
        let kept = self.parts.keeping.last.max(1);
        Ok(if own.len() < kept { 0 } else { own[own.len() - kept] })
    }
}
