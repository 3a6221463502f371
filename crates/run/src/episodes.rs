//! Groups and evaluations as they are generated: engine × environment × reward.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rloom_algo::Overlong;
use rloom_core::{Episode, Group, Purpose, RandomKey, Rewards, Role, SampleKey, Task, Ticket, Trajectory};
use rloom_data::{Cursor, Dataset};
use rloom_env::{Attempt, Environment, Progress, Turn, demonstrate};
use rloom_reward::Scorer;
use rloom_rollout::{GenerateRequest, RolloutEngine, SamplingSettings};
use rloom_text::Tokenizer;

use crate::outcome::shape;

/// Counts of work done, read by the progress display.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Completions generated.
    pub(crate) generated: AtomicU64,
    /// Completions scored.
    pub(crate) scored: AtomicU64,
}

/// Everything that it takes to attempt a task. Shared by all groups of a stage.
#[derive(Debug)]
pub(crate) struct Attempts<E> {
    pub(crate) engine: Arc<E>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) scorer: Arc<Scorer>,
    pub(crate) context: usize,
    pub(crate) seed: u64,
    pub(crate) stage: u32,
    pub(crate) stop_tokens: Arc<[u32]>,
}

/// An episode with the seconds that its reward took.
#[derive(Debug)]
pub(crate) struct Scored {
    pub(crate) trajectory: Trajectory,
    pub(crate) rewards: Rewards,
    pub(crate) reward_time: Duration,
}

impl<E: RolloutEngine> Attempts<E> {
    /// One episode, from the prompt to its reward.
    pub(crate) async fn episode(
        &self,
        task: &Task,
        key: SampleKey,
        purpose: Purpose,
        group: Option<u64>,
        sampling: &SamplingSettings,
        counters: &Counters,
    ) -> Result<Scored, String> {
        let text = |error: rloom_env::EnvError| error.to_string();
        let start = Attempt::start(self.environment.as_ref(), task, &self.tokenizer, self.context, key);
        let mut attempt = start.await.map_err(text)?;
        // The samples of a group share the first prompt alone: what follows is each one's own.
        let mut shared = group;
        loop {
            let prompt: Arc<[u32]> = attempt.tokens().into();
            let mut sampling = sampling.clone();
            sampling.max_new_tokens = sampling.max_new_tokens.min(attempt.room());
            let random = RandomKey::of_sample(self.seed, self.stage, purpose, key);
            let mut request = GenerateRequest::new(random, prompt, sampling);
            request.stop_tokens = Arc::clone(&self.stop_tokens);
            request.group = shared.take();
            let made = self.engine.generate(request).await.map_err(|e| e.to_string())?;
            let turn = Turn {
                tokens: made.tokens,
                logprobs: made.logprobs,
                temperature: made.temperature,
                versions: made.versions,
                stop: made.stop,
            };
            if attempt.turn(turn).await.map_err(text)? == Progress::Done {
                break;
            }
        }
        counters.generated.fetch_add(1, Ordering::Relaxed);
        let trajectory = attempt.finish().map_err(text)?;
        let completion = completion_text(&self.tokenizer, &trajectory)?;
        let start = Instant::now();
        let rewards = self.scorer.score(task, &trajectory, &completion).map_err(|e| e.to_string())?;
        counters.scored.fetch_add(1, Ordering::Relaxed);
        Ok(Scored { trajectory, rewards, reward_time: start.elapsed() })
    }
}

/// What the policy wrote, without special tokens: what is judged.
fn completion_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> Result<String, String> {
    let ids: Vec<u32> =
        trajectory.policy_ranges().flat_map(|range| trajectory.tokens[range].iter().copied()).collect();
    tokenizer.decode(&ids, true).map_err(|e| e.to_string())
}

/// Everything after the prompt, what the environment said included, without special tokens: what is shown.
pub(crate) fn shown_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> String {
    tokenizer.decode(&trajectory.tokens[trajectory.prompt_tokens()..], true).unwrap_or_default()
}

/// The prompt as text, special tokens included.
pub(crate) fn prompt_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> String {
    tokenizer.decode(&trajectory.tokens[..trajectory.prompt_tokens()], false).unwrap_or_default()
}

/// A finished group with the seconds that its rewards took.
#[derive(Debug)]
pub(crate) struct FinishedGroup {
    pub(crate) group: Group,
    pub(crate) reward_time: Duration,
}

/// Makes the groups of a stage that samples.
#[derive(Debug)]
pub(crate) struct GroupSource<E> {
    pub(crate) attempts: Arc<Attempts<E>>,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) cursor: Cursor,
    pub(crate) group_size: u32,
    /// Whether a greedy episode is compared with.
    pub(crate) has_baseline: bool,
    pub(crate) overlong: Option<Overlong>,
    /// Most policy tokens of an episode.
    pub(crate) completion_limit: u64,
    pub(crate) sampling: SamplingSettings,
    pub(crate) counters: Arc<Counters>,
}

impl<E: RolloutEngine> GroupSource<E> {
    /// Episodes of a group, the one that others are compared with included.
    pub(crate) fn episodes_per_group(&self) -> u32 {
        self.group_size + u32::from(self.has_baseline)
    }

    /// The task of a ticket: the cursor's place at the ticket's number.
    pub(crate) fn task(&self, ticket: Ticket) -> Result<Task, String> {
        self.dataset.get(self.cursor.at(ticket.0).index).map_err(|e| e.to_string())
    }

    /// Generates and scores a group. The error names its task.
    pub(crate) async fn run(&self, ticket: Ticket) -> Result<FinishedGroup, (Ticket, u64, String)> {
        let place = self.cursor.at(ticket.0).index;
        let task = self.task(ticket).map_err(|e| (ticket, place, e))?;
        let greedy = SamplingSettings { temperature: 0.0, ..self.sampling.clone() };
        let pending = (0..self.episodes_per_group())
            .map(|sample| {
                let key = SampleKey { ticket, sample, segment: 0 };
                let sampling = if sample < self.group_size { &self.sampling } else { &greedy };
                let (purpose, group) = (Purpose::Rollout, Some(ticket.0));
                Box::pin(self.attempts.episode(&task, key, purpose, group, sampling, &self.counters))
            })
            .collect();
        let mut group = Group { ticket, task: task.clone(), episodes: Vec::new() };
        let mut reward_time = Duration::ZERO;
        for (sample, scored) in (0..).zip(together(pending).await) {
            let mut scored = scored.map_err(|e| (ticket, place, e))?;
            reward_time += scored.reward_time;
            if let Some(overlong) = self.overlong {
                let tokens = scored.trajectory.policy_tokens() as u64;
                shape(&mut scored.rewards, overlong.penalty(tokens, self.completion_limit));
            }
            group.episodes.push(Episode {
                role: if sample < self.group_size { Role::Train } else { Role::Baseline },
                segments: vec![scored.trajectory],
                rewards: scored.rewards,
            });
        }
        Ok(FinishedGroup { group, reward_time })
    }
}

/// Drives futures side by side and returns their outputs in order.
pub(crate) async fn together<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match std::pin::Pin::new(future).poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Makes the groups of a supervised stage: one demonstration each, nothing sampled.
#[derive(Debug)]
pub(crate) struct DemonstrationSource {
    pub(crate) dataset: Dataset,
    pub(crate) cursor: Cursor,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) context: usize,
    /// Longest wait for the environment.
    pub(crate) deadline: Duration,
}

impl DemonstrationSource {
    /// The group of a ticket.
    pub(crate) async fn group(&self, ticket: Ticket) -> Result<Group, (Ticket, u64, String)> {
        let place = self.cursor.at(ticket.0).index;
        let failed = |e: String| (ticket, place, e);
        let task = self.dataset.get(place).map_err(|e| failed(e.to_string()))?;
        let key = SampleKey { ticket, sample: 0, segment: 0 };
        let environment = self.environment.as_ref();
        let played = demonstrate(environment, &task, &self.tokenizer, self.context, key);
        let late = |_| {
            let seconds = self.deadline.as_secs();
            failed(format!("the `{}` environment has not answered for {seconds} s", environment.name()))
        };
        let trajectory = tokio::time::timeout(self.deadline, played).await.map_err(late)?;
        let episode = Episode {
            role: Role::Train,
            segments: vec![trajectory.map_err(|e| failed(e.to_string()))?],
            rewards: Rewards::default(),
        };
        Ok(Group { ticket, task, episodes: vec![episode] })
    }
}
