//! The held-out evaluation of one version, beside whatever rolls out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rloom_core::PolicyVersion;
use rloom_sched::SchedulerEvent;
use tokio::task::{JoinError, JoinHandle};

use super::{Stage, Told};
use crate::RunError;
use crate::evaluate::EvaluationReport;
use crate::events::{Activity, Event, Lane, Phase};
use crate::journal::Record;
use crate::state::Best;

/// Held-out completions that the event stream shows.
const SHOWN: usize = 24;

/// An evaluation that was asked for.
#[derive(Debug)]
pub(crate) struct Evaluation {
    version: PolicyVersion,
    started: Instant,
    /// `None` while the engine has not got the version yet.
    task: Option<JoinHandle<Result<EvaluationReport, String>>>,
}

/// What came of an evaluation's task.
pub(super) type Evaluated = Result<Result<EvaluationReport, String>, JoinError>;

impl Evaluation {
    /// Whether its requests are made: the engine must not change its weights then.
    pub(super) fn has_begun(&self) -> bool {
        self.task.is_some()
    }

    /// The result, when it is there; never, while it has not begun. May be dropped while it waits.
    pub(super) async fn done(this: &mut Option<Self>) -> Evaluated {
        match this.as_mut().and_then(|evaluation| evaluation.task.as_mut()) {
            Some(task) => task.await,
            None => std::future::pending().await,
        }
    }
}

impl Stage<'_, '_> {
    /// Begins to evaluate a version.
    pub(super) async fn evaluate(&mut self, version: PolicyVersion) -> Result<(), RunError> {
        if self.parts.evaluator.is_none() {
            self.pending.push_back(SchedulerEvent::Evaluated.into());
            return Ok(());
        }
        self.waited_for_batch();
        self.evaluation = Some(Evaluation { version, started: Instant::now(), task: None });
        if !self.replay.is_over() && !self.has(version) {
            self.load_newest().await?;
        }
        self.begin_evaluation();
        Ok(())
    }

    /// Begins an evaluation that was asked for as soon as the engine has its version.
    pub(super) fn begin_evaluation(&mut self) {
        let has = self.evaluation.as_ref().is_some_and(|e| e.task.is_none() && self.has(e.version));
        if let (true, Some(evaluation), Some(evaluator)) = (has, &mut self.evaluation, &self.parts.evaluator)
        {
            evaluator.counters.scored.store(0, Ordering::Relaxed);
            let evaluator = Arc::clone(evaluator);
            evaluation.started = Instant::now();
            evaluation.task = Some(tokio::spawn(async move { evaluator.run(SHOWN).await }));
        }
    }

    /// Tells of an evaluation.
    pub(super) fn evaluated(&mut self, result: Evaluated) -> Result<Option<Told>, RunError> {
        let Some(Evaluation { version, started, .. }) = self.evaluation.take() else { return Ok(None) };
        self.watch.heard();
        let report = result
            .map_err(|error| self.ended_badly(&format!("the evaluation ended unexpectedly: {error}")))?
            .map_err(|error| self.ended_badly(&format!("the evaluation failed: {error}")))?;
        self.place_events(version);
        self.activity(Lane::Train, Activity::Evaluate, started, Instant::now(), version.0, None);
        let best = self.best.as_ref().is_none_or(|best| report.accuracy > best.accuracy);
        if best {
            self.best = Some(Best {
                accuracy: report.accuracy,
                stage: self.parts.outline.name.clone(),
                step: version.0,
            });
        }
        self.events.emit(Event::Evaluation { metrics: report.metrics, tasks: report.tasks, best });
        for sample in report.samples {
            self.events.emit(Event::EvaluationSample(sample));
        }
        self.watch.trainer_idle();
        Ok(Some(Told::recorded(SchedulerEvent::Evaluated, Record::Evaluated { version })))
    }

    pub(super) fn evaluation_progress(&mut self) {
        if let (Some(Evaluation { task: Some(_), .. }), Some(evaluator)) =
            (&self.evaluation, &self.parts.evaluator)
        {
            let (done, total) = (evaluator.counters.scored.load(Ordering::Relaxed), evaluator.completions());
            self.events.emit(Event::Progress { phase: Phase::Evaluate, done, total });
        }
    }

    /// Whether the current version, just evaluated, is the best so far.
    pub(super) fn is_best(&self) -> bool {
        let version = self.scheduler.version().0;
        version > 0
            && self
                .best
                .as_ref()
                .is_some_and(|best| best.stage == self.parts.outline.name && best.step == version)
    }
}
