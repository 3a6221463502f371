//! Episodes of agents outside of the program: what a sampler does over weight updates, lost workers and stops.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_collect::{
    AgentHost, AgentPolicies, BoundedEngine, CollectError, EpisodeCounters, EpisodeOutcome, EpisodeRequest,
    EpisodeRunner, EpisodeSettings, HostedEpisode,
};
use rloom_core::{
    Author, OnUpdate, PolicyId, PolicyVersion, PromptSource, Purpose, RandomKey, SampleKey, Span, StopReason,
    Task, Trajectory, VersionSpan,
};
use rloom_engine::{
    Abort, Form, GenerateRequest, Generation, Health, PublishedPolicy, RolloutCapabilities, RolloutEngine,
    RolloutError, RolloutStatistics, SampledToken, SamplingSettings, TokenSink, VersionGranularity,
    WorkerFailure, WorkerStatus,
};
use rloom_env::{Agent, BoxFuture, EnvError, Environment, SingleTurn, Solo, Start};
use rloom_reward::{OnError, Random, Scorer};
use rloom_text::{CharacterSettings, Tokenizer};
use tokio::sync::mpsc::UnboundedReceiver;

type Answer = Result<Generation, RolloutError>;

/// An engine with prepared answers. Without one left, a request is never answered.
#[derive(Debug, Default)]
struct Prepared {
    answers: Mutex<VecDeque<Answer>>,
    /// Tokens that are sent to the sink of a request before it is answered.
    streamed: Mutex<VecDeque<Vec<u32>>>,
    requests: Mutex<Vec<GenerateRequest>>,
}

impl RolloutEngine for Prepared {
    async fn generate(&self, request: GenerateRequest) -> Answer {
        for token in self.streamed.lock().unwrap().pop_front().unwrap_or_default() {
            request.sink.as_ref().unwrap().send(SampledToken { token, logprob: -1.0 });
        }
        self.requests.lock().unwrap().push(request);
        tokio::task::yield_now().await;
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    async fn load(&self, _: &PublishedPolicy, _: OnUpdate) -> Result<(), RolloutError> {
        Ok(())
    }

    async fn release(&self) -> Result<(), RolloutError> {
        Ok(())
    }

    async fn abort(&self, _: Abort) -> Result<(), RolloutError> {
        Ok(())
    }

    async fn health(&self, _: Duration) -> Result<Health, RolloutError> {
        Ok(Health::default())
    }

    fn capabilities(&self) -> RolloutCapabilities {
        RolloutCapabilities {
            numeric_path: None,
            batch_invariant: true,
            on_update: vec![OnUpdate::Recompute],
            mixes_versions: Vec::new(),
            versions: VersionGranularity::PerToken,
            forms: vec![Form::Memory],
            stop_strings: false,
            context: 64,
            max_running: 4,
            policies: 1,
            attachments: false,
            parks: false,
            speculates: false,
            quantizes: false,
        }
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        Vec::new()
    }

    fn statistics(&self) -> RolloutStatistics {
        RolloutStatistics::default()
    }
}

/// An agent that makes one call, streamed if it has a sink.
#[derive(Debug)]
struct OneCall(Option<TokenSink>);

impl Environment for OneCall {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Agent.start(task, tokenizer, random)
    }
}

impl AgentHost for OneCall {
    fn run<'a>(&'a self, episode: HostedEpisode<'a>) -> BoxFuture<'a, Result<Vec<Trajectory>, EnvError>> {
        Box::pin(async move {
            let request = GenerateRequest::new(episode.random, vec![2, 3], episode.sampling.clone());
            let request = GenerateRequest { sink: self.0.clone(), ..request };
            let generation = episode.sampler.generate(request).await;
            // As an agent that fails because a call of it did.
            let Generation { tokens, logprobs, versions, stop, .. } =
                generation.map_err(|_| EnvError::NoTurn { key: episode.key })?;
            let sampled = tokens.len();
            let moved =
                |span: VersionSpan| VersionSpan { range: span.range.start + 2..span.range.end + 2, ..span };
            Ok(vec![Trajectory {
                key: episode.key,
                tokens: [vec![2, 3], tokens].concat(),
                spans: vec![Span::new(Author::Prompt, 0..2), Span::new(Author::Policy, 2..2 + sampled)],
                logprobs,
                versions: versions.into_iter().map(moved).collect(),
                stop,
                attachments: Vec::new(),
                agent: None,
            }])
        })
    }

    fn activity_of(&self, _: SampleKey) -> Option<String> {
        Some("one call".to_owned())
    }
}

fn runner(answers: Vec<Answer>) -> (Arc<Prepared>, EpisodeRunner<Prepared>) {
    runner_of(Prepared { answers: Mutex::new(answers.into()), ..Prepared::default() }, None)
}

/// A runner of an agent whose call is streamed, and the tokens that it receives.
fn streaming(
    answers: Vec<(Vec<u32>, Option<Answer>)>,
) -> (EpisodeRunner<Prepared>, UnboundedReceiver<SampledToken>) {
    let (streamed, answers): (VecDeque<_>, Vec<_>) = answers.into_iter().unzip();
    let answers = answers.into_iter().flatten().collect();
    let engine =
        Prepared { answers: Mutex::new(answers), streamed: Mutex::new(streamed), ..Prepared::default() };
    let (sink, tokens) = TokenSink::channel();
    (runner_of(engine, Some(sink)).1, tokens)
}

fn received(tokens: &mut UnboundedReceiver<SampledToken>) -> Vec<u32> {
    std::iter::from_fn(|| tokens.try_recv().ok()).map(|sampled| sampled.token).collect()
}

fn runner_of(engine: Prepared, sink: Option<TokenSink>) -> (Arc<Prepared>, EpisodeRunner<Prepared>) {
    let engine = Arc::new(engine);
    let tokenizer = Tokenizer::characters(&CharacterSettings::new("0123456789")).unwrap();
    let scorer = Scorer::from_rewards(
        vec![("random".to_owned(), 1.0, Box::new(Random { probability: 0.5 }))],
        OnError::Fatal,
    );
    let settings = EpisodeSettings {
        world: Arc::new(Solo::new(Arc::new(SingleTurn))),
        host: Some(Arc::new(OneCall(sink))),
        tokenizer: Arc::new(tokenizer),
        scorer: Arc::new(scorer),
        reward_slots: 1,
        context: 64,
        policies: AgentPolicies::default(),
        seed: 1,
        stage: 0,
        stop_tokens: Arc::from([]),
        timeout: Duration::from_secs(1000),
        reward_timeout: Duration::from_secs(1000),
    };
    (Arc::clone(&engine), EpisodeRunner::new(Arc::new(BoundedEngine::new(engine)), settings))
}

fn part(tokens: Vec<u32>, version: u64, stop: StopReason) -> Generation {
    let range = 0..tokens.len();
    Generation {
        logprobs: vec![-1.0; tokens.len()],
        tokens,
        temperature: 1.0,
        versions: vec![VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(version), range }],
        stop,
        replica: None,
    }
}

fn lost() -> Answer {
    Err(RolloutError::WorkerRestarted { worker: "lane 1".to_owned(), cause: WorkerFailure::Unknown })
}

fn play(runner: &EpisodeRunner<Prepared>, stops: bool) -> Result<EpisodeOutcome, CollectError> {
    play_until(runner, async {
        if !stops {
            std::future::pending::<()>().await;
        }
        while runner.longest_waits(1, |_| true).is_empty() {
            tokio::task::yield_now().await;
        }
        let (_, wait) = runner.longest_waits(1, |_| true).remove(0);
        assert!(wait.ends_with("for the agent (one call)"), "{wait}");
    })
}

/// Stops an episode when a future ends.
fn play_until(
    runner: &EpisodeRunner<Prepared>,
    end: impl Future<Output = ()>,
) -> Result<EpisodeOutcome, CollectError> {
    let task = Task {
        index: 0,
        prompt: PromptSource::Text("01".to_owned()),
        answer: String::new(),
        demonstration: None,
        domain: String::new(),
        extra: Arc::default(),
    };
    let sampling = SamplingSettings { max_new_tokens: 4, ..SamplingSettings::default() };
    let request = EpisodeRequest {
        task: &task,
        key: SampleKey::default(),
        purpose: Purpose::Rollout,
        group: None,
        priority: 3,
        sampling: &sampling,
    };
    let counters = EpisodeCounters::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let stop = async {
            end.await;
            runner.stop();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            outcome = runner.run(request, None, &|_| {}, &counters) => outcome,
            () = stop => unreachable!(),
        }
    })
}

#[test]
fn a_call_continues_over_updates_and_lost_workers_with_the_version_of_each_token() {
    let parts = vec![
        Ok(part(vec![5, 6], 0, StopReason::Aborted)),
        lost(),
        Ok(part(vec![7, 8], 1, StopReason::Length)),
    ];
    let (engine, runner) = runner(parts);
    let EpisodeOutcome::Scored(scored) = play(&runner, false).unwrap() else { unreachable!() };
    let segment = &scored.segments[0];
    segment.validate().unwrap();
    assert_eq!(segment.tokens, [2, 3, 5, 6, 7, 8]);
    let versions: Vec<_> = segment.versions.iter().map(|span| (span.version.0, span.range.clone())).collect();
    assert_eq!(versions, [(0, 2..4), (1, 4..6)]);
    let requests = engine.requests.lock().unwrap();
    let prefixes: Vec<_> = requests.iter().map(|request| request.prefix.clone()).collect();
    assert_eq!(prefixes, [vec![], vec![5, 6], vec![5, 6]]);
    assert!(requests.iter().all(|request| request.priority == 3 && request.timeout.is_some()));
}

#[test]
fn a_failure_of_the_engine_is_not_one_of_the_agent() {
    let (_, runner) = runner(vec![Err(RolloutError::ShutDown)]);
    let error = play(&runner, false).unwrap_err();
    assert!(matches!(error, CollectError::Rollout(RolloutError::ShutDown)), "{error}");
}

#[test]
fn a_run_that_stops_does_not_wait_for_its_agents() {
    let (_, runner) = runner(Vec::new());
    let outcome = play(&runner, true).unwrap();
    assert!(matches!(outcome, EpisodeOutcome::Stopped(partial) if partial.turns.is_empty()));
}

#[test]
fn tokens_are_streamed_while_the_engine_samples() {
    let (runner, mut tokens) = streaming(vec![(vec![5, 6], None)]);
    let outcome = play_until(&runner, async {
        let first = [tokens.recv().await, tokens.recv().await];
        assert_eq!(first.map(|sampled| sampled.unwrap().token), [5, 6]);
    });
    assert!(matches!(outcome.unwrap(), EpisodeOutcome::Stopped(_)), "the engine has not answered");
}

#[test]
fn a_stream_has_each_token_once_over_updates_and_lost_workers() {
    let (runner, mut tokens) = streaming(vec![
        (vec![5], Some(Ok(part(vec![5, 6], 0, StopReason::Aborted)))),
        (vec![7], Some(lost())),
        (vec![], Some(lost())),
        (vec![7], Some(Ok(part(vec![7, 8], 1, StopReason::Length)))),
    ]);
    let EpisodeOutcome::Scored(scored) = play(&runner, false).unwrap() else { unreachable!() };
    assert_eq!(scored.segments[0].tokens, [2, 3, 5, 6, 7, 8]);
    assert_eq!(received(&mut tokens), [5, 6, 7, 8]);
}

/// The agent has seen what is no part of the completion: its call fails, not the run.
#[test]
fn a_stream_whose_completion_is_another_fails_for_the_agent_alone() {
    let other = part(vec![5, 9], 1, StopReason::Length);
    let shorter = part(vec![5], 1, StopReason::StopToken);
    for (streamed, answer) in [(vec![5, 9], other.clone()), (vec![], other), (vec![5], shorter)] {
        let (runner, mut tokens) = streaming(vec![(vec![5, 6], Some(lost())), (streamed, Some(Ok(answer)))]);
        let error = play(&runner, false).unwrap_err();
        assert!(matches!(error, CollectError::Environment(_)), "{error}");
        assert_eq!(received(&mut tokens), [5, 6]);
    }
}
