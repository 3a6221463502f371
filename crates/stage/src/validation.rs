//! Loss on held-out rows in a stage that learns from rows.

use std::sync::Arc;
use std::time::Instant;

use rloom_collect::{DemonstrationSource, GroupFailure};
use rloom_core::{Group, PolicyVersion, Ticket};
use rloom_engine::{RolloutEngine, TrainEngine};
use rloom_learn::{CalibrationBin, Validation};
use rloom_telemetry::{Activity, Event, Lane};

use crate::trainer::TrainerResult;
use crate::{Stage, StageError, TICK};

/// Held-out rows of a stage, and the versions whose loss on them is measured.
#[derive(Debug)]
pub struct StageValidation {
    source: DemonstrationSource,
    positions: Vec<u64>,
    /// Steps between validations.
    every: u64,
    /// Steps of the stage.
    steps: u64,
}

impl StageValidation {
    /// Validates the first version, every `every` steps and the last version, on at most `rows` rows of the source.
    pub fn new(source: DemonstrationSource, rows: Option<u64>, every: u64, steps: u64) -> Self {
        let rows = rows.unwrap_or(source.dataset.len());
        let positions = source.dataset.selection(rows);
        Self { source, positions, every, steps }
    }

    fn is_due(&self, version: PolicyVersion) -> bool {
        version.0.is_multiple_of(self.every.max(1)) || version.0 == self.steps
    }

    /// The groups of the rows. Tickets are positions in the data.
    async fn groups(&self) -> Result<Vec<Group>, (Ticket, GroupFailure)> {
        let mut groups = Vec::with_capacity(self.positions.len());
        for &position in &self.positions {
            let ticket = Ticket(position);
            groups.push(self.source.row(ticket, position).await.map_err(|failure| (ticket, failure))?);
        }
        Ok(groups)
    }
}

/// The loss of a version on held-out rows.
#[derive(Debug)]
pub(crate) struct Validated {
    pub(crate) validation: Validation,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Tokenises the held-out rows, and validates the version that the stage starts with.
    pub(crate) async fn start_validation(&mut self) -> Result<(), StageError> {
        let Some(validation) = &self.validation else { return Ok(()) };
        let groups = validation.groups().await;
        let groups = groups.map_err(|(ticket, failure)| self.group_error(ticket, failure))?;
        self.held_out = groups.into();
        self.stall.alive();
        let version = self.scheduler.version();
        // A checkpoint was validated before it was written.
        let Some(trainer) = self.trainer.as_ref().filter(|_| version.0 == 0) else { return Ok(()) };
        trainer.validate(Arc::clone(&self.held_out), self.learner.algorithm.clone());
        let done = loop {
            let Some(trainer) = &mut self.trainer else { return Ok(()) };
            match tokio::time::timeout(TICK, trainer.next()).await {
                Ok(done) => break done,
                Err(_) => self.check_stall(Self::describe_publishing)?,
            }
        };
        match done.map(|done| done.result) {
            Some(TrainerResult::Validated(validated)) => {
                let validated = validated.map_err(|error| self.worker_failed(error))?;
                self.report_validation(version, validated);
                Ok(())
            }
            _ => Err(self.trainer_died()),
        }
    }

    /// The held-out rows if a version is to be validated.
    pub(crate) fn rows_to_validate(&self, version: PolicyVersion) -> Option<Arc<[Group]>> {
        let validation = self.validation.as_ref()?;
        validation.is_due(version).then(|| Arc::clone(&self.held_out))
    }

    /// Reports a validation, and notes whether the version is the best so far.
    pub(crate) fn report_validation(&mut self, version: PolicyVersion, validated: Validated) {
        let Validated { validation: Validation { metrics, calibration }, start, end } = validated;
        self.set_step(version);
        self.reporter.activity(Lane::Train, Activity::Evaluate, (start, end), version.0, None);
        let loss = metrics.get(rloom_core::metric::VALIDATION_LOSS).copied();
        let best = loss.is_some_and(|loss| self.evaluation.record_loss(version, loss));
        let rows = self.held_out.len() as u64;
        let calibration = calibration.into_iter().map(reported).collect();
        self.reporter.emit(Event::Validation { metrics, rows, best, calibration });
    }
}

fn reported(bin: CalibrationBin) -> rloom_telemetry::CalibrationBin {
    let CalibrationBin { predicted, observed, count } = bin;
    rloom_telemetry::CalibrationBin { predicted, observed, count }
}
