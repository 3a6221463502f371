//! Report of a trained batch: metrics, some completions, and the file of its rollouts.

use std::time::Duration;

use rloom_collect::{
    batch_metrics, completion_text, domain_metrics, episode_text, failure_metrics, prompt_text,
};
use rloom_core::{Episode, Group, PolicyVersion, Role, Trajectory, metric};
use rloom_engine::{RequestTime, RequestTimes, RolloutEngine, RolloutStatistics, TrainEngine};
use rloom_learn::{BatchReport, SkippedSteps};
use rloom_telemetry::{Event, LoggedAdvantages, Metrics, Sample};

use crate::clock::StepTimes;
use crate::{Stage, StageLeague};

impl<R: RolloutEngine + 'static, T: TrainEngine + 'static> Stage<'_, '_, R, T> {
    /// Reports a trained batch, whose first `new` groups are new and whose others are reused. The reporter's step must be
    /// set.
    pub(crate) fn report_step(
        &mut self,
        all: &[Group],
        new: usize,
        report: &BatchReport,
        train_time: Duration,
    ) {
        let (groups, reused) = all.split_at(new.min(all.len()));
        let step = self.step();
        let source = self.groups.source();
        let (samples, is_scored) = (source.samples(), source.is_scored());
        let statistics = self.engine_statistics();
        let (times, before) = self.clock.end_step(statistics);
        let mut metrics = if is_scored {
            batch_metrics(groups, PolicyVersion(step - 1), &self.context.policies.ids())
        } else {
            supervised_metrics(groups)
        };
        if is_scored && self.context.domains.are_reported {
            let filtered = std::mem::take(&mut self.counters.filtered_domains);
            metrics.extend(domain_metrics(groups, &filtered));
            metrics.extend(self.curriculum_metrics());
        }
        metrics.extend(self.reuse_metrics(groups, reused, PolicyVersion(step - 1)));
        metrics.extend(report.metrics.clone());
        metrics.extend(self.leagues.iter().flat_map(StageLeague::metrics));
        metrics.extend(training_metrics(report, train_time));
        if times.checkpoint > Duration::ZERO {
            metrics.insert(metric::TIME_CHECKPOINT.into(), times.checkpoint.as_secs_f64());
        }
        if samples {
            metrics.extend(self.drawn_metrics());
            metrics.extend(rollout_metrics(&times));
            metrics.extend(computed_metrics(&statistics, &before));
        }
        if self.weights.engine().is_some_and(|engine| engine.capabilities().speculates) {
            metrics.extend(speculation_metrics(&statistics, &before));
        }
        if let Some(runner) = self.groups.source().rollouts() {
            metrics.extend(failure_metrics(runner.episodes().scorer()));
            let reported = runner.episodes().scorer().take_metrics();
            let named = |(name, value)| (format!("{}{name}", metric::FUNCTION_PREFIX), value);
            metrics.extend(reported.into_iter().map(named));
            metrics.extend(runner.episodes().world().take_metrics());
        }
        self.reporter.emit(Event::Step { metrics });
        let times = self.weights.engine().and_then(|engine| engine.take_request_times());
        if let Some(times) = times.filter(|_| samples) {
            self.reporter.emit(Event::Requests(requests_event(&times)));
        }
        if is_scored {
            self.report_samples(groups, report);
            self.log_rollouts(step, all, new, report);
        }
    }

    /// Warns about optimiser steps that were skipped.
    pub(crate) fn report_skipped(&mut self, report: &BatchReport) {
        let limit = self.context.training.max_skipped_steps;
        let mut skipped = self.learner.skipped_steps - report.steps_skipped();
        for SkippedSteps { steps, error } in &report.skipped_steps {
            skipped += steps;
            self.reporter.warn(format!(
                "step {}: {steps} optimiser {} skipped: {error}; {skipped} of at most {limit} in the stage",
                self.step(),
                if *steps == 1 { "step was" } else { "steps were" },
            ));
        }
    }

    /// Counts of the groups drawn for the batch.
    fn drawn_metrics(&mut self) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.insert(metric::NUM_TOKENS.into(), self.counters.tokens as f64);
        for (reason, groups) in std::mem::take(&mut self.counters.filtered) {
            metrics.insert(format!("{}{reason}", metric::FILTERED_PREFIX), groups as f64);
        }
        let failed = std::mem::take(&mut self.counters.failed);
        if failed > 0 {
            metrics.insert(format!("{}failed", metric::FILTERED_PREFIX), failed as f64);
        }
        metrics
    }

    fn report_samples(&mut self, groups: &[Group], report: &BatchReport) {
        // One episode of each of the first groups, at a different index each time, so that good and bad ones are shown.
        for (g, group) in groups.iter().take(self.context.shown_samples).enumerate() {
            let trained = group.episodes.iter().enumerate().filter(|(_, e)| e.role == Role::Train);
            let trained: Vec<(usize, &Episode)> = trained.collect();
            let Some(&(index, episode)) = trained.get(g % trained.len().max(1)) else { continue };
            let (Some(first), Some(last)) = (episode.segments.first(), episode.segments.last()) else {
                continue;
            };
            let sample = Sample {
                ticket: group.ticket.0,
                sample: index as u32,
                task: group.task.index,
                prompt: prompt_text(&self.context.tokenizer, first),
                completion: episode_text(&self.context.tokenizer, &episode.segments),
                answer: group.task.answer.clone(),
                reward: episode.rewards.total(),
                components: episode.rewards.values(),
                failures: episode.rewards.failures(),
                advantage: report.advantages.get(g).and_then(|a| a.get(index)).copied(),
                solved: episode.rewards.solved,
                tokens: episode.policy_tokens(),
                stop: last.stop.name().to_owned(),
            };
            self.reporter.emit(Event::Sample(sample));
        }
    }

    /// Writes the rollouts of the step. They are telemetry: a failure is a warning.
    fn log_rollouts(&mut self, step: u64, groups: &[Group], new: usize, report: &BatchReport) {
        let tokenizer = &self.context.tokenizer;
        let text = |trajectory: &Trajectory| {
            (prompt_text(tokenizer, trajectory), completion_text(tokenizer, trajectory))
        };
        let given = report.given_advantages.as_deref().unwrap_or_default();
        let advantages = LoggedAdvantages { shown: &report.advantages, given };
        if let Err(error) = self.rollouts.write(step, groups, new, advantages, &text) {
            self.reporter.warn(format!("the rollouts of step {step} were not written: {error}"));
        }
    }
}

/// Times with a resolution of 0.1 ms.
fn requests_event(times: &RequestTimes) -> rloom_telemetry::RequestTimes {
    let rounded = |seconds: f64| (seconds * 1e4).round() / 1e4;
    let of = |value: fn(&RequestTime) -> f64| {
        times.requests.iter().map(|time| rounded(value(time))).collect::<Vec<f64>>()
    };
    rloom_telemetry::RequestTimes {
        replicas: times.replicas as u64,
        max_requests: times.max_requests as u64,
        answered: times.answered,
        tokens: times.requests.iter().map(|time| time.tokens as u64).collect(),
        seconds: of(|time| time.service.as_secs_f64()),
        waited: of(|time| time.waited.as_secs_f64()),
        concurrency: of(|time| time.concurrency),
        updates: times.updates.iter().map(|update| rounded(update.as_secs_f64())).collect(),
    }
}

fn training_metrics(report: &BatchReport, time: Duration) -> Metrics {
    let seconds = time.as_secs_f64();
    let mut metrics = Metrics::new();
    if let Some(norm) = report.grad_norm {
        metrics.insert(metric::GRAD_NORM.into(), norm);
    }
    metrics.insert(metric::LEARNING_RATE.into(), report.learning_rate);
    metrics.insert(metric::TIME_TRAIN.into(), seconds);
    metrics.insert(metric::TRAIN_TOKENS_PER_SECOND.into(), report.tokens as f64 / seconds.max(1e-9));
    metrics
}

fn rollout_metrics(times: &StepTimes) -> Metrics {
    let rollout = times.rollout.as_secs_f64();
    let step = (times.rollout + times.wait_for_policy).as_secs_f64();
    let mut metrics: Metrics = [
        (metric::TIME_ROLLOUT, rollout),
        (metric::TIME_REWARD, times.reward.as_secs_f64()),
        (metric::TIME_WAIT_FOR_BATCH, times.wait_for_batch.as_secs_f64()),
        (metric::TIME_WAIT_FOR_POLICY, times.wait_for_policy.as_secs_f64()),
        (metric::TIME_PUBLISH, times.publish.as_secs_f64()),
        (metric::TIME_SCHEDULER, times.scheduler.as_secs_f64()),
        (metric::OVERLAP, times.overlap.as_secs_f64() / step.max(1e-9)),
        (metric::QUEUE_READY, times.queue.ready as f64),
        (metric::QUEUE_RUNNING, times.queue.running as f64),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if times.sampled_tokens > 0 {
        let rate = times.sampled_tokens as f64 / rollout.max(1e-9);
        metrics.insert(metric::ROLLOUT_TOKENS_PER_SECOND.into(), rate);
    }
    metrics
}

/// Tokens computed and reused since the last step; empty if the engine does not count them.
fn computed_metrics(now: &RolloutStatistics, before: &RolloutStatistics) -> Metrics {
    if now.computed_tokens == 0 {
        return Metrics::new();
    }
    [
        (metric::ROLLOUT_COMPUTED_TOKENS, now.computed_tokens, before.computed_tokens),
        (metric::ROLLOUT_REUSED_TOKENS, now.reused_tokens, before.reused_tokens),
    ]
    .map(|(name, now, before)| (name.to_owned(), now.saturating_sub(before) as f64))
    .into()
}

fn speculation_metrics(now: &RolloutStatistics, before: &RolloutStatistics) -> Metrics {
    let (now, before) = (now.drafts.unwrap_or_default(), before.drafts.unwrap_or_default());
    [
        (metric::ROLLOUT_DRAFTED_TOKENS, now.drafted_tokens, before.drafted_tokens),
        (metric::ROLLOUT_ACCEPTED_TOKENS, now.accepted_tokens, before.accepted_tokens),
    ]
    .map(|(name, now, before)| (name.to_owned(), now.saturating_sub(before) as f64))
    .into()
}

fn supervised_metrics(groups: &[Group]) -> Metrics {
    let lengths: Vec<usize> = groups.iter().flat_map(|g| &g.episodes).map(Episode::policy_tokens).collect();
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64;
    [(metric::MEAN_LENGTH.to_owned(), mean)].into()
}
