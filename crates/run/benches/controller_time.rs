//! Time that the controller itself takes for a step: scheduling, rewards, journal, advantages, packing, rollout files and
//! events. The engines are stand-ins that answer at once. The loss, which PyTorch ranks evaluate themselves, is shown apart.
//!
//!     cargo bench -p rloom-run --bench controller_time

#![expect(clippy::print_stdout, clippy::expect_used, reason = "it prints its measurements")]

use std::future::{Future, ready};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_algo::{LossStep, LossTerms, TokenScores};
use rloom_config::{Config, Stage};
use rloom_core::{OnUpdate, PolicyVersion, StopReason, VersionSpan};
use rloom_engine::{
    Abort, Form, GenerateRequest, Generation, Health, LossReport, OptimStep, PackedBatch, PolicyLabel,
    ProgressObserver, PublishedPolicy, RolloutCapabilities, RolloutEngine, RolloutEngineSettings,
    RolloutError, RolloutStatistics, SavedFile, StepReport, TrainCapabilities, TrainEngine, TrainError,
    VersionGranularity, Which, WorkerStatus,
};
use rloom_hub::Hub;
use rloom_learn::Models;
use rloom_run::assembly::{EmbeddedEngines, EngineFactory, StageStart};
use rloom_run::{Policy, RunError, RunInputs, StopFlag, context, train_on};
use rloom_stage::PolicyWriter;
use rloom_telemetry::{Event, read_events};

const STEPS: u64 = 12;
const GROUPS: u64 = 64;
const GROUP_SIZE: u64 = 8;
const TOKENS: usize = 512;

/// Processor time of the losses in nanoseconds.
static LOSS: AtomicU64 = AtomicU64::new(0);

fn recipe() -> String {
    format!(
        r#"
[run]
name = "controller"
checkpoint_every = 0
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 1024
[data]
generator = "arithmetic"
[reward]
components = [{{ kind = "random" }}]
[sampling]
max_new_tokens = {TOKENS}
[[stage]]
name = "rl"
method = "grpo"
steps = {STEPS}
groups_per_batch = {GROUPS}
[stage.algorithm]
group_size = {GROUP_SIZE}
"#
    )
}

/// Completes every request at once.
#[derive(Debug)]
struct Sampler {
    loaded: Mutex<Option<PolicyLabel>>,
    vocabulary: u32,
}

impl RolloutEngine for Sampler {
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let label = self.loaded.lock().expect("no panic").expect("weights are loaded first");
        // Not the special tokens, which end a text.
        let first = (request.key.ticket as u32).wrapping_add(request.key.sample) % 8;
        let tokens = (0..TOKENS as u32).map(|i| 4 + (first + i) % (self.vocabulary - 4)).collect();
        ready(Ok(Generation {
            tokens,
            logprobs: vec![-1.0; TOKENS],
            temperature: 1.0,
            versions: vec![VersionSpan { policy: label.policy, version: label.version, range: 0..TOKENS }],
            stop: StopReason::Length,
            replica: Some(0),
        }))
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        _: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        *self.loaded.lock().expect("no panic") = Some(policy.label());
        ready(Ok(()))
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        ready(Ok(()))
    }

    fn abort(&self, _: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        ready(Ok(()))
    }

    fn health(&self, _: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        ready(Ok(Health::default()))
    }

    fn capabilities(&self) -> RolloutCapabilities {
        RolloutCapabilities {
            numeric_path: None,
            batch_invariant: true,
            on_update: vec![OnUpdate::Finish],
            mixes_versions: Vec::new(),
            versions: VersionGranularity::PerReply,
            forms: vec![Form::Memory],
            stop_strings: false,
            context: 1024,
            max_running: 256,
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

/// Gives every token the same score and does not change its weights.
#[derive(Debug)]
struct Trainer {
    start: PublishedPolicy,
    observer: ProgressObserver,
}

impl TrainEngine for Trainer {
    fn observe(&mut self, observer: ProgressObserver) {
        self.observer = observer;
    }

    fn score(&mut self, _: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        let scores = |batch: &PackedBatch| TokenScores {
            logprob: vec![-1.0; batch.rows.len()],
            entropy: vec![1.0; batch.rows.len()],
            ..TokenScores::default()
        };
        Ok(step.iter().map(scores).collect())
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        let before = thread_nanoseconds();
        let grads = loss.evaluate_step(&self.score(Which::Policy, step)?)?;
        LOSS.fetch_add(thread_nanoseconds() - before, Ordering::Relaxed);
        let mut terms = LossTerms::default();
        for grad in &grads {
            terms.merge(&grad.terms);
        }
        let tokens = step.iter().map(|batch| batch.tokens.len() as u64).sum();
        Ok(LossReport { terms, tokens, ..LossReport::default() })
    }

    fn step(&mut self, _: &OptimStep) -> Result<StepReport, TrainError> {
        Ok(StepReport { grad_norm: 1.0 })
    }

    fn publish(&mut self, version: PolicyVersion, _: Form) -> Result<PublishedPolicy, TrainError> {
        Ok(PublishedPolicy { version, ..self.start.clone() })
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        Ok(self.start.digest)
    }

    fn save(&mut self, folder: &Path) -> Result<Vec<SavedFile>, TrainError> {
        std::fs::create_dir(folder.join("trainer")).expect("a folder");
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &Path) -> Result<(), TrainError> {
        Ok(())
    }

    fn capabilities(&self) -> TrainCapabilities {
        TrainCapabilities {
            ranks: 1,
            repeats_bits: true,
            shares_prompts: false,
            numeric_path: "none".to_owned(),
            forms: vec![Form::Memory],
            candidates: false,
            attachments: false,
        }
    }
}

struct StandIns {
    embedded: EmbeddedEngines,
    vocabulary: u32,
}

impl EngineFactory for StandIns {
    type Rollout = Sampler;
    type Train = Trainer;

    fn rollout(&self, _: &RolloutEngineSettings) -> Result<Sampler, RunError> {
        Ok(Sampler { loaded: Mutex::default(), vocabulary: self.vocabulary })
    }

    fn models(&self, _: &Stage, _: usize, start: StageStart) -> Result<Models<Trainer>, RunError> {
        let start = self.embedded.open_start(start)?;
        Ok(Models::of_policy(Trainer { start, observer: ProgressObserver::default() }))
    }

    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        self.embedded.open(folder, version)
    }

    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError> {
        self.embedded.open_start(start)
    }

    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities {
        TrainCapabilities { ranks: 1, ..self.embedded.train_capabilities(stage) }
    }

    fn is_sampler_exact(&self, _: &Stage) -> bool {
        false
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        self.embedded.writer()
    }
}

/// Processor time of this thread in nanoseconds.
fn thread_nanoseconds() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or_default()
}

/// Processor time of this process in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let overrides = [format!("run.directory={}", folder.path().display())];
    let config = Config::from_text("controller.toml", &recipe(), &overrides);
    let config = config.map_err(|errors| errors.to_string()).expect("a recipe");
    let hub = Arc::new(Hub::from_env());
    let ctx = context(config.run.threads).expect("threads");
    let policy = Policy::initial(&config, &hub).expect("a model");
    let inputs = RunInputs::new(&policy, Arc::clone(&hub), ctx.threads(), config.run.seed);
    let vocabulary = policy.vocabulary as u32;
    let engines = StandIns { embedded: EmbeddedEngines::new(&policy, &config, ctx), vocabulary };
    let before = cpu_seconds();
    let summary = train_on(&config, &engines, &inputs, &mut (), &StopFlag::default()).expect("a run");
    let cpu = cpu_seconds() - before;
    let events = read_events(&summary.directory.join("events.jsonl")).expect("events");
    let ends: Vec<f64> = events
        .iter()
        .filter(|line| matches!(line.event, Event::Step { .. }))
        .map(|line| line.elapsed)
        .collect();
    let mut steps: Vec<f64> = ends.windows(2).map(|pair| 1e3 * (pair[1] - pair[0])).collect();
    steps.sort_by(f64::total_cmp);
    let loss = LOSS.load(Ordering::Relaxed) as f64 / 1e9;
    println!(
        "{} completions of {TOKENS} tokens: {:.0} ms of processor time a step, and {:.0} ms for the loss; steps end {:.0} ms apart (median, {:.0} to {:.0} ms)",
        GROUPS * GROUP_SIZE,
        1e3 * (cpu - loss) / STEPS as f64,
        1e3 * loss / STEPS as f64,
        steps[steps.len() / 2],
        steps[0],
        steps[steps.len() - 1],
    );
}
