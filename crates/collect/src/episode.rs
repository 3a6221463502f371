//! Episodes: engine and environment take turns, then the reward judges the trajectory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rloom_core::{Failure, Purpose, RandomKey, Rewards, SampleKey, Task, Trajectory};
use rloom_engine::{GenerateRequest, Generation, RolloutEngine, SamplingSettings};
use rloom_env::{AgentId, AgentSegments, EnvError, FinishedEpisode, Outcome, Playthrough, World};
use rloom_reward::{CurrentComponent, Judged, Scorer};
use rloom_store::journal::PartialEpisode;
use rloom_text::{TextError, Tokenizer};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::bounded::BoundedEngine;
use crate::completion::complete;
use crate::concurrency::try_join_all;
use crate::hosted::{AgentHost, HostedEpisode, HostedSampler};
use crate::stopping::Stopping;
use crate::transcript::{policy_text, prompt_text, transcript};
use crate::turn_rewards::{credit, segments_of};
use crate::turns::{RecordedTurns, Turns, into_generation, into_turn};
use crate::waits::{WaitTarget, Waits};
use crate::{AgentPolicies, CollectError};

/// Counters of episodes, read by the progress display.
#[derive(Debug, Default)]
pub struct EpisodeCounters {
    judging: AtomicU64,
    scored: AtomicU64,
}

impl EpisodeCounters {
    /// Number of episodes that are generated and being scored.
    pub fn judging(&self) -> u64 {
        self.judging.load(Ordering::Relaxed)
    }

    /// Number of episodes scored since the last [`reset`](Self::reset).
    pub fn scored(&self) -> u64 {
        self.scored.load(Ordering::Relaxed)
    }

    /// Resets the number of scored episodes.
    pub fn reset(&self) {
        self.scored.store(0, Ordering::Relaxed);
    }
}

/// Counts an episode as being judged until it is dropped.
struct JudgingGuard<'a>(&'a EpisodeCounters);

impl<'a> JudgingGuard<'a> {
    fn new(counters: &'a EpisodeCounters) -> Self {
        counters.judging.fetch_add(1, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for JudgingGuard<'_> {
    fn drop(&mut self) {
        self.0.judging.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Fixed inputs of the episodes of a stage.
#[derive(Debug, Clone)]
pub struct EpisodeSettings {
    /// World that the agents act in.
    pub world: Arc<dyn World>,
    /// Plays the episodes outside of this program, if the world is of that kind.
    pub host: Option<Arc<dyn AgentHost>>,
    /// Tokenizer of the policy.
    pub tokenizer: Arc<Tokenizer>,
    /// Rewards.
    pub scorer: Arc<Scorer>,
    /// Maximum number of rewards computed concurrently. A reward that times out frees its slot.
    pub reward_slots: usize,
    /// Context length of the policy in tokens: that of a segment.
    pub context: usize,
    /// The policies that the agents sample from.
    pub policies: AgentPolicies,
    /// Seed of the run.
    pub seed: u64,
    /// Index of the stage, part of every random key.
    pub stage: u32,
    /// Tokens that end a turn.
    pub stop_tokens: Arc<[u32]>,
    /// Timeout of a completion, from its submission to the engine, and of an answer of the environment.
    pub timeout: Duration,
    /// Timeout of the reward of one episode.
    pub reward_timeout: Duration,
}

/// Runs episodes on a rollout engine. Shared by all groups of a stage.
#[derive(Debug)]
pub struct EpisodeRunner<E> {
    engine: Arc<BoundedEngine<E>>,
    pub(crate) settings: EpisodeSettings,
    reward_slots: Semaphore,
    stopping: Arc<Stopping>,
    waits: Waits,
}

/// Task, key and sampling settings of an episode.
#[derive(Debug, Clone, Copy)]
pub struct EpisodeRequest<'a> {
    /// The task to attempt.
    pub task: &'a Task,
    /// Key of the first segment.
    pub key: SampleKey,
    /// Purpose of the random stream.
    pub purpose: Purpose,
    /// Requests of one group may share the computation of their prompt.
    pub group: Option<u64>,
    /// Priority of the requests; lower numbers go first.
    pub priority: u64,
    /// Sampling settings.
    pub sampling: &'a SamplingSettings,
}

/// A judged episode.
#[derive(Debug)]
pub struct ScoredEpisode {
    /// The tokens, in one segment or more.
    pub segments: Vec<Trajectory>,
    /// The rewards.
    pub rewards: Rewards,
    /// Duration of the reward.
    pub reward_time: Duration,
}

/// Result of running an episode.
#[derive(Debug)]
pub enum EpisodeOutcome {
    /// The episode is complete and judged.
    Scored(ScoredEpisode),
    /// The run stops; contains the partial episode.
    Stopped(PartialEpisode),
}

impl<E: RolloutEngine + 'static> EpisodeRunner<E> {
    /// Creates a runner.
    pub fn new(engine: Arc<BoundedEngine<E>>, settings: EpisodeSettings) -> Self {
        Self {
            engine,
            reward_slots: Semaphore::new(settings.reward_slots),
            settings,
            stopping: Arc::default(),
            waits: Waits::default(),
        }
    }

    /// The engine that samples.
    pub(crate) fn engine(&self) -> &BoundedEngine<E> {
        &self.engine
    }

    /// The tokenizer of the policy.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.settings.tokenizer
    }

    /// The world that the agents act in.
    pub fn world(&self) -> &dyn World {
        self.settings.world.as_ref()
    }

    /// The policies of the agents.
    pub fn policies(&self) -> &AgentPolicies {
        &self.settings.policies
    }

    /// The rewards.
    pub fn scorer(&self) -> &Scorer {
        &self.settings.scorer
    }

    /// Makes episodes return their partial result instead of continuing when the engine aborts their requests.
    pub fn stop(&self) {
        self.stopping.set();
    }

    /// Runs one episode to its reward, from the prompt or from the partial episode of an earlier attempt.
    /// `on_interrupt` receives the partial episode whenever a weight update interrupts it, and after each response that the
    /// environment records.
    pub async fn run(
        &self,
        request: EpisodeRequest<'_>,
        from: Option<PartialEpisode>,
        on_interrupt: &(dyn Fn(PartialEpisode) + Sync),
        counters: &EpisodeCounters,
    ) -> Result<EpisodeOutcome, CollectError> {
        let EpisodeSettings { world, host, tokenizer, context, .. } = &self.settings;
        if let Some(host) = host {
            return self.run_hosted(host.as_ref(), &request, counters).await;
        }
        let random = self.random(&request, request.key);
        let begin = Playthrough::begin(world.as_ref(), request.task, tokenizer, *context, random);
        let mut play = self.environment(request.key, begin).await?;
        let mut recorded = RecordedTurns::new(from);
        let mut turns = Turns::new(world.agents().len());
        let mut has_new_responses = false;
        loop {
            let asked = play.ready()?;
            if asked.is_empty() {
                break;
            }
            if has_new_responses && world.records_responses() {
                // A run that is killed later does not ask for them again.
                on_interrupt(turns.partial(play.responses()));
            }
            for &agent in &asked {
                if let Some(turn) = recorded.next(agent) {
                    turns.set(agent, turn);
                }
            }
            has_new_responses = turns.finished(&asked).is_none();
            let requests = self.requests(&request, &play, &asked, &turns)?;
            let responses = play.responses();
            let interrupted = || on_interrupt(turns.partial(responses));
            self.sample(&request, requests, &turns, &interrupted).await?;
            let Some(finished) = turns.finished(&asked) else {
                return Ok(EpisodeOutcome::Stopped(turns.partial(play.responses())));
            };
            for (agent, turn) in finished {
                // An environment whose responses are not recorded is deterministic: it responds as before.
                match recorded.response(turns.taken()) {
                    Some(response) => {
                        self.environment(request.key, play.recall(agent, turn.clone(), response)).await?;
                    }
                    None => self.environment(request.key, play.act(agent, turn.clone())).await?,
                }
                turns.take(agent, turn);
            }
        }
        self.scored(&request, play.finish()?, counters).await
    }

    /// Requests for the turns of the agents that are asked, without those that are finished.
    fn requests(
        &self,
        episode: &EpisodeRequest<'_>,
        play: &Playthrough,
        asked: &[AgentId],
        turns: &Turns,
    ) -> Result<Vec<(AgentId, GenerateRequest)>, CollectError> {
        // Only the first prompts are shared by the samples of a group; later turns and segments differ.
        let first = asked.first().filter(|_| turns.taken() == 0);
        let shared = first.map(|&first| play.segments(first)).transpose()?.map(AgentSegments::tokens);
        let mut requests = Vec::new();
        for &agent in asked.iter().filter(|agent| turns.finished(&[**agent]).is_none()) {
            let segments = play.segments(agent)?;
            let group = episode.group.filter(|_| shared == Some(segments.tokens()));
            requests.push((agent, self.request(episode, agent, segments, group)));
        }
        Ok(requests)
    }

    /// Samples turns concurrently. When the run stops, some stay unfinished.
    async fn sample(
        &self,
        episode: &EpisodeRequest<'_>,
        requests: Vec<(AgentId, GenerateRequest)>,
        turns: &Turns,
        on_interrupt: &(dyn Fn() + Sync),
    ) -> Result<(), CollectError> {
        let sampled = requests.into_iter().map(|(agent, request)| {
            Box::pin(async move {
                let waiting = self.waits.start(episode.key, WaitTarget::Place);
                let place = self.engine.place(episode.priority).await;
                drop(waiting);
                if self.stopping.is_set() {
                    return Ok(());
                }
                let waiting = self.waits.start(episode.key, WaitTarget::Engine);
                let interrupted = |part: &Generation| {
                    turns.set(agent, into_turn(part.clone()));
                    on_interrupt();
                };
                let begun = turns.of(agent).map(into_generation);
                let generation = complete(&self.engine, &self.stopping, request, begun, &interrupted).await?;
                turns.set(agent, into_turn(generation));
                drop((waiting, place));
                Ok::<_, CollectError>(())
            })
        });
        try_join_all(sampled).await.map(drop)
    }

    /// Runs an episode from its prompt to its reward. A stopping run is an error.
    pub async fn run_whole(
        &self,
        request: EpisodeRequest<'_>,
        counters: &EpisodeCounters,
    ) -> Result<ScoredEpisode, CollectError> {
        match self.run(request, None, &|_| {}, counters).await? {
            EpisodeOutcome::Scored(scored) => Ok(scored),
            EpisodeOutcome::Stopped(_) => Err(CollectError::Stopped),
        }
    }

    /// The key of the random streams of a segment.
    fn random(&self, episode: &EpisodeRequest<'_>, segment: SampleKey) -> RandomKey {
        RandomKey::for_sample(self.settings.seed, self.settings.stage, episode.purpose, segment)
    }

    /// The request for the next turn of an agent.
    fn request(
        &self,
        episode: &EpisodeRequest<'_>,
        agent: AgentId,
        segments: &AgentSegments,
        group: Option<u64>,
    ) -> GenerateRequest {
        let mut sampling = episode.sampling.clone();
        sampling.max_new_tokens = sampling.max_new_tokens.min(segments.room());
        let EpisodeSettings { world, policies, stop_tokens, .. } = &self.settings;
        let mut request =
            GenerateRequest::new(self.random(episode, segments.key()), segments.tokens(), sampling);
        let SampleKey { ticket, .. } = episode.key;
        request.policy = policies.of(world.agents().get(agent), episode.purpose, ticket);
        request.attachments = segments.attachments().to_vec();
        request.stop_tokens = Arc::clone(stop_tokens);
        request.group = group;
        request.priority = episode.priority;
        request.timeout = Some(self.settings.timeout);
        request
    }

    /// Has an agent outside of this program play an episode. Nothing of it is kept when the run stops: it is played again.
    async fn run_hosted(
        &self,
        host: &dyn AgentHost,
        request: &EpisodeRequest<'_>,
        counters: &EpisodeCounters,
    ) -> Result<EpisodeOutcome, CollectError> {
        let timeout = self.settings.timeout;
        let sampler = HostedSampler::new(&self.engine, &self.stopping, request.priority, timeout);
        let episode = HostedEpisode {
            task: request.task,
            key: request.key,
            random: self.random(request, request.key),
            sampler: sampler.clone(),
            sampling: request.sampling,
            policy: self.settings.policies.of(None, request.purpose, request.key.ticket),
            group: request.group,
            priority: request.priority,
        };
        let waiting = self.waits.start(request.key, WaitTarget::Agent);
        let segments = tokio::select! {
            biased;
            () = self.stopping.wait() => return Ok(EpisodeOutcome::Stopped(PartialEpisode::default())),
            segments = host.run(episode) => segments,
        };
        drop(waiting);
        let segments = match (segments, sampler.failure()) {
            (Ok(segments), _) => segments,
            (Err(_), Some(failure)) => return Err(failure.into()),
            (Err(error), None) => return Err(error.into()),
        };
        self.scored(request, FinishedEpisode { segments, outcome: Outcome::default() }, counters).await
    }

    /// Judges a complete episode.
    async fn scored(
        &self,
        request: &EpisodeRequest<'_>,
        finished: FinishedEpisode,
        counters: &EpisodeCounters,
    ) -> Result<EpisodeOutcome, CollectError> {
        let judging = JudgingGuard::new(counters);
        let scored = self.judge(request.task, request.key, finished).await?;
        drop(judging);
        counters.scored.fetch_add(1, Ordering::Relaxed);
        Ok(EpisodeOutcome::Scored(scored))
    }

    /// Describes at most `limit` of the longest waits of the episodes that `filter` accepts.
    pub fn longest_waits(
        &self,
        limit: usize,
        filter: impl Fn(SampleKey) -> bool,
    ) -> Vec<(SampleKey, String)> {
        let EpisodeSettings { world, scorer, .. } = &self.settings;
        let describe = |(key, target, time): (SampleKey, WaitTarget, Duration)| {
            let target = match target {
                WaitTarget::Environment => {
                    let activity = world.activity().map(|activity| format!(" ({activity})"));
                    format!("the `{}` environment{}", world.name(), activity.unwrap_or_default())
                }
                WaitTarget::Agent => {
                    let activity = self.settings.host.as_ref().and_then(|host| host.activity_of(key));
                    format!(
                        "the agent{}",
                        activity.map(|activity| format!(" ({activity})")).unwrap_or_default()
                    )
                }
                WaitTarget::Place => "a place in the rollout engine".to_owned(),
                WaitTarget::Engine => "the rollout engine".to_owned(),
                WaitTarget::RewardSlot => "a free reward slot".to_owned(),
                WaitTarget::Reward(current) => {
                    format!("reward `{}`", scorer.current_component(&current).unwrap_or_default())
                }
            };
            (key, format!("has waited {:.1} s for {target}", time.as_secs_f64()))
        };
        self.waits.longest(limit, filter).into_iter().map(describe).collect()
    }

    /// Waits for the environment, at most for the timeout.
    async fn environment<T>(
        &self,
        key: SampleKey,
        answer: impl Future<Output = Result<T, EnvError>>,
    ) -> Result<T, CollectError> {
        let _waiting = self.waits.start(key, WaitTarget::Environment);
        match timeout(self.settings.timeout, answer).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(CollectError::EnvironmentTimeout {
                environment: self.settings.world.name().to_owned(),
                timeout: self.settings.timeout,
            }),
        }
    }

    /// Judges an episode on a blocking thread, so that a slow reward delays nothing else.
    async fn judge(
        &self,
        task: &Task,
        key: SampleKey,
        finished: FinishedEpisode,
    ) -> Result<ScoredEpisode, CollectError> {
        let FinishedEpisode { mut segments, outcome } = finished;
        let Outcome { agents, answer, metrics, judged } = outcome;
        let (judge, own, joint, turns) =
            (self.judge_of(task), segments.clone(), answer.clone(), judged.clone());
        let specs = self.settings.world.agents().to_vec();
        let (rewards, reward_time) = self
            .judging(key, move |current| {
                let texts = judge.texts(&own, joint.as_deref())?;
                let mut rewards = judge.scorer.score(&judge.judged(&own, &texts), current)?;
                judge.credit_agents(&own, &texts, &mut rewards, current)?;
                let of_turns = segments_of(&turns, &specs, &own);
                let of_turns = turns.iter().zip(of_turns).map(|(turn, segment)| {
                    let texts = judge.texts(segment, Some(&turn.text))?;
                    Ok(judge.scorer.score(&judge.judged(segment, &texts), current)?)
                });
                Ok((rewards, of_turns.collect::<Result<Vec<Rewards>, CollectError>>()?))
            })
            .await?;
        let (mut rewards, of_turns) = match rewards {
            Ok(rewards) => rewards,
            Err(current) => {
                let timeout = self.settings.reward_timeout;
                (self.settings.scorer.timed_out(&current, key, timeout)?, Vec::new())
            }
        };
        let agents = if agents.is_empty() { std::mem::take(&mut rewards.agents) } else { agents };
        rewards = Rewards { agents, answer, metrics, ..rewards };
        if !of_turns.is_empty() {
            credit(&judged, &of_turns, self.settings.world.agents(), &mut segments, &mut rewards);
        }
        Ok(ScoredEpisode { segments, rewards, reward_time })
    }

    /// Completes the rewards of a group: those of the components that judge whole groups. Returns the time it took.
    pub(crate) async fn judge_group(
        &self,
        task: &Task,
        group: &mut [(Vec<Trajectory>, Rewards)],
    ) -> Result<Duration, CollectError> {
        let Some(first) = group.iter().find_map(|(segments, _)| segments.first()) else {
            return Ok(Duration::ZERO);
        };
        let key = first.key;
        let (judge, own) = (self.judge_of(task), group.to_vec());
        let (judged, time) = self
            .judging(key, move |current| {
                let (episodes, mut rewards): (Vec<Vec<Trajectory>>, Vec<Rewards>) = own.into_iter().unzip();
                let answers = rewards.iter().map(|rewards| rewards.answer.as_deref());
                let texts = episodes.iter().zip(answers).map(|(own, answer)| judge.texts(own, answer));
                let texts = texts.collect::<Result<Vec<_>, TextError>>()?;
                let both = episodes.iter().zip(&texts);
                let group: Vec<Judged<'_>> = both.map(|(own, texts)| judge.judged(own, texts)).collect();
                judge.scorer.score_group(&group, &mut rewards, current)?;
                Ok(rewards)
            })
            .await?;
        let judged = match judged {
            Ok(judged) => judged,
            Err(current) => {
                self.settings.scorer.timed_out(&current, key, self.settings.reward_timeout)?;
                let failed = |rewards: &Rewards| self.settings.scorer.dropped_group(rewards, &current);
                group.iter().map(|(_, rewards)| failed(rewards)).collect()
            }
        };
        for ((_, rewards), judged) in group.iter_mut().zip(judged) {
            *rewards = judged;
        }
        Ok(time)
    }

    /// Checks the number of episodes, of a group or of an evaluation, that failures of rewards leave out.
    pub(crate) fn check_dropped<'a>(
        &self,
        rewards: impl ExactSizeIterator<Item = (&'a Task, &'a Rewards)>,
    ) -> Result<(), CollectError> {
        let scorer = &self.settings.scorer;
        let (episodes, share) = (rewards.len(), scorer.max_dropped());
        let failures: Vec<&Failure> =
            rewards.filter_map(|(task, rewards)| scorer.failure(&task.domain, rewards)).collect();
        match failures.last() {
            Some(last) if failures.len() as f64 > share * episodes as f64 => {
                let (dropped, last) = (failures.len(), last.message.clone());
                Err(CollectError::TooManyDropped { dropped, episodes, share, last })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn judge_of(&self, task: &Task) -> Judge {
        let EpisodeSettings { scorer, tokenizer, .. } = &self.settings;
        Judge { scorer: Arc::clone(scorer), tokenizer: Arc::clone(tokenizer), task: task.clone() }
    }

    /// Runs a judgement on a blocking thread. Returns its result, or the component that exceeded the timeout.
    pub(crate) async fn judging<T: Send + 'static>(
        &self,
        key: SampleKey,
        judgement: impl FnOnce(&CurrentComponent) -> Result<T, CollectError> + Send + 'static,
    ) -> Result<(Result<T, Arc<CurrentComponent>>, Duration), CollectError> {
        let waiting = self.waits.start(key, WaitTarget::RewardSlot);
        let _slot = self.reward_slots.acquire().await.map_err(|_| CollectError::Stopped)?;
        drop(waiting);
        let current = Arc::new(CurrentComponent::default());
        let _waiting = self.waits.start(key, WaitTarget::Reward(Arc::clone(&current)));
        let watch = Arc::clone(&current);
        let start = Instant::now();
        let mut running = tokio::task::spawn_blocking(move || judgement(&watch));
        let EpisodeSettings { scorer, reward_timeout, .. } = &self.settings;
        loop {
            match timeout(*reward_timeout, &mut running).await {
                Ok(Ok(judged)) => return Ok((Ok(judged?), start.elapsed())),
                Ok(Err(panic)) => return Err(CollectError::RewardPanicked { message: panic.to_string() }),
                // It ends by itself: calls that wait for a free process do not count as slow.
                Err(_) if scorer.waits_elsewhere(&current) => {}
                Err(_) => return Ok((Err(current), start.elapsed())),
            }
        }
    }
}

impl<E> Drop for EpisodeRunner<E> {
    fn drop(&mut self) {
        // Threads that still judge hold the scorer, too.
        self.settings.scorer.close();
    }
}

/// What a judgement needs on its thread.
pub(crate) struct Judge {
    pub(crate) scorer: Arc<Scorer>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    task: Task,
}

impl Judge {
    /// Prompt, text and transcript of an episode; prompt and transcript are empty unless a component reads them. The text is
    /// the answer of several agents, if there is one.
    pub(crate) fn texts(
        &self,
        segments: &[Trajectory],
        answer: Option<&str>,
    ) -> Result<[String; 3], TextError> {
        let first = segments.first().filter(|_| self.scorer.reads_prompt());
        let prompt = first.map(|first| prompt_text(&self.tokenizer, first)).unwrap_or_default();
        let transcript = if self.scorer.reads_observations() {
            transcript(&self.tokenizer, segments)
        } else {
            String::new()
        };
        let text = match answer {
            Some(answer) => answer.to_owned(),
            None => policy_text(&self.tokenizer, segments)?,
        };
        Ok([prompt, text, transcript])
    }

    pub(crate) fn judged<'a>(
        &'a self,
        segments: &'a [Trajectory],
        [prompt, text, transcript]: &'a [String; 3],
    ) -> Judged<'a> {
        Judged { task: &self.task, segments, text, transcript, prompt }
    }
}
