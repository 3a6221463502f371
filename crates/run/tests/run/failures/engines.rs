//! The embedded engines, with requests that fail and a training thread that a test can stop.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rloom_algo::{LossStep, TokenScores};
use rloom_config::Stage;
use rloom_core::{OnUpdate, PolicyVersion, Purpose, RandomKey};
use rloom_engine::{
    Abort, Form, GenerateRequest, Generation, Health, LossReport, OptimStep, PackedBatch, ProgressObserver,
    PublishedPolicy, RolloutCapabilities, RolloutEngine, RolloutEngineSettings, RolloutError,
    RolloutStatistics, SavedFile, StepReport, TrainCapabilities, TrainEngine, TrainError, TrainProgress,
    Which, WorkerFailure, WorkerStatus,
};
use rloom_learn::Models;
use rloom_remote::{GangError, RankEnd};
use rloom_run::RunError;
use rloom_run::assembly::{EmbeddedEngines, EngineFactory, StageStart};
use rloom_stage::PolicyWriter;

use super::faults::{Callback, RL};

/// Error of a lost trainer, as that of PyTorch ranks: the end of the process, and of its output.
pub(crate) const LOSS: &str = "rank 1 ended (signal: 9 (SIGKILL)) in phase `step`\nstarted\nlast words";

/// Faults of the engines of the stage `rl`.
#[derive(Debug, Clone, Default)]
pub(crate) struct EngineFaults {
    /// Called on the training thread before it computes the second batch.
    pub(crate) before_second_batch: Option<Callback>,
    /// Called on the training thread in the second batch, with each progress report of the policy's engine.
    pub(crate) in_second_batch: Option<Callback<TrainProgress>>,
    /// Called when the rollout engine is asked to load version 1, which it then never does.
    pub(crate) while_loading: Option<Callback>,
    /// Losses of the trainer.
    pub(crate) losses: Losses,
    /// True for trainers that do not repeat their results bit by bit.
    pub(crate) is_noisy: bool,
    /// Fault of the rollout requests of some groups.
    pub(crate) requests: Option<(RequestFault, &'static [u64])>,
    /// Requests whose completions were lost, as tickets and samples.
    pub(crate) lost: Arc<Mutex<BTreeSet<(u64, u32)>>>,
}

/// Calls in which the trainer of the stage `rl` is lost, in order: a kind of call, and the number of such calls before it
/// since the last loss. In `start` a rank is killed while the trainer starts, in `refusal` it ends by itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses(Arc<Mutex<VecDeque<(&'static str, u64)>>>);

impl Losses {
    pub(crate) fn at(calls: &[(&'static str, u64)]) -> Self {
        Self(Arc::new(Mutex::new(calls.iter().copied().collect())))
    }

    fn is_due(&self, call: &str) -> bool {
        let mut losses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match losses.front_mut() {
            Some((own, 0)) if *own == call => losses.pop_front().is_some(),
            Some((own, before)) if *own == call => {
                *before -= 1;
                false
            }
            _ => false,
        }
    }

    /// True if all have occurred.
    pub(crate) fn are_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// A failure of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// Each request loses its first completion because its worker is restarted.
    WorkerRestarted,
    /// Each request loses every completion because its worker is restarted.
    WorkerRestartedAgainAndAgain,
    /// The engine fails for good.
    EngineFailed,
}

fn failure() -> (String, WorkerFailure) {
    ("lane 0".to_owned(), WorkerFailure::Panicked { message: "this cannot be".to_owned() })
}

fn engine_failed() -> RolloutError {
    let (worker, cause) = failure();
    RolloutError::EngineFailed { worker, cause }
}

/// A rollout engine that answers some requests with errors.
#[derive(Debug)]
pub(crate) struct FaultyRollout<R> {
    engine: R,
    faults: EngineFaults,
    failed: AtomicBool,
}

impl<R> FaultyRollout<R> {
    fn fault_of(&self, key: RandomKey) -> Option<RequestFault> {
        let (fault, tickets) = self.faults.requests?;
        let is_chosen = key.purpose == Purpose::Rollout && key.stage == RL && tickets.contains(&key.ticket);
        is_chosen.then_some(fault)
    }

    /// True for the first completion of a request.
    fn is_first(&self, key: RandomKey) -> bool {
        let mut lost = self.faults.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert((key.ticket, key.sample))
    }

    fn check(&self) -> Result<(), RolloutError> {
        if self.failed.load(Ordering::Relaxed) { Err(engine_failed()) } else { Ok(()) }
    }
}

impl<R: RolloutEngine> RolloutEngine for FaultyRollout<R> {
    async fn generate(&self, request: GenerateRequest) -> Result<Generation, RolloutError> {
        let (key, fault) = (request.key, self.fault_of(request.key));
        if fault == Some(RequestFault::EngineFailed) {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.check()?;
        let generation = self.engine.generate(request).await?;
        self.check()?;
        let is_lost = match fault {
            Some(RequestFault::WorkerRestarted) => self.is_first(key),
            Some(RequestFault::WorkerRestartedAgainAndAgain) => true,
            _ => false,
        };
        if is_lost {
            let (worker, cause) = failure();
            return Err(RolloutError::WorkerRestarted { worker, cause });
        }
        Ok(generation)
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let loaded = self.engine.load(policy, on_update);
        let hang = self.faults.while_loading.as_ref().filter(|_| policy.version == PolicyVersion(1));
        async move {
            self.check()?;
            if let Some(hang) = hang {
                hang.call(());
                return std::future::pending().await;
            }
            loaded.await
        }
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let released = self.engine.release();
        async move {
            self.check()?;
            released.await
        }
    }

    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        self.engine.abort(which)
    }

    fn health(&self, timeout: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        self.engine.health(timeout)
    }

    fn capabilities(&self) -> RolloutCapabilities {
        self.engine.capabilities()
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        self.engine.workers()
    }

    fn statistics(&self) -> RolloutStatistics {
        self.engine.statistics()
    }
}

/// A train engine that calls a function before it computes on the weights of version 1, and that can be lost.
#[derive(Debug)]
pub(crate) struct HookedTrainer<T> {
    engine: T,
    hook: Option<Callback>,
    in_second_batch: Option<Callback<TrainProgress>>,
    version: Arc<AtomicU64>,
    losses: Losses,
    is_lost: bool,
    /// Changes the digests of publications, as if the weights had changed.
    noise: Option<u64>,
    _alive: Arc<()>,
}

impl<T> HookedTrainer<T> {
    /// Fails if the engine is lost in this call or was lost before.
    fn survive(&mut self, call: &str) -> Result<(), TrainError> {
        self.is_lost |= self.losses.is_due(call);
        if self.is_lost { Err(TrainError::Lost(LOSS.into())) } else { Ok(()) }
    }

    fn before_batch(&mut self) {
        if self.version.load(Ordering::Relaxed) == 1
            && let Some(hook) = self.hook.take()
        {
            hook.call(());
        }
    }
}

impl<T: TrainEngine> TrainEngine for HookedTrainer<T> {
    fn observe(&mut self, observer: ProgressObserver) {
        let Some(hook) = self.in_second_batch.clone() else { return self.engine.observe(observer) };
        let version = Arc::clone(&self.version);
        self.engine.observe(ProgressObserver::new(move |progress| {
            observer.report(progress);
            if version.load(Ordering::Relaxed) == 1 {
                hook.call(progress);
            }
        }));
    }

    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        self.survive("score")?;
        self.before_batch();
        self.engine.score(which, step)
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        self.survive("accumulate")?;
        self.before_batch();
        self.engine.accumulate(step, loss)
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        self.survive("step")?;
        self.engine.step(step)
    }

    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        self.survive("publish")?;
        self.version.store(version.0, Ordering::Relaxed);
        let published = self.engine.publish(version, form)?;
        let digest = published.digest ^ self.noise.unwrap_or_default();
        Ok(PublishedPolicy { digest, ..published })
    }

    fn publish_exact(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        self.survive("publish")?;
        self.engine.publish_exact(version, form)
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        self.engine.digest()
    }

    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        self.survive("save")?;
        self.engine.save(directory)
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        self.survive("restore")?;
        self.engine.restore(directory)
    }

    fn capabilities(&self) -> TrainCapabilities {
        TrainCapabilities { repeats_bits: self.noise.is_none(), ..self.engine.capabilities() }
    }

    fn park(&mut self) -> Result<(), TrainError> {
        self.engine.park()
    }
}

/// The embedded engines with faults.
pub(crate) struct FaultyEngines {
    pub(crate) embedded: EmbeddedEngines,
    pub(crate) faults: EngineFaults,
    /// Shared by the trainers that are alive.
    pub(crate) alive: Arc<()>,
    /// Noisy trainers that were started.
    pub(crate) trainers: AtomicU64,
    /// Rollout engines that were started.
    pub(crate) rollouts: Arc<AtomicU64>,
}

impl EngineFactory for FaultyEngines {
    type Rollout = FaultyRollout<<EmbeddedEngines as EngineFactory>::Rollout>;
    type Train = HookedTrainer<<EmbeddedEngines as EngineFactory>::Train>;

    fn rollout(&self, settings: &RolloutEngineSettings) -> Result<Self::Rollout, RunError> {
        self.rollouts.fetch_add(1, Ordering::Relaxed);
        let engine = self.embedded.rollout(settings)?;
        Ok(FaultyRollout { engine, faults: self.faults.clone(), failed: AtomicBool::new(false) })
    }

    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<Self::Train>, RunError> {
        assert_eq!(Arc::strong_count(&self.alive), 1, "the models before are still there");
        for (call, was_killed) in [("start", true), ("refusal", false)] {
            if stage.name == "rl" && self.faults.losses.is_due(call) {
                let end = RankEnd { status: "signal: 9 (SIGKILL)".to_owned(), was_killed };
                let (during, stderr) = ("in phase `step`".to_owned(), "started\nlast words".to_owned());
                return Err(RunError::Gang(GangError::Died { rank: 1, end, during, stderr }));
            }
        }
        let Models { policy, critic, prm, .. } = self.embedded.models(stage, threads, start)?;
        let wrap = |engine, faults: EngineFaults| HookedTrainer {
            engine,
            hook: faults.before_second_batch,
            in_second_batch: faults.in_second_batch,
            version: Arc::default(),
            losses: faults.losses,
            is_lost: false,
            noise: faults.is_noisy.then(|| self.trainers.fetch_add(1, Ordering::Relaxed)),
            _alive: Arc::clone(&self.alive),
        };
        let none = EngineFaults::default;
        let faults = if stage.name == "rl" { self.faults.clone() } else { none() };
        Ok(Models {
            policy: wrap(policy, faults),
            critic: critic.map(|engine| wrap(engine, none())),
            prm: prm.map(|engine| wrap(engine, none())),
            further: Vec::new(),
        })
    }

    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        self.embedded.open(folder, version)
    }

    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError> {
        self.embedded.open_start(start)
    }

    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities {
        self.embedded.train_capabilities(stage)
    }

    fn is_sampler_exact(&self, stage: &Stage) -> bool {
        self.embedded.is_sampler_exact(stage)
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        self.embedded.writer()
    }
}
