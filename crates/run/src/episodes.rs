//! Groups and evaluations as they are generated: engine × environment × reward.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rloom_algo::Overlong;
use rloom_core::{
    Episode, Purpose, RandomKey, Rewards, Role, SampleKey, StopReason, Task, Ticket, Trajectory,
};
use rloom_data::{Cursor, Dataset};
use rloom_env::{Attempt, EnvError, Environment, Progress, Turn};
use rloom_reward::{CurrentComponent, Scorer};
use rloom_rollout::{GenerateRequest, Generation, RolloutEngine, SamplingSettings};
use rloom_text::Tokenizer;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::journal::Partial;
use crate::outcome::shape;
use crate::waits::{Waits, Whom};

/// Counts of work done, read by the progress display.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Completions that are generated and not scored yet.
    pub(crate) judging: AtomicU64,
    /// Completions scored.
    pub(crate) scored: AtomicU64,
}

/// A completion that is being scored, also when that is given up.
struct Judging<'a>(&'a Counters);

impl<'a> Judging<'a> {
    fn begin(counters: &'a Counters) -> Self {
        counters.judging.fetch_add(1, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for Judging<'_> {
    fn drop(&mut self) {
        self.0.judging.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Everything that it takes to attempt a task. Shared by all groups of a stage.
#[derive(Debug)]
pub(crate) struct Attempts<E> {
    pub(crate) engine: Arc<E>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) scorer: Arc<Scorer>,
    /// Rewards that are computed at once; one that hangs gives its place back when its deadline has passed.
    pub(crate) judges: Semaphore,
    pub(crate) context: usize,
    pub(crate) seed: u64,
    pub(crate) stage: u32,
    pub(crate) stop_tokens: Arc<[u32]>,
    /// Longest wait for an answer of the environment.
    pub(crate) deadline: Duration,
    /// Longest wait for the judgement of one completion.
    pub(crate) reward_deadline: Duration,
    /// Set when the run stops: what the engine aborts from then on is to be kept, not continued.
    pub(crate) stopping: AtomicBool,
    pub(crate) waits: Waits,
}

/// Which episode is attempted, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Assignment<'a> {
    pub(crate) task: &'a Task,
    pub(crate) key: SampleKey,
    pub(crate) purpose: Purpose,
    /// Whom the engine may share the prompt's computation with.
    pub(crate) group: Option<u64>,
    pub(crate) priority: u64,
    pub(crate) sampling: &'a SamplingSettings,
}

/// An episode with the seconds that its reward took.
#[derive(Debug)]
pub(crate) struct Scored {
    pub(crate) trajectory: Trajectory,
    pub(crate) rewards: Rewards,
    pub(crate) reward_time: Duration,
}

/// What became of an attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It came to its end and was judged.
    Scored(Scored),
    /// The run stops; this is what there is of it.
    Stopped(Partial),
}

impl<E: RolloutEngine> Attempts<E> {
    /// One episode, from the prompt or from what an earlier attempt left of it, to its reward. `cut` is told what there
    /// is whenever new weights interrupt it.
    pub(crate) async fn episode(
        &self,
        what: Assignment<'_>,
        from: Option<Partial>,
        cut: &(dyn Fn(Partial) + Sync),
        counters: &Counters,
    ) -> Result<Outcome, String> {
        let start =
            Attempt::start(self.environment.as_ref(), what.task, &self.tokenizer, self.context, what.key);
        let mut attempt = self.answer(what.key, start).await?;
        let (mut turns, mut unfinished) = split(from);
        for turn in &turns {
            // The environment answers the same turns alike: so far the episode had not ended.
            self.answer(what.key, attempt.turn(turn.clone())).await?;
        }
        // The samples of a group share the first prompt alone: what follows is each one's own.
        let mut shared = what.group.filter(|_| turns.is_empty());
        loop {
            if self.stopping.load(Ordering::Relaxed) {
                // The engine has been told to abort what it had; nothing more is asked of it.
                turns.extend(unfinished.map(turn));
                return Ok(Outcome::Stopped(Partial { turns }));
            }
            let prompt: Arc<[u32]> = attempt.tokens().into();
            let mut sampling = what.sampling.clone();
            sampling.max_new_tokens = sampling.max_new_tokens.min(attempt.room());
            let random = RandomKey::for_sample(self.seed, self.stage, what.purpose, what.key);
            let mut request = GenerateRequest::new(random, prompt, sampling);
            request.stop_tokens = Arc::clone(&self.stop_tokens);
            request.group = shared.take();
            request.priority = what.priority;
            let so_far = |made: &Generation| {
                let unfinished = std::iter::once(turn(made.clone()));
                Partial { turns: turns.iter().cloned().chain(unfinished).collect() }
            };
            let waiting = self.waits.begin(what.key, Whom::Engine);
            let made = self.generate(request, unfinished.take(), &|made| cut(so_far(made))).await?;
            drop(waiting);
            if made.stop == StopReason::Aborted {
                return Ok(Outcome::Stopped(so_far(&made)));
            }
            let made = turn(made);
            turns.push(made.clone());
            if self.answer(what.key, attempt.turn(made)).await? == Progress::Done {
                break;
            }
        }
        let judging = Judging::begin(counters);
        let trajectory = attempt.finish().map_err(|e| e.to_string())?;
        let scored = self.judge(what.task, trajectory).await?;
        drop(judging);
        counters.scored.fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::Scored(scored))
    }

    /// An episode that nothing is left of to begin with, and that is not interrupted.
    pub(crate) async fn whole_episode(
        &self,
        what: Assignment<'_>,
        counters: &Counters,
    ) -> Result<Scored, String> {
        match self.episode(what, None, &|_| {}, counters).await? {
            Outcome::Scored(scored) => Ok(scored),
            Outcome::Stopped(_) => Err("the run stops".to_owned()),
        }
    }

    /// One completion. Where new weights interrupt it, it goes on after the tokens that it has; when the run stops it
    /// is returned as it is.
    async fn generate(
        &self,
        request: GenerateRequest,
        mut made: Option<Generation>,
        cut: &(dyn Fn(&Generation) + Sync),
    ) -> Result<Generation, String> {
        loop {
            let mut request = request.clone();
            if let Some(made) = &made {
                request.prefix.clone_from(&made.tokens);
            }
            let part = match self.engine.generate(request).await {
                Ok(part) => part,
                Err(error) if error.is_retryable() => continue,
                Err(error) => return Err(error.to_string()),
            };
            let whole = match made.take() {
                Some(before) => before.then(part),
                None => part,
            };
            if whole.stop != StopReason::Aborted || self.stopping.load(Ordering::Relaxed) {
                return Ok(whole);
            }
            cut(&whole);
            made = Some(whole);
        }
    }

    /// The longest waits of the episodes that are asked for, in words.
    pub(crate) fn who_waits(&self, most: usize, of: impl Fn(SampleKey) -> bool) -> Vec<(SampleKey, String)> {
        let waits = self.waits.longest(most, of).into_iter();
        let words = waits.map(|(key, whom, time)| {
            let whom = match whom {
                Whom::Environment => format!("the `{}` environment", self.environment.name()),
                Whom::Engine => "the rollout engine".to_owned(),
                Whom::Place => "others to be judged".to_owned(),
                Whom::Reward(at_work) => {
                    format!("reward `{}`", self.scorer.current_component(&at_work).unwrap_or_default())
                }
            };
            (key, format!("has waited for {whom} for {:.1} s", time.as_secs_f64()))
        });
        words.collect()
    }

    /// Waits for the environment, no longer than the deadline.
    async fn answer<T>(
        &self,
        key: SampleKey,
        answer: impl Future<Output = Result<T, EnvError>>,
    ) -> Result<T, String> {
        let _waiting = self.waits.begin(key, Whom::Environment);
        match timeout(self.deadline, answer).await {
            Ok(answer) => answer.map_err(|e| e.to_string()),
            Err(_) => Err(late(self.environment.name(), self.deadline)),
        }
    }

    /// Judges a trajectory on a thread of its own, so that a reward that hangs or computes for long holds nobody up.
    async fn judge(&self, task: &Task, trajectory: Trajectory) -> Result<Scored, String> {
        let waiting = self.waits.begin(trajectory.key, Whom::Place);
        let _place = self.judges.acquire().await.map_err(|e| e.to_string())?;
        drop(waiting);
        let at_work = Arc::new(CurrentComponent::default());
        let _waiting = self.waits.begin(trajectory.key, Whom::Reward(Arc::clone(&at_work)));
        let (scorer, tokenizer) = (Arc::clone(&self.scorer), Arc::clone(&self.tokenizer));
        let (task, own, watch) = (task.clone(), trajectory.clone(), Arc::clone(&at_work));
        let start = Instant::now();
        let judging = tokio::task::spawn_blocking(move || {
            let completion = completion_text(&tokenizer, &own)?;
            scorer.score(&task, &own, &completion, &watch).map_err(|e| e.to_string())
        });
        let rewards = match timeout(self.reward_deadline, judging).await {
            Ok(Ok(rewards)) => rewards?,
            Ok(Err(panic)) => return Err(format!("a reward ended unexpectedly: {panic}")),
            Err(_) => {
                self.scorer.timed_out(&at_work, trajectory.key, self.reward_deadline).map_err(|e| e.to_string())?
            }
        };
        Ok(Scored { trajectory, rewards, reward_time: start.elapsed() })
    }
}

/// What is said of an environment that does not answer.
pub(crate) fn late(environment: &str, after: Duration) -> String {
    format!("the `{environment}` environment has not answered for {} s", after.as_secs_f64())
}

/// Finished turns, and what there is of the unfinished one.
fn split(from: Option<Partial>) -> (Vec<Turn>, Option<Generation>) {
    let mut turns = from.map(|partial| partial.turns).unwrap_or_default();
    let unfinished = turns.pop_if(|turn| turn.stop == StopReason::Aborted).map(|turn| Generation {
        tokens: turn.tokens,
        logprobs: turn.logprobs,
        temperature: turn.temperature,
        versions: turn.versions,
        stop: turn.stop,
    });
    (turns, unfinished)
}

fn turn(made: Generation) -> Turn {
    let Generation { tokens, logprobs, temperature, versions, stop } = made;
    Turn { tokens, logprobs, temperature, versions, stop }
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

/// What a group tells the driver while it is made.
#[derive(Debug)]
pub(crate) enum GroupNews {
    /// An episode is generated and scored.
    Episode {
        /// Its place in the group.
        sample: u32,
        /// The episode.
        episode: Episode,
        /// Time that its reward took.
        reward_time: Duration,
    },
    /// An episode was interrupted.
    Partial {
        /// Its place in the group.
        sample: u32,
        /// What there is of it.
        partial: Partial,
    },
}

/// What an earlier attempt left of a group.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    /// Samples that are generated and scored.
    pub(crate) done: Vec<u32>,
    /// Samples that were cut off, by their places.
    pub(crate) partials: std::collections::BTreeMap<u32, Partial>,
}

/// A group that could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupFailure {
    /// The task's place in its dataset.
    pub(crate) task: u64,
    /// Why.
    pub(crate) reason: String,
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
    /// Whether the oldest group goes first where not all can run.
    pub(crate) oldest_first: bool,
    pub(crate) counters: Arc<Counters>,
}

impl<E: RolloutEngine> GroupSource<E> {
    /// Episodes of a group, the one that others are compared with included.
    pub(crate) fn episodes_per_group(&self) -> u32 {
        self.group_size + u32::from(self.has_baseline)
    }

    /// The place in the dataset of a ticket's task: the cursor's at the ticket's number.
    pub(crate) fn task_index(&self, ticket: Ticket) -> u64 {
        self.cursor.at(ticket.0).index
    }

    /// The task of a ticket.
    pub(crate) fn task(&self, ticket: Ticket) -> Result<Task, GroupFailure> {
        let place = self.task_index(ticket);
        self.dataset.get(place).map_err(|e| GroupFailure { task: place, reason: e.to_string() })
    }

    /// Generates and scores what is missing of a group; `tell` hears of every episode. Returns whether the group is
    /// complete: otherwise the run stops.
    pub(crate) async fn run(
        &self,
        ticket: Ticket,
        task: &Task,
        mut left: Leftover,
        tell: &(dyn Fn(GroupNews) + Sync),
    ) -> Result<bool, GroupFailure> {
        let greedy = SamplingSettings { temperature: 0.0, ..self.sampling.clone() };
        let missing = (0..self.episodes_per_group()).filter(|sample| !left.done.contains(sample));
        let pending = missing
            .map(|sample| {
                let sampling = if sample < self.group_size { &self.sampling } else { &greedy };
                Box::pin(self.sample(ticket, sample, task, sampling, left.partials.remove(&sample), tell))
            })
            .collect();
        let mut complete = true;
        for done in together(pending).await {
            complete &= done.map_err(|reason| GroupFailure { task: task.index, reason })?;
        }
        Ok(complete)
    }

    /// One sample of a group, told of when it is done or cut off. Returns whether it is done.
    async fn sample(
        &self,
        ticket: Ticket,
        sample: u32,
        task: &Task,
        sampling: &SamplingSettings,
        from: Option<Partial>,
        tell: &(dyn Fn(GroupNews) + Sync),
    ) -> Result<bool, String> {
        let what = Assignment {
            task,
            key: SampleKey { ticket, sample, segment: 0 },
            purpose: Purpose::Rollout,
            group: Some(ticket.0),
            priority: if self.oldest_first { ticket.0 } else { 0 },
            sampling,
        };
        let cut = |partial| tell(GroupNews::Partial { sample, partial });
        let mut scored = match self.attempts.episode(what, from, &cut, &self.counters).await? {
            Outcome::Scored(scored) => scored,
            Outcome::Stopped(partial) => {
                if !partial.turns.is_empty() {
                    cut(partial);
                }
                return Ok(false);
            }
        };
        if let Some(overlong) = self.overlong {
            let tokens = scored.trajectory.policy_tokens() as u64;
            shape(&mut scored.rewards, overlong.penalty(tokens, self.completion_limit));
        }
        let episode = Episode {
            role: if sample < self.group_size { Role::Train } else { Role::Baseline },
            segments: vec![scored.trajectory],
            rewards: scored.rewards,
        };
        tell(GroupNews::Episode { sample, episode, reward_time: scored.reward_time });
        Ok(true)
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
