//! The number of requests that evaluation and groups have at an engine, and their timeouts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rloom_collect::{
    AgentPolicies, BoundedEngine, EpisodeRunner, EpisodeSettings, EvaluationReport, Evaluator, GroupProgress,
    GroupRunner, GroupSettings,
};
use rloom_core::{Draw, OnUpdate, PolicyId, PolicyVersion, StopReason, Ticket, VersionSpan};
use rloom_data::{ArithmeticSettings, Cursor, DataSettings, Dataset, Order, Source, Split};
use rloom_engine::{
    Abort, Form, GenerateRequest, Generation, Health, PublishedPolicy, RequestName, RolloutCapabilities,
    RolloutEngine, RolloutError, RolloutStatistics, SamplingSettings, VersionGranularity, WaitedFor,
    WorkerStatus,
};
use rloom_env::{SingleTurn, Solo};
use rloom_reward::{Exact, OnError, Reward, Scorer};
use rloom_text::{CharacterSettings, Tokenizer};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Requests that the engine computes in a round.
const RUNNING: usize = 4;
/// Rounds after which a request times out.
const TIMEOUT: u64 = 6;
const TASKS: u64 = 40;
const SAMPLES: u32 = 3;

/// An engine that computes some of its requests in each round. Time passes in rounds alone.
#[derive(Debug)]
pub(crate) struct RoundEngine {
    max_running: usize,
    rounds: Mutex<Rounds>,
}

#[derive(Debug, Default)]
struct Rounds {
    round: u64,
    arrivals: u64,
    requests: BTreeMap<u64, Submitted>,
    /// Largest number of requests at a time.
    most: usize,
}

#[derive(Debug)]
struct Submitted {
    request: GenerateRequest,
    round: u64,
    answer: oneshot::Sender<Result<Generation, RolloutError>>,
}

impl RoundEngine {
    pub(crate) fn new(max_running: usize) -> Arc<Self> {
        Arc::new(Self { max_running, rounds: Mutex::default() })
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap()
    }

    /// Computes the requests that have waited longest.
    pub(crate) fn round(&self) {
        let mut rounds = self.rounds();
        rounds.round += 1;
        let now = rounds.round;
        let late = |submitted: &mut Submitted| now - submitted.round > TIMEOUT;
        for (_, submitted) in rounds.requests.extract_if(.., |_, submitted| late(submitted)) {
            let waited_for = WaitedFor::Start { request: RequestName(submitted.request.key), weights: None };
            let _ = submitted.answer.send(Err(RolloutError::Timeout { waited_for, after: Duration::ZERO }));
        }
        for _ in 0..self.max_running {
            let Some((_, submitted)) = rounds.requests.pop_first() else { return };
            let _ = submitted.answer.send(Ok(completion(&submitted.request)));
        }
    }

    /// Largest number of requests that the engine had at a time.
    pub(crate) fn most(&self) -> usize {
        self.rounds().most
    }
}

/// Tokens that depend on the request alone.
fn completion(request: &GenerateRequest) -> Generation {
    let (stream, n) = (request.key.stream(), request.sampling.max_new_tokens);
    let greedy = request.sampling.is_greedy();
    let number =
        |i: usize| if greedy { request.prompt.len() as u64 + i as u64 } else { stream.bits(i as u64) };
    Generation {
        tokens: (0..n).map(|i| 2 + (number(i) % 8) as u32).collect(),
        logprobs: vec![-1.0; n],
        temperature: 1.0,
        versions: vec![VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(0), range: 0..n }],
        stop: StopReason::Length,
        replica: None,
    }
}

impl RolloutEngine for RoundEngine {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let (answer, answered) = oneshot::channel();
        {
            let mut rounds = self.rounds();
            rounds.arrivals += 1;
            let (arrival, round) = (rounds.arrivals, rounds.round);
            rounds.requests.insert(arrival, Submitted { request, round, answer });
            rounds.most = rounds.most.max(rounds.requests.len());
        }
        async move { answered.await.unwrap() }
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
            on_update: vec![OnUpdate::Finish],
            mixes_versions: Vec::new(),
            versions: VersionGranularity::PerToken,
            forms: vec![Form::Memory],
            stop_strings: false,
            context: 64,
            max_running: self.max_running,
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

pub(crate) fn data() -> DataSettings {
    Source::Arithmetic(ArithmeticSettings { max_digits: 2, ..ArithmeticSettings::default() }).into()
}

fn episodes(engine: &Arc<BoundedEngine<RoundEngine>>) -> Arc<EpisodeRunner<RoundEngine>> {
    judged_episodes(engine, Box::new(Exact::default()), OnError::Fatal)
}

/// Runs episodes that `reward` judges.
pub(crate) fn judged_episodes(
    engine: &Arc<BoundedEngine<RoundEngine>>,
    reward: Box<dyn Reward>,
    on_error: OnError,
) -> Arc<EpisodeRunner<RoundEngine>> {
    let tokenizer = Tokenizer::characters(&CharacterSettings::new(data().alphabet().unwrap())).unwrap();
    let settings = EpisodeSettings {
        host: None,
        world: Arc::new(Solo::new(Arc::new(SingleTurn))),
        tokenizer: Arc::new(tokenizer),
        scorer: Arc::new(Scorer::from_rewards(vec![("exact".to_owned(), 1.0, reward)], on_error)),
        reward_slots: 4,
        context: 64,
        policies: AgentPolicies::default(),
        seed: 1,
        stage: 0,
        stop_tokens: Arc::from([]),
        timeout: Duration::from_secs(1000),
        reward_timeout: Duration::from_secs(1000),
    };
    Arc::new(EpisodeRunner::new(Arc::clone(engine), settings))
}

pub(crate) fn sampling() -> SamplingSettings {
    SamplingSettings { max_new_tokens: 2, ..SamplingSettings::default() }
}

/// Runs work on the engine; rounds pass while it waits.
pub(crate) fn in_rounds<T>(engine: &RoundEngine, work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = work.as_mut() => return done,
                () = tokio::task::yield_now() => engine.round(),
            }
        }
    })
}

fn evaluate(max_running: usize) -> (EvaluationReport, usize) {
    let engine = RoundEngine::new(max_running);
    let bounded = Arc::new(BoundedEngine::new(Arc::clone(&engine)));
    let dataset = Dataset::open(&data(), Split::Eval, 1).unwrap();
    let evaluator = Evaluator::new(episodes(&bounded), dataset, TASKS, SAMPLES, sampling());
    let report = in_rounds(&engine, evaluator.run(TASKS as usize)).unwrap();
    assert_eq!(evaluator.scored(), evaluator.completions());
    (report, engine.most())
}

#[test]
fn an_evaluation_submits_no_more_than_the_engine_can_soon_compute() {
    // All completions take more rounds than the timeout.
    let (report, most) = evaluate(RUNNING);
    assert!(TASKS * u64::from(1 + SAMPLES) > TIMEOUT * RUNNING as u64);
    assert_eq!(most, 2 * RUNNING);
    assert_eq!(report.samples.len() as u64, TASKS);
    let (at_once, most) = evaluate(1000);
    assert_eq!(most as u64, TASKS * u64::from(1 + SAMPLES));
    assert_eq!(report, at_once, "the order of the completions changes nothing");
}

#[test]
fn groups_share_the_bound() {
    let engine = RoundEngine::new(RUNNING);
    let bounded = Arc::new(BoundedEngine::new(Arc::clone(&engine)));
    let dataset = Arc::new(Dataset::open(&data(), Split::Train, 1).unwrap());
    let cursor = Cursor::new(dataset.len(), Order::Sequential, 1, 0).unwrap();
    let settings = GroupSettings {
        group_size: 4,
        has_baseline: false,
        recombination: None,
        overlong: None,
        completion_limit: 2,
        sampling: sampling(),
        oldest_first: false,
        demonstrations: None,
    };
    // Two runners, as training and evaluation have one each.
    let runner =
        || GroupRunner::new(episodes(&bounded), Arc::clone(&dataset), cursor.clone(), settings.clone());
    let runners = [Arc::new(runner()), Arc::new(runner())];
    let complete = in_rounds(&engine, async {
        let mut groups = JoinSet::new();
        for ticket in 0..40 {
            let runner = Arc::clone(&runners[ticket as usize % 2]);
            groups.spawn(async move {
                let task = runner.task(Draw { domain: 0, position: ticket }).unwrap();
                let progress = GroupProgress::default();
                runner.run(Ticket(ticket), &task, progress, &|_| {}).await.map_err(|failure| failure.cause)
            });
        }
        groups.join_all().await
    });
    assert_eq!(complete, vec![Ok(true); 40]);
    assert_eq!(engine.most(), 2 * RUNNING);
}
