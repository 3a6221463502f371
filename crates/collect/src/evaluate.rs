//! Held-out evaluation: greedy accuracy, and pass@k from samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::{Purpose, Rewards, SampleKey, StopReason, Task, Ticket, Trajectory, metric};
use rloom_data::Dataset;
use rloom_engine::{RolloutEngine, SamplingSettings};
use rloom_telemetry::{Metrics, Sample};

use crate::CollectError;
use crate::concurrency::join_all;
use crate::episode::{EpisodeCounters, EpisodeRequest, EpisodeRunner, ScoredEpisode};
use crate::metrics::pass_at_k;
use crate::transcript::{episode_text, prompt_text};

/// Evaluates a policy on held-out tasks.
#[derive(Debug)]
pub struct Evaluator<E> {
    episodes: Arc<EpisodeRunner<E>>,
    dataset: Dataset,
    /// Positions of the tasks in the dataset.
    tasks: Vec<u64>,
    samples: u32,
    sampling: SamplingSettings,
    counters: EpisodeCounters,
    /// Further sets, with their names.
    sets: Vec<(String, Self)>,
}

/// Result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationReport {
    /// Accuracy, pass@k, fraction of parsed answers, mean length.
    pub metrics: Metrics,
    /// Some of the greedy completions.
    pub samples: Vec<Sample>,
    /// Number of held-out tasks.
    pub tasks: u64,
    /// Greedy accuracy, 0 to 1.
    pub accuracy: f64,
    /// Results of the further sets.
    pub sets: Vec<SetReport>,
}

/// Result of a further set of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct SetReport {
    /// Name of the set.
    pub name: String,
    /// Number of its tasks.
    pub tasks: u64,
    /// Greedy accuracy, 0 to 1.
    pub accuracy: f64,
}

/// Greedy accuracy of each domain, if the tasks have several.
fn accuracy_by_domain(judged: &[&TaskOutcome]) -> Metrics {
    let mut domains: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for outcome in judged {
        let (solved, tasks) = domains.entry(&outcome.task.domain).or_default();
        *solved += u64::from(outcome.greedy.rewards.solved == Some(true));
        *tasks += 1;
    }
    if domains.len() < 2 {
        return Metrics::new();
    }
    let accuracy = |(domain, (solved, tasks)): (&str, (u64, u64))| {
        (format!("{}{domain}", metric::EVAL_DOMAIN_ACCURACY_PREFIX), solved as f64 / tasks as f64)
    };
    domains.into_iter().map(accuracy).collect()
}

struct TaskOutcome {
    task: Task,
    greedy: ScoredEpisode,
    correct_samples: u64,
    /// Samples whose rewards did not fail.
    judged_samples: u64,
}

impl<E: RolloutEngine + 'static> Evaluator<E> {
    /// Creates an evaluator of `tasks` tasks of `dataset`: the first ones, of each source of a mixture. Each is attempted once greedily and, for pass@k,
    /// `samples` times by `sampling`; greedy completions use its token limit and stop strings.
    pub fn new(
        episodes: Arc<EpisodeRunner<E>>,
        dataset: Dataset,
        tasks: u64,
        samples: u32,
        sampling: SamplingSettings,
    ) -> Self {
        let tasks = dataset.selection(tasks);
        let counters = EpisodeCounters::default();
        Self { episodes, dataset, tasks, samples, sampling, counters, sets: Vec::new() }
    }

    /// The same evaluator, which evaluates further sets after its own tasks.
    #[must_use]
    pub fn with_sets(self, sets: Vec<(String, Self)>) -> Self {
        Self { sets, ..self }
    }

    /// Runs the episodes.
    pub fn episodes(&self) -> &EpisodeRunner<E> {
        &self.episodes
    }

    /// The episodes of all sets.
    pub fn all_episodes(&self) -> impl Iterator<Item = &EpisodeRunner<E>> {
        std::iter::once(self.episodes()).chain(self.sets.iter().map(|(_, set)| set.episodes()))
    }

    /// Number of completions scored since the last [`reset`](Self::reset), of all sets.
    pub fn scored(&self) -> u64 {
        self.counters.scored() + self.sets.iter().map(|(_, set)| set.scored()).sum::<u64>()
    }

    /// Resets the number of scored completions.
    pub fn reset(&self) {
        self.counters.reset();
        for (_, set) in &self.sets {
            set.reset();
        }
    }

    /// Completions per evaluation, of all sets.
    pub fn completions(&self) -> u64 {
        let own = self.tasks.len() as u64 * (1 + u64::from(self.samples));
        own + self.sets.iter().map(|(_, set)| set.completions()).sum::<u64>()
    }

    /// Evaluates the weights that the engine has loaded. The report contains `shown` completions of the own tasks.
    pub async fn run(&self, shown: usize) -> Result<EvaluationReport, CollectError> {
        let mut report = self.run_own(shown).await?;
        for (name, set) in &self.sets {
            let of_set = set.run_own(0).await?;
            for (metric, value) in of_set.metrics {
                let metric = metric.strip_prefix(metric::EVAL_PREFIX).unwrap_or(&metric);
                report.metrics.insert(format!("{}{name}/{metric}", metric::EVAL_SET_PREFIX), value);
            }
            report.sets.push(SetReport {
                name: name.clone(),
                tasks: of_set.tasks,
                accuracy: of_set.accuracy,
            });
        }
        Ok(report)
    }

    async fn run_own(&self, shown: usize) -> Result<EvaluationReport, CollectError> {
        // Each task has a completion that is not done, so these are enough to keep the engine busy.
        let limit = self.episodes.engine().limit();
        let tasks = self.tasks.clone().into_iter().map(|position| Box::pin(self.task(position)));
        let outcomes: Vec<TaskOutcome> =
            join_all(tasks, limit).await.into_iter().collect::<Result<_, CollectError>>()?;
        // A failure of a reward is not a wrong answer: such tasks do not count.
        let scorer = self.episodes.scorer();
        let failed = |o: &TaskOutcome| scorer.failure(&o.task.domain, &o.greedy.rewards).is_some();
        self.episodes.check_dropped(outcomes.iter().map(|o| (&o.task, &o.greedy.rewards)))?;
        let tasks = outcomes.len() as u64;
        let judged: Vec<&TaskOutcome> = outcomes.iter().filter(|o| !failed(o)).collect();
        let n = judged.len().max(1) as f64;
        let fraction = |count: usize| count as f64 / n;
        let accuracy = fraction(judged.iter().filter(|o| o.greedy.rewards.solved == Some(true)).count());
        let mut metrics = Metrics::new();
        if judged.len() < outcomes.len() {
            metrics.insert(metric::EVAL_DROPPED.into(), (outcomes.len() - judged.len()) as f64);
        }
        metrics.insert(metric::EVAL_ACCURACY.into(), accuracy);
        metrics.extend(accuracy_by_domain(&judged));
        if judged.iter().any(|o| o.greedy.rewards.parsed.is_some()) {
            let parsed = judged.iter().filter(|o| o.greedy.rewards.parsed == Some(true)).count();
            metrics.insert(metric::EVAL_PARSED.into(), fraction(parsed));
        }
        let tokens: usize = judged.iter().map(|o| policy_tokens(&o.greedy.segments)).sum();
        metrics.insert(metric::EVAL_MEAN_LENGTH.into(), tokens as f64 / n);
        if self.samples == 0 {
            metrics.insert(metric::EVAL_PASS_AT_1.into(), accuracy);
        }
        let mut k = 1;
        while k <= u64::from(self.samples) {
            let estimates: Vec<f64> = judged
                .iter()
                .filter(|o| o.judged_samples >= k)
                .map(|o| pass_at_k(o.judged_samples, o.correct_samples, k))
                .collect();
            if !estimates.is_empty() {
                let mean = estimates.iter().sum::<f64>() / estimates.len() as f64;
                metrics.insert(format!("{}{k}", metric::EVAL_PASS_AT), mean);
            }
            k *= 2;
        }
        let samples = outcomes.iter().take(shown).map(|o| self.sample(o)).collect();
        Ok(EvaluationReport { metrics, samples, tasks, accuracy, sets: Vec::new() })
    }

    async fn task(&self, index: u64) -> Result<TaskOutcome, CollectError> {
        let task = self.dataset.get(index)?;
        let greedy = SamplingSettings {
            stop: self.sampling.stop.clone(),
            ..SamplingSettings::greedy(self.sampling.max_new_tokens)
        };
        // Sample 0 is the greedy one. The ticket is the task's index, so that evaluations share their noise.
        let episodes = (0..=self.samples).map(|sample| {
            let request = EpisodeRequest {
                task: &task,
                key: SampleKey { ticket: Ticket(index), sample, segment: 0 },
                purpose: Purpose::Evaluation,
                // Distinct from the tickets of training groups.
                group: Some(index | 1 << 63),
                // Training waits for the evaluation.
                priority: 0,
                sampling: if sample == 0 { &greedy } else { &self.sampling },
            };
            Box::pin(self.episodes.run_whole(request, &self.counters))
        });
        let scored: Vec<ScoredEpisode> =
            join_all(episodes, usize::MAX).await.into_iter().collect::<Result<_, CollectError>>()?;
        let mut scored = self.judged_together(&task, scored).await?.into_iter();
        let greedy = scored.next().ok_or(CollectError::Stopped)?;
        let rewards: Vec<Rewards> = scored.map(|sample| sample.rewards).collect();
        self.episodes.check_dropped(rewards.iter().map(|rewards| (&task, rewards)))?;
        let scorer = self.episodes.scorer();
        let judged = rewards.iter().filter(|rewards| scorer.failure(&task.domain, rewards).is_none());
        let judged_samples = judged.count() as u64;
        let correct_samples = rewards.iter().filter(|rewards| rewards.solved == Some(true)).count() as u64;
        Ok(TaskOutcome { task, greedy, correct_samples, judged_samples })
    }

    /// Completes the rewards of a task's episodes, which are judged as a group.
    async fn judged_together(
        &self,
        task: &Task,
        scored: Vec<ScoredEpisode>,
    ) -> Result<Vec<ScoredEpisode>, CollectError> {
        if !scored.iter().any(|episode| episode.rewards.pending) {
            return Ok(scored);
        }
        let mut group: Vec<_> =
            scored.into_iter().map(|ScoredEpisode { segments, rewards, .. }| (segments, rewards)).collect();
        let reward_time = self.episodes.judge_group(task, &mut group).await?;
        let scored = |(segments, rewards)| ScoredEpisode { segments, rewards, reward_time };
        Ok(group.into_iter().map(scored).collect())
    }

    fn sample(&self, outcome: &TaskOutcome) -> Sample {
        let ScoredEpisode { segments, rewards, .. } = &outcome.greedy;
        let (first, last) = (segments.first(), segments.last());
        let tokenizer = self.episodes.tokenizer();
        Sample {
            ticket: first.map_or(0, |first| first.key.ticket.0),
            sample: 0,
            task: outcome.task.index,
            prompt: first.map(|first| prompt_text(tokenizer, first)).unwrap_or_default(),
            completion: episode_text(tokenizer, segments),
            answer: outcome.task.answer.clone(),
            reward: rewards.total(),
            components: rewards.values(),
            failures: rewards.failures(),
            advantage: None,
            solved: rewards.solved,
            tokens: policy_tokens(segments),
            stop: last.map_or(StopReason::Aborted, |last| last.stop).name().to_owned(),
        }
    }
}

fn policy_tokens(segments: &[Trajectory]) -> usize {
    segments.iter().map(Trajectory::policy_tokens).sum()
}
