//! Held-out evaluation of one version, concurrent with rollouts.

use std::sync::Arc;
use std::time::Instant;

use rloom_collect::{CollectError, EvaluationReport, Evaluator};
use rloom_core::PolicyVersion;
use rloom_engine::RolloutEngine;
use rloom_store::checkpoint::{Best, BestScore};
use rloom_telemetry::{Event, Phase};
use tokio::task::{JoinError, JoinHandle};

/// Held-out completions in the event stream.
const SHOWN_COMPLETIONS: usize = 24;

/// Result of an evaluation's task.
pub(crate) type EvaluationResult = Result<Result<EvaluationReport, CollectError>, JoinError>;

#[derive(Debug)]
struct PendingEvaluation {
    version: PolicyVersion,
    started: Instant,
    /// `None` until the engine has the version.
    task: Option<JoinHandle<Result<EvaluationReport, CollectError>>>,
}

/// Evaluations of a stage.
#[derive(Debug)]
pub struct StageEvaluation<R> {
    evaluator: Option<Arc<Evaluator<R>>>,
    pending: Option<PendingEvaluation>,
    stage: String,
    best: Option<Best>,
    /// A version of this stage may become the best one.
    has_best: bool,
}

impl<R: RolloutEngine + 'static> StageEvaluation<R> {
    /// Creates the evaluations of the stage called `stage`. `best` is the best version so far.
    pub fn new(evaluator: Option<Arc<Evaluator<R>>>, stage: &str, best: Option<Best>) -> Self {
        Self { evaluator, pending: None, stage: stage.to_owned(), best, has_best: true }
    }

    /// Keeps the best version so far, whatever the results of this stage.
    #[must_use]
    pub fn without_best(self) -> Self {
        Self { has_best: false, ..self }
    }

    /// The evaluator, unless the stage is not evaluated.
    pub(crate) fn evaluator(&self) -> Option<&Evaluator<R>> {
        self.evaluator.as_deref()
    }

    /// The best version so far.
    pub fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// True if `version` is the best so far.
    pub(crate) fn is_best(&self, version: PolicyVersion) -> bool {
        let is_version = |best: &Best| best.stage == self.stage && best.step == version.0;
        version.0 > 0 && self.best.as_ref().is_some_and(is_version)
    }

    /// True if an evaluation was requested and is not complete.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// True if requests of an evaluation are in flight: the engine must keep its weights.
    pub(crate) fn is_running(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.task.is_some())
    }

    /// Requests an evaluation of `version`; [`start`](Self::start) runs it.
    pub(crate) fn request(&mut self, version: PolicyVersion) {
        self.pending = Some(PendingEvaluation { version, started: Instant::now(), task: None });
    }

    /// Starts the requested evaluation if `has` says that the engine has its version.
    pub(crate) fn start(&mut self, has: impl Fn(PolicyVersion) -> bool) {
        let (Some(evaluator), Some(pending)) = (&self.evaluator, &mut self.pending) else { return };
        if pending.task.is_none() && has(pending.version) {
            evaluator.reset();
            let evaluator = Arc::clone(evaluator);
            pending.started = Instant::now();
            pending.task = Some(tokio::spawn(async move { evaluator.run(SHOWN_COMPLETIONS).await }));
        }
    }

    /// Resolves to the result of the evaluation; pending until it has started. Cancel-safe.
    pub(crate) async fn done(&mut self) -> EvaluationResult {
        match self.pending.as_mut().and_then(|pending| pending.task.as_mut()) {
            Some(task) => task.await,
            None => std::future::pending().await,
        }
    }

    /// Ends the evaluation. Returns its version and its start.
    pub(crate) fn finish(&mut self) -> Option<(PolicyVersion, Instant)> {
        self.pending.take().map(|pending| (pending.version, pending.started))
    }

    /// Notes the accuracy of a version. Returns true if it is the best so far.
    pub(crate) fn record(&mut self, version: PolicyVersion, accuracy: f64) -> bool {
        let is_best = match self.best.as_ref().map(|best| best.score) {
            Some(BestScore::Accuracy(best)) => accuracy > best,
            Some(BestScore::ValidationLoss(_)) | None => true,
        };
        self.note(is_best, version, BestScore::Accuracy(accuracy))
    }

    /// Notes the validation loss of a version. Returns true if it is the best so far. Accuracies take precedence, and losses of
    /// different stages are not compared: the later stage counts.
    pub(crate) fn record_loss(&mut self, version: PolicyVersion, loss: f64) -> bool {
        let is_best = match &self.best {
            _ if self.evaluator.is_some() => false,
            Some(Best { score: BestScore::Accuracy(_), .. }) => false,
            Some(Best { score: BestScore::ValidationLoss(best), stage, .. }) => {
                *stage != self.stage || loss < *best
            }
            None => true,
        };
        self.note(is_best, version, BestScore::ValidationLoss(loss))
    }

    fn note(&mut self, is_better: bool, version: PolicyVersion, score: BestScore) -> bool {
        let is_best = is_better && self.has_best;
        if is_best {
            self.best = Some(Best { score, stage: self.stage.clone(), step: version.0 });
        }
        is_best
    }

    /// Completions scored and their total; `None` if no evaluation runs.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let evaluator = self.evaluator.as_ref().filter(|_| self.is_running())?;
        Some((evaluator.scored(), evaluator.completions()))
    }

    /// The progress of the running evaluation as an event.
    pub(crate) fn progress_event(&self) -> Option<Event> {
        let (done, total) = self.progress()?;
        Some(Event::Progress { phase: Phase::Evaluate, done, total, detail: None })
    }

    /// Completions scored since the evaluation started.
    pub(crate) fn scored(&self) -> u64 {
        self.evaluator.as_ref().map_or(0, |evaluator| evaluator.scored())
    }
}
