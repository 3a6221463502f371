//! What is told of a trained batch: its metrics, some completions, and the file of its rollouts.

use std::time::Duration;

use rloom_core::{Episode, Group, PolicyVersion, Role, metric};

use crate::batch::BatchReport;
use crate::batch_metrics::batch_metrics;
use crate::episodes::{prompt_text, shown_text};
use crate::evaluate::stop_name;
use crate::events::{Event, Sample};
use crate::rollout_log;
use crate::stage::{Source, Stage};

impl Stage<'_, '_> {
    /// Tells of a batch that was trained. Called with the events placed at its step.
    pub(crate) fn tell_step(&mut self, groups: &[Group], report: &BatchReport, train_time: Duration) {
        let step = self.scheduler.version().0 + 1;
        let sampled = matches!(self.parts.source, Source::Rollouts(_));
        let clock = self.watch.end_step();
        let done = self.engine_statistics();
        let before = std::mem::replace(&mut self.watch.engine, done);
        let mut metrics =
            if sampled { batch_metrics(groups, PolicyVersion(step - 1)) } else { supervised_metrics(groups) };
        metrics.extend(report.metrics.clone());
        let mut put = |name: &str, value: f64| metrics.insert(name.to_owned(), value);
        if let Some(norm) = report.grad_norm {
            put(metric::GRAD_NORM, norm);
        }
        put(metric::LEARNING_RATE, report.learning_rate);
        put(metric::TIME_TRAIN, train_time.as_secs_f64());
        put(metric::TRAIN_TOKENS_PER_SECOND, report.tokens as f64 / train_time.as_secs_f64().max(1e-9));
        if clock.checkpoint > Duration::ZERO {
            put(metric::TIME_CHECKPOINT, clock.checkpoint.as_secs_f64());
        }
        if sampled {
            put(metric::NUM_TOKENS, self.drawn.tokens as f64);
            for (reason, groups) in std::mem::take(&mut self.drawn.filtered) {
                put(&format!("{}{reason}", metric::FILTERED_PREFIX), groups as f64);
            }
            let failed = std::mem::take(&mut self.drawn.failed);
            if failed > 0 {
                put(&format!("{}failed", metric::FILTERED_PREFIX), failed as f64);
            }
            let rollout = clock.rollout.as_secs_f64();
            put(metric::TIME_ROLLOUT, rollout);
            put(metric::TIME_REWARD, clock.reward.as_secs_f64());
            put(metric::TIME_WAIT_FOR_BATCH, clock.wait_for_batch.as_secs_f64());
            put(metric::TIME_WAIT_FOR_POLICY, clock.wait_for_policy.as_secs_f64());
            put(metric::TIME_PUBLISH, clock.publish.as_secs_f64());
            put(metric::TIME_SCHEDULER, clock.scheduler.as_secs_f64());
            let whole = (clock.rollout + clock.wait_for_policy).as_secs_f64();
            put(metric::OVERLAP, clock.overlap.as_secs_f64() / whole.max(1e-9));
            put(metric::QUEUE_READY, clock.queue.ready as f64);
            put(metric::QUEUE_RUNNING, clock.queue.running as f64);
            if clock.sampled_tokens > 0 {
                put(metric::ROLLOUT_TOKENS_PER_SECOND, clock.sampled_tokens as f64 / rollout.max(1e-9));
            }
        }
        if let Some(done) = done.drafts {
            let before = before.drafts.unwrap_or_default();
            for (name, done, before) in [
                (metric::ROLLOUT_DRAFTED_TOKENS, done.drafted_tokens, before.drafted_tokens),
                (metric::ROLLOUT_ACCEPTED_TOKENS, done.accepted_tokens, before.accepted_tokens),
            ] {
                metrics.insert(name.to_owned(), done.saturating_sub(before) as f64);
            }
        }
        if let Source::Rollouts(source) = &self.parts.source {
            // Only with `on_error = "skip"`: otherwise the first failure ends the run.
            for (name, failures) in source.attempts.scorer.failures().filter(|&(_, failures)| failures > 0) {
                metrics.insert(format!("{}{name}", metric::REWARD_FAILURES_PREFIX), failures as f64);
            }
        }
        self.events.emit(Event::Step { metrics });
        if sampled {
            self.tell_samples(groups, report);
            self.log_rollouts(step, groups, report);
        }
    }

    fn tell_samples(&mut self, groups: &[Group], report: &BatchReport) {
        // One of each of the first groups, another place in the group each time, so that good and bad ones are seen.
        for (g, group) in groups.iter().take(self.parts.shown_samples).enumerate() {
            let trained = group.episodes.iter().enumerate().filter(|(_, e)| e.role == Role::Train);
            let trained: Vec<(usize, &Episode)> = trained.collect();
            let Some(&(place, episode)) = trained.get(g % trained.len().max(1)) else {
                continue;
            };
            let Some(trajectory) = episode.segments.first() else {
                continue;
            };
            let sample = Sample {
                ticket: group.ticket.0,
                sample: place as u32,
                task: group.task.index,
                prompt: prompt_text(&self.parts.tokenizer, trajectory),
                completion: shown_text(&self.parts.tokenizer, trajectory),
                answer: group.task.answer.clone(),
                reward: episode.rewards.total(),
                components: episode.rewards.components.iter().map(|c| (c.name.clone(), c.value)).collect(),
                advantage: report.advantages.get(g).and_then(|a| a.get(place)).copied(),
                solved: episode.rewards.solved,
                tokens: trajectory.policy_tokens(),
                stop: stop_name(trajectory.stop),
            };
            self.events.emit(Event::Sample(sample));
        }
    }

    /// Rollouts are telemetry: a file that cannot be written is said, and training goes on.
    fn log_rollouts(&mut self, step: u64, groups: &[Group], report: &BatchReport) {
        let path = self.directory.rollouts(&self.parts.outline.name, step);
        let tokenizer = &self.parts.tokenizer;
        let text = |trajectory: &rloom_core::Trajectory| {
            (prompt_text(tokenizer, trajectory), shown_text(tokenizer, trajectory))
        };
        if let Err(error) = rollout_log::write(&path, step, groups, &report.advantages, &text) {
            self.events.warn(format!("the rollouts of step {step} were not written: {error}"));
        }
    }
}

fn supervised_metrics(groups: &[Group]) -> crate::events::Metrics {
    let lengths: Vec<usize> =
        groups.iter().flat_map(|g| &g.episodes).map(rloom_core::Episode::policy_tokens).collect();
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64;
    [(metric::MEAN_LENGTH.to_owned(), mean)].into()
}
