//! Batches: cut, trained on, told of.

use std::time::Instant;

use rloom_core::{Group, PolicyVersion, Ticket};
use rloom_sched::SchedulerEvent;
use rloom_train::TrainError;

use super::{Source, Stage, Told};
use crate::RunError;
use crate::events::{Activity, Lane};
use crate::journal::Record;
use crate::trainer::{Done, TrainJob, Trained, TrainedWeights, Work};

impl Stage<'_, '_> {
    /// Cuts a batch and gives it to the trainer.
    pub(super) async fn train(&mut self, batch: u64, tickets: &[Ticket]) -> Result<(), RunError> {
        self.record_cut(batch, tickets)?;
        let groups: Vec<Group> =
            tickets.iter().filter_map(|ticket| self.groups.ready.remove(ticket)).collect();
        if groups.len() != tickets.len() {
            let message = format!(
                "batch {batch} is cut, and {} of its groups are not there",
                tickets.len() - groups.len()
            );
            return Err(RunError::Setup(message));
        }
        self.watch.cut(self.scheduler.counts());
        self.waited_for_batch();
        self.release_weights().await?;
        let job = TrainJob {
            version: PolicyVersion(batch),
            groups,
            state: self.algorithm,
            optimizer_steps: self.optimizer_steps,
        };
        if let Some(trainer) = &self.trainer {
            trainer.train(job);
        }
        Ok(())
    }

    /// Journals the cut, or checks it against the one that an earlier attempt recorded.
    fn record_cut(&mut self, batch: u64, tickets: &[Ticket]) -> Result<(), RunError> {
        if matches!(self.parts.source, Source::Demonstrations(_)) {
            return Ok(());
        }
        match self.recorded_cut() {
            Some(recorded) if recorded != tickets => Err(RunError::CutMismatch {
                stage: self.parts.outline.name.clone(),
                batch,
                recorded: recorded.iter().map(|t| t.0).collect(),
                now: tickets.iter().map(|t| t.0).collect(),
            }),
            Some(_) => Ok(()),
            None => self.journal.append(&Record::Cut { batch, tickets: tickets.to_vec() }),
        }
    }

    /// Takes in what the trainer has done; the scheduler is to hear of it unless nobody asked.
    pub(super) async fn trainer_event(&mut self, done: Option<Done>) -> Result<Option<Told>, RunError> {
        let Some(Done { what, start, end }) = done else { return Err(self.trainer_died()) };
        self.watch.heard();
        match what {
            Work::Trained(trained) => self.trained(*trained, start, end).await.map(Some),
            Work::Saved { version, result } => self.saved(version, result, start, end).map(|()| None),
            Work::Published(_) => Ok(None),
        }
    }

    /// Tells of a batch that was trained on, and publishes.
    async fn trained(&mut self, trained: Trained, start: Instant, end: Instant) -> Result<Told, RunError> {
        let Trained { batch, groups, result } = trained;
        let TrainedWeights { report, weights, checksum } =
            result.map_err(|error| self.training_failed(batch, error))?;
        self.check_replayed(batch, checksum)?;
        self.optimizer_steps += report.optimizer_steps;
        self.algorithm = report.state;
        self.place_events(PolicyVersion(batch + 1));
        self.activity(Lane::Train, Activity::Train, start, end, batch, None);
        let handing = Instant::now();
        self.hand_over(weights).await?;
        let handed = Instant::now();
        self.watch.published(handed - handing);
        self.activity(Lane::Train, Activity::Publish, handing, handed, batch + 1, None);
        self.tell_step(&groups, &report, end - start);
        self.watch.trainer_idle();
        Ok(Told::recorded(SchedulerEvent::BatchTrained, Record::Trained { batch, weights: checksum }))
    }

    fn training_failed(&self, batch: u64, error: TrainError) -> RunError {
        let checkpoint = self.last_good();
        match error {
            TrainError::NotFinite { what, keys } => RunError::NotFinite {
                stage: self.parts.outline.name.clone(),
                step: batch + 1,
                what: what.to_owned(),
                samples: TrainError::sample_list(&keys),
                checkpoint,
            },
            other => self.ended_badly(&other.to_string()),
        }
    }

    /// Why the training thread is gone.
    pub(super) fn trainer_died(&mut self) -> RunError {
        match self.trainer.take().map(crate::trainer::Trainer::end) {
            Some(Err(error)) => self.ended_badly(&error.to_string()),
            _ => self.ended_badly("the training thread ended before its work was done"),
        }
    }
}
