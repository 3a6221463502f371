//! Held-out evaluation: greedy accuracy, and pass@k from samples.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rloom_config::EvalSettings;
use rloom_core::{PolicyId, PolicyVersion};
use rloom_core::{Purpose, SampleKey, Task, Ticket, metric};
use rloom_data::Dataset;
use rloom_embedded::publish_model;
use rloom_engine::{OnUpdate, RolloutEngine, SamplingSettings};
use rloom_ops::Ctx;

use crate::RunError;
use crate::batch_metrics::pass_at_k;
use crate::episodes::{Assignment, Attempts, Counters, Scored, prompt_text, shown_text, together};
use crate::events::{Metrics, Sample};
use crate::setup::{Policy, Shared};

/// What is evaluated, and how.
#[derive(Debug)]
pub(crate) struct Evaluator<E> {
    pub(crate) attempts: Arc<Attempts<E>>,
    pub(crate) dataset: Dataset,
    /// Tasks taken from the start of the held-out split.
    pub(crate) tasks: u64,
    /// Sampled completions of each task for pass@k; 0 for none.
    pub(crate) samples: u32,
    /// How they are sampled; greedy completions take its token limit and stop strings.
    pub(crate) sampling: SamplingSettings,
    pub(crate) counters: Arc<Counters>,
}

/// What an evaluation found.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationReport {
    /// Accuracy, pass@k, share of readable answers, mean length.
    pub metrics: Metrics,
    /// Some of the greedy completions.
    pub samples: Vec<Sample>,
    /// Held-out tasks.
    pub tasks: u64,
    /// Greedy accuracy.
    pub accuracy: f64,
}

/// Evaluates a policy outside of a run, as a run with this seed would. `shown` greedy completions go into the report;
/// `progress` is told how many completions are done, and of how many.
pub fn evaluate(
    policy: &Policy,
    eval: &EvalSettings,
    ctx: &Ctx,
    seed: u64,
    shown: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<EvaluationReport, RunError> {
    let setup = |error: String| RunError::Setup(error);
    let shared = Shared::new(policy, ctx.clone(), seed);
    let engine = shared.engine(policy, &eval.rollout)?;
    let evaluator = shared.evaluator(eval, &engine)?;
    crate::runtime::block_on(async {
        let weights = publish_model(PolicyId::MAIN, PolicyVersion(0), &policy.model);
        engine.load(&weights, OnUpdate::Finish).await.map_err(|e| setup(e.to_string()))?;
        let total = evaluator.completions();
        let mut run = std::pin::pin!(evaluator.run(shown));
        loop {
            match tokio::time::timeout(Duration::from_millis(100), run.as_mut()).await {
                Ok(report) => return report.map_err(setup),
                // Every request has the engine's own deadline, so this loop ends.
                Err(_) => progress(evaluator.counters.scored.load(Ordering::Relaxed), total),
            }
        }
    })?
}

struct TaskOutcome {
    task: Task,
    greedy: Scored,
    correct_samples: u64,
}

impl<E: RolloutEngine> Evaluator<E> {
    /// Completions that one evaluation makes.
    pub(crate) fn completions(&self) -> u64 {
        self.tasks * (1 + u64::from(self.samples))
    }

    /// Evaluates the weights that the engine holds. `shown` completions go into the report.
    pub(crate) async fn run(&self, shown: usize) -> Result<EvaluationReport, String> {
        let futures = (0..self.tasks).map(|index| Box::pin(self.task(index))).collect();
        let outcomes: Vec<TaskOutcome> =
            together(futures).await.into_iter().collect::<Result<_, String>>()?;
        let n = outcomes.len().max(1) as f64;
        let share = |count: usize| count as f64 / n;
        let solved = |o: &&TaskOutcome| o.greedy.rewards.solved == Some(true);
        let accuracy = share(outcomes.iter().filter(solved).count());
        let mut metrics = Metrics::new();
        metrics.insert(metric::EVAL_ACCURACY.into(), accuracy);
        if outcomes.iter().any(|o| o.greedy.rewards.parsed.is_some()) {
            let parsed = outcomes.iter().filter(|o| o.greedy.rewards.parsed == Some(true)).count();
            metrics.insert(metric::EVAL_PARSED.into(), share(parsed));
        }
        let tokens: usize = outcomes.iter().map(|o| o.greedy.trajectory.policy_tokens()).sum();
        metrics.insert(metric::EVAL_MEAN_LENGTH.into(), tokens as f64 / n);
        if self.samples == 0 {
            metrics.insert(metric::EVAL_PASS_AT_1.into(), accuracy);
        }
        let mut k = 1;
        while k <= u64::from(self.samples) {
            let sum: f64 =
                outcomes.iter().map(|o| pass_at_k(u64::from(self.samples), o.correct_samples, k)).sum();
            metrics.insert(format!("{}{k}", metric::EVAL_PASS_AT), sum / n);
            k *= 2;
        }
        let samples = outcomes.iter().take(shown).map(|o| self.shown(o)).collect();
        Ok(EvaluationReport { metrics, samples, tasks: outcomes.len() as u64, accuracy })
    }

    async fn task(&self, index: u64) -> Result<TaskOutcome, String> {
        let task = self.dataset.get(index).map_err(|e| e.to_string())?;
        let greedy = SamplingSettings {
            stop: self.sampling.stop.clone(),
            ..SamplingSettings::greedy(self.sampling.max_new_tokens)
        };
        // Sample 0 is the greedy one; the key's ticket is the task, so that evaluations share their noise.
        let futures = (0..=self.samples)
            .map(|sample| {
                let key = SampleKey { ticket: Ticket(index), sample, segment: 0 };
                let sampling = if sample == 0 { &greedy } else { &self.sampling };
                // Apart from the tickets of training groups.
                let group = Some(index | 1 << 63);
                let purpose = Purpose::Evaluation;
                // Training waits for it, and rollouts may go on for long.
                let what = Assignment { task: &task, key, purpose, group, priority: 0, sampling };
                Box::pin(self.attempts.whole_episode(what, &self.counters))
            })
            .collect();
        let mut scored = together(futures).await.into_iter();
        let greedy = scored.next().unwrap_or_else(|| Err("no completion was made".into()))?;
        let mut correct_samples = 0;
        for sample in scored {
            correct_samples += u64::from(sample?.rewards.solved == Some(true));
        }
        Ok(TaskOutcome { task, greedy, correct_samples })
    }

    fn shown(&self, outcome: &TaskOutcome) -> Sample {
        let scored = &outcome.greedy;
        Sample {
            ticket: scored.trajectory.key.ticket.0,
            sample: 0,
            task: outcome.task.index,
            prompt: prompt_text(&self.attempts.tokenizer, &scored.trajectory),
            completion: shown_text(&self.attempts.tokenizer, &scored.trajectory),
            answer: outcome.task.answer.clone(),
            reward: scored.rewards.total(),
            components: scored.rewards.components.iter().map(|c| (c.name.clone(), c.value)).collect(),
            advantage: None,
            solved: scored.rewards.solved,
            tokens: scored.trajectory.policy_tokens(),
            stop: stop_name(scored.trajectory.stop),
        }
    }
}

/// The reason as the event stream has it.
pub(crate) fn stop_name(stop: rloom_core::StopReason) -> String {
    stop.name().to_owned()
}
