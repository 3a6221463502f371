//! Commands of the scheduler.

use std::time::Instant;

use rloom_core::{PolicyVersion, Ticket};
use rloom_engine::{Abort, RolloutEngine, TrainEngine};
use rloom_sched::{End, SchedulerCommand, SchedulerEvent};
use rloom_store::journal::Record;
use rloom_telemetry::GroupEnd;

use crate::StageError;
use crate::groups::{GroupChange, GroupSource};
use crate::{JournaledEvent, Stage, StageEnd, TICK};

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Records an event, passes it to the scheduler and carries out its commands. Returns the end of the stage once it
    /// is reached.
    pub(crate) async fn handle(&mut self, event: JournaledEvent) -> Result<Option<StageEnd>, StageError> {
        let JournaledEvent { event, record } = event;
        if let Some(record) = record {
            self.record(&record)?;
        }
        // A batch may have been validated.
        let evaluated = matches!(event, SchedulerEvent::Evaluated | SchedulerEvent::BatchTrained);
        if event == SchedulerEvent::BatchTrained {
            self.update_quotas()?;
        }
        let start = Instant::now();
        let mut commands = self.scheduler.handle(event)?;
        self.clock.scheduled(start.elapsed());
        if event == SchedulerEvent::BatchTrained {
            self.forget_used();
        }
        // Cancelled groups must not become part of a checkpoint.
        commands.retain(|command| match command {
            SchedulerCommand::Drop(ticket, end) => {
                self.cancel_group(*ticket, reported_end(*end));
                false
            }
            SchedulerCommand::Defer(ticket) => {
                self.cancel_group(*ticket, Some(GroupEnd::Deferred));
                false
            }
            _ => true,
        });
        if evaluated && self.evaluation.is_best(self.scheduler.version()) {
            self.save_best()?;
        }
        for command in commands {
            if let Some(end) = self.execute(command).await? {
                return Ok(Some(end));
            }
        }
        self.note_rollouts();
        Ok(None)
    }

    async fn execute(&mut self, command: SchedulerCommand) -> Result<Option<StageEnd>, StageError> {
        match command {
            SchedulerCommand::Drop(..) | SchedulerCommand::Defer(_) => {}
            SchedulerCommand::StartGroup(ticket) => self.start_group(ticket).await?,
            SchedulerCommand::TrainBatch { batch, tickets, reused } => {
                self.train_batch(batch, &tickets, reused).await?;
            }
            SchedulerCommand::Evaluate(version) => self.evaluate(version).await?,
            SchedulerCommand::Checkpoint(version) => self.checkpoint(version)?,
            SchedulerCommand::Finish => {
                let done = self.scheduler.version().0 >= self.context.outline.steps;
                if self.journal.ends_an_attempt() {
                    self.pending.push_back(SchedulerEvent::StopWithdrawn.into());
                    return Ok(None);
                }
                if !done {
                    self.drain_on_stop().await?;
                }
                return Ok(Some(if done { StageEnd::Done } else { StageEnd::Interrupted }));
            }
        }
        Ok(None)
    }

    /// Starts a group from the parts that exist.
    async fn start_group(&mut self, ticket: Ticket) -> Result<(), StageError> {
        let group = match self.groups.source() {
            GroupSource::Demonstrations(source) => Some(source.group(ticket).await),
            GroupSource::Recorded(source) => Some(source.group(ticket)),
            GroupSource::Rollouts(_) => None,
        };
        if let Some(group) = group {
            let version = self.scheduler.version();
            let group = group.map_err(|failure| self.group_error(ticket, failure))?;
            self.groups.add_ready(group);
            self.pending.push_back(SchedulerEvent::GroupReady { ticket, oldest: version }.into());
            return Ok(());
        }
        self.groups.start(ticket, self.scheduler.draw(ticket));
        if self.journal.is_live() {
            self.launch(ticket)?;
        }
        Ok(())
    }

    /// Launches the started groups that wait for the end of a replay or for their weights.
    pub(crate) fn launch_waiting(&mut self) -> Result<(), StageError> {
        self.groups.waiting().into_iter().try_for_each(|ticket| self.launch(ticket))
    }

    fn launch(&mut self, ticket: Ticket) -> Result<(), StageError> {
        if !self.weights.may_launch(ticket) {
            return Ok(());
        }
        self.groups.launch(ticket).map_err(|failure| self.group_error(ticket, failure))
    }

    /// Cancels a group and reports its end, if any.
    fn cancel_group(&mut self, ticket: Ticket, end: Option<GroupEnd>) {
        self.groups.cancel(ticket);
        if let Some(end) = end {
            self.reporter.group_ended(ticket.0, end, None);
        }
    }

    /// Requests an evaluation; it starts as soon as the engine has the version.
    async fn evaluate(&mut self, version: PolicyVersion) -> Result<(), StageError> {
        if self.evaluation.evaluator().is_none() {
            self.pending.push_back(SchedulerEvent::Evaluated.into());
            return Ok(());
        }
        self.note_trainer_busy();
        self.evaluation.request(version);
        if !self.journal.is_live() && !self.weights.has(version) {
            // Groups that a replayed journal pins to older weights do not run yet.
            if let Some(newest) = self.weights.newest_pinned() {
                self.load(newest).await?;
            }
        }
        self.start_evaluation();
        Ok(())
    }

    /// Starts a requested evaluation if the engine has its version.
    pub(crate) fn start_evaluation(&mut self) {
        let weights = &self.weights;
        self.evaluation.start(|version| weights.has(version));
    }

    /// Saves the current version, unless it is saved or being saved.
    fn checkpoint(&mut self, version: PolicyVersion) -> Result<(), StageError> {
        self.checkpoints.request();
        if self.checkpoints.is_saving_version(version) {
            return Ok(());
        }
        if self.checkpoints.of_version(version).is_some() {
            // A replayed journal has a record of when this was noticed.
            if self.journal.is_live() {
                self.checkpointed(version);
            }
            return Ok(());
        }
        self.save()
    }

    /// Reports to the scheduler that the version is saved, if it waits for that.
    pub(crate) fn checkpointed(&mut self, version: PolicyVersion) {
        if self.checkpoints.take_request() {
            let record = Record::Checkpointed { policy: self.context.policy, version };
            self.pending.push_back(JournaledEvent::recorded(SchedulerEvent::Checkpointed, record));
        }
    }

    /// Cancels the groups in flight, keeping their parts for a resumed run.
    async fn drain_on_stop(&mut self) -> Result<(), StageError> {
        let Some(runner) = self.groups.source().rollouts() else { return Ok(()) };
        runner.episodes().stop();
        if let Some(engine) = self.weights.engine() {
            engine.abort(Abort::All).await.map_err(|error| self.worker_failed(error))?;
        }
        self.stall.alive();
        while self.groups.running() > 0 {
            match tokio::time::timeout(TICK, self.groups.next()).await {
                Ok(event) => {
                    self.stall.alive();
                    match self.groups.interpret(event) {
                        Some(GroupChange::Update(ticket, update)) => self.on_group_update(ticket, update)?,
                        // A resumed run finds out again that a group is complete or has failed.
                        Some(
                            GroupChange::Complete(ticket, _)
                            | GroupChange::Failed(ticket, _)
                            | GroupChange::Stopped(ticket),
                        ) => self.groups.stopped(ticket),
                        None => {}
                    }
                }
                Err(_) => {
                    self.check_stall(|_| "the driver waits for the groups in flight to stop".into())?;
                }
            }
        }
        Ok(())
    }
}

/// The end to report when a group is cancelled. Filtered and failed groups were reported with their reasons.
fn reported_end(end: End) -> Option<GroupEnd> {
    match end {
        End::Stale => Some(GroupEnd::Stale),
        End::Surplus => Some(GroupEnd::Surplus),
        End::Trained | End::Filtered | End::Failed => None,
    }
}
