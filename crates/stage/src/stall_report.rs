//! Errors of a stage that makes no progress.

use std::fmt::Write as _;

use rloom_collect::Evaluator;
use rloom_engine::{RolloutEngine, TrainEngine};

use crate::Stage;
use crate::StageError;

/// Number of waits that the report names, the longest first.
const SHOWN_WAITS: usize = 4;

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Ends the run if nothing has happened for too long; `describe` says who waits for what.
    pub(crate) fn check_stall(&mut self, describe: fn(&Self) -> String) -> Result<(), StageError> {
        let progress = self.work_counter();
        if self.stall.is_stalled(progress) {
            return Err(self.stalled(&describe(self)));
        }
        Ok(())
    }

    /// Changes while any worker works: tokens, reports of the training thread, held-out completions, bytes of a
    /// checkpoint.
    fn work_counter(&self) -> u64 {
        let tokens = self.engine_statistics().computed_tokens;
        let trained = self.trainer.as_ref().map_or(0, |trainer| trainer.progress().reports());
        let written = self.checkpoints.written_bytes();
        tokens.wrapping_add(trained).wrapping_add(self.evaluation.scored()).wrapping_add(written)
    }

    /// The work of the training thread, to append to a description of who waits for it.
    fn trainer_work(&self) -> String {
        let work = self.trainer.as_ref().and_then(|trainer| trainer.progress().describe_work());
        work.map_or(String::new(), |work| format!(", {work}"))
    }

    /// Says that the driver waits for the first weights.
    pub(crate) fn describe_publishing(&self) -> String {
        format!("the driver waits for the trainer to publish its weights{}", self.trainer_work())
    }

    /// Says what the driver or the trainer waits for.
    pub(crate) fn describe_wait(&self) -> String {
        let counts = self.scheduler.counts();
        if counts.in_batch > 0 {
            let (done, total) = self.trainer.as_ref().map_or((0, 0), |trainer| trainer.progress().steps());
            return format!(
                "the driver waits for the trainer: {done} of {total} optimiser steps of the batch{}",
                self.trainer_work()
            );
        }
        if self.checkpoints.is_saving() {
            return format!("the driver waits for the trainer to write a checkpoint{}", self.trainer_work());
        }
        if self.evaluation.is_pending() {
            let completions = self.evaluation.evaluator().map_or(0, Evaluator::completions);
            let scored = self.evaluation.scored();
            return format!("the driver waits for the evaluation: {scored} of {completions} completions");
        }
        format!(
            "the trainer waits for a batch of {} groups: {} ready, {} in flight",
            self.context.groups_per_batch, counts.ready, counts.running
        )
    }

    /// The error of a stalled stage: `waits`, the oldest group, the longest waits, and the state of every worker.
    pub(crate) fn stalled(&self, waits: &str) -> StageError {
        let mut report = waits.to_owned();
        if let Some((ticket, group)) = self.groups.in_flight().iter().next() {
            let _ = write!(report, "\n  oldest group: {}", ticket.0);
            if let Some(started) = group.started() {
                let _ = write!(report, ", for {:.1} s", started.elapsed().as_secs_f64());
            }
            let scored: Vec<String> = group.scored().map(|sample| sample.to_string()).collect();
            let scored = if scored.is_empty() { "none".to_owned() } else { scored.join(", ") };
            let _ = write!(report, ", scored samples: {scored}");
            if let Some(runner) = self.groups.source().rollouts() {
                for (key, wait) in runner.episodes().longest_waits(SHOWN_WAITS, |key| key.ticket == *ticket) {
                    let _ = write!(report, "\n    sample {} {wait}", key.sample);
                }
            }
        }
        if let (true, Some(evaluator)) = (self.evaluation.is_pending(), self.evaluation.evaluator()) {
            let waits =
                evaluator.all_episodes().flat_map(|episodes| episodes.longest_waits(SHOWN_WAITS, |_| true));
            for (key, wait) in waits.take(SHOWN_WAITS) {
                let _ = write!(report, "\n  held-out task {} {wait}", key.ticket.0);
            }
        }
        for worker in self.weights.engine().map(|engine| engine.workers()).unwrap_or_default() {
            let _ = write!(report, "\n  {worker}");
        }
        StageError::Stalled {
            stage: self.stage_name(),
            step: self.step(),
            report,
            seconds: self.stall.idle().as_secs(),
            checkpoint: self.last_checkpoint(),
        }
    }
}
