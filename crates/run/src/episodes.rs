//! Groups and evaluations as they are generated: engine × environment × reward.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rloom_core::{
    Author, Episode, Group, Purpose, RandomKey, Rewards, Role, SampleKey, Span, StopReason, Task, Ticket,
    Trajectory,
};
use rloom_data::{Cursor, Dataset};
use rloom_env::{Attempt, Demonstration, Environment, Progress, Turn};
use rloom_reward::Scorer;
use rloom_rollout::{GenerateRequest, RolloutEngine, SamplingSettings};
use rloom_text::Tokenizer;

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
    pub(crate) completion: String,
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
        loop {
            let prompt: Arc<[u32]> = attempt.tokens().into();
            let mut sampling = sampling.clone();
            sampling.max_new_tokens = sampling.max_new_tokens.min(attempt.room());
            let random = RandomKey::of_sample(self.seed, self.stage, purpose, key);
            let mut request = GenerateRequest::new(random, prompt, sampling);
            request.stop_tokens = Arc::clone(&self.stop_tokens);
            request.group = group;
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
        Ok(Scored { trajectory, completion, rewards, reward_time: start.elapsed() })
    }
}

/// What the policy wrote, without special tokens.
pub(crate) fn completion_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> Result<String, String> {
    let ids: Vec<u32> =
        trajectory.policy_ranges().flat_map(|range| trajectory.tokens[range].iter().copied()).collect();
    tokenizer.decode(&ids, true).map_err(|e| e.to_string())
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
    pub(crate) sampling: SamplingSettings,
    pub(crate) counters: Arc<Counters>,
}

impl<E: RolloutEngine> GroupSource<E> {
    /// The task of a ticket: the cursor's place at the ticket's number.
    pub(crate) fn task(&self, ticket: Ticket) -> Result<Task, String> {
        self.dataset.get(self.cursor.at(ticket.0).index).map_err(|e| e.to_string())
    }

    /// Generates and scores a group. The error names its task.
    pub(crate) async fn run(&self, ticket: Ticket) -> Result<FinishedGroup, (Ticket, u64, String)> {
        let place = self.cursor.at(ticket.0).index;
        let task = self.task(ticket).map_err(|e| (ticket, place, e))?;
        let mut pending = Vec::with_capacity(self.group_size as usize);
        for sample in 0..self.group_size {
            let key = SampleKey { ticket, sample, segment: 0 };
            pending.push(Box::pin(self.attempts.episode(
                &task,
                key,
                Purpose::Rollout,
                Some(ticket.0),
                &self.sampling,
                &self.counters,
            )));
        }
        let mut group = Group { ticket, task: task.clone(), episodes: Vec::new() };
        let mut reward_time = Duration::ZERO;
        for scored in together(pending).await {
            let scored = scored.map_err(|e| (ticket, place, e))?;
            reward_time += scored.reward_time;
            group.episodes.push(Episode {
                role: Role::Train,
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
    pub(crate) context: usize,
}

impl DemonstrationSource {
    /// The group of a ticket.
    pub(crate) fn group(&self, ticket: Ticket) -> Result<Group, (Ticket, u64, String)> {
        let place = self.cursor.at(ticket.0).index;
        let failed = |e: String| (ticket, place, e);
        let task = self.dataset.get(place).map_err(|e| failed(e.to_string()))?;
        let demonstration =
            Demonstration::render(&task, &self.tokenizer, self.context).map_err(|e| failed(e.to_string()))?;
        let prompt = demonstration.prompt.len();
        let mut tokens = demonstration.prompt;
        tokens.extend(&demonstration.completion);
        let n = tokens.len();
        let trajectory = Trajectory {
            key: SampleKey { ticket, sample: 0, segment: 0 },
            tokens,
            spans: vec![
                Span { author: Author::Prompt, range: 0..prompt, temperature: 1.0 },
                Span { author: Author::Policy, range: prompt..n, temperature: 1.0 },
            ],
            // Nobody sampled it; supervised losses read no behaviour.
            logprobs: vec![0.0; n - prompt],
            versions: Vec::new(),
            stop: StopReason::StopToken,
        };
        let episode = Episode { role: Role::Train, segments: vec![trajectory], rewards: Rewards::default() };
        Ok(Group { ticket, task, episodes: vec![episode] })
    }
}
