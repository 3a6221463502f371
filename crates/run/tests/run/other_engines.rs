//! Whole runs on engines that are not the embedded ones: the contracts are enough to drive them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::engines::extras::{WithPictures, picture};
use crate::engines::factory::{ByteTraining, FolderSampling, Parts};
use crate::engines::folder_sampler::{FolderSampler, NOISE, noise};
use crate::recipe;
use rloom_config::Config;
use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{ProgressObserver, TrainEngine, TrainProgress};
use rloom_hub::Hub;
use rloom_model::{Model, PackedTokens, ScoreRows};
use rloom_ops::Ctx;
use rloom_run::assembly::{EmbeddedEngines, EngineFactory, StageStart};
use rloom_run::lineage::SampleName;
use rloom_run::{
    EpisodeHook, NotRepeatable, Policy, RunError, RunInputs, StageError, StopFlag, Summary, context,
    replay_on, train_on,
};
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Metrics, Observer, read_events};
use tempfile::TempDir;

/// Completions long enough to be noisy, rewards by which every group is trained on.
const COMMON: [&str; 5] = [
    "stage.warmup.steps=3",
    "stage.rl.steps=5",
    "eval.tasks=8",
    "sampling.max_new_tokens=8",
    "reward.components=[{kind='random'},{kind='exact'}]",
];

fn config(directory: &Path, overrides: &[&str]) -> Config {
    let all: Vec<&str> = COMMON.iter().chain(overrides).copied().collect();
    recipe::config(directory, &all)
}

fn steps(config: &Config) -> Vec<(u64, Metrics)> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let rl = lines.into_iter().filter(|line| line.stage == "rl");
    rl.filter_map(|line| match line.event {
        Event::Step { metrics } => Some((line.step, metrics)),
        _ => None,
    })
    .collect()
}

fn logged(config: &Config, step: u64) -> Vec<LoggedTrajectory> {
    let path = config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
    let text = String::from_utf8(zstd::decode_all(&std::fs::read(path).unwrap()[..]).unwrap()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn weights(config: &Config) -> [Vec<u8>; 2] {
    let last = format!("-step-{:06}", config.stages[1].steps);
    let folder = std::fs::read_dir(config.run_directory().join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .find(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with("rl-") && name.ends_with(&last))
        })
        .unwrap()
        .path();
    ["model.safetensors", "trainer/optimizer.safetensors"]
        .map(|name| std::fs::read(folder.join(name)).unwrap())
}

fn sampling_run(
    config: &Config,
    sampler: &FolderSampler,
    policy: PolicyId,
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    let (parts, inputs) = Parts::new(config);
    let engines = FolderSampling { parts, sampler: sampler.clone() };
    train_on(config, &engines, &RunInputs { policy, ..inputs }, observer, stop)
}

fn sampled(config: &Config) -> FolderSampler {
    let sampler = FolderSampler::new(32);
    sampling_run(config, &sampler, PolicyId::MAIN, &mut (), &StopFlag::default()).unwrap();
    sampler
}

/// Log-probabilities of a trajectory's policy tokens under the weights of a checkpoint folder.
fn rescored(folder: &Path, line: &LoggedTrajectory) -> Vec<f32> {
    let trajectory = &line.trajectory;
    let model = Model::load(folder).unwrap();
    let rows: Vec<u32> = trajectory.policy_ranges().flatten().map(|i| i as u32).collect();
    let inv_temperature = vec![1.0; rows.len()];
    let packed =
        PackedTokens { tokens: &trajectory.tokens, seq_starts: &[0, trajectory.tokens.len()], parents: &[] };
    let rows = ScoreRows { rows: &rows, inv_temperature: &inv_temperature };
    model.score(&Ctx::serial(), &packed, &rows).unwrap().logprob
}

/// Every argument and result of the trainer crosses as bytes, every version as a folder: not a bit changes.
#[test]
fn a_trainer_behind_bytes_gives_the_embedded_engines_bits() {
    for schedule in [&[][..], &["schedule.max_staleness=1", "schedule.pin_version=true"]] {
        let [embedded, bytes] = [(); 2].map(|()| TempDir::new().unwrap());
        let expected = config(embedded.path(), schedule);
        rloom_run::train(&expected, &mut (), &StopFlag::default()).unwrap();
        let crossed = config(bytes.path(), schedule);
        let (parts, inputs) = Parts::new(&crossed);
        train_on(&crossed, &ByteTraining(parts), &inputs, &mut (), &StopFlag::default()).unwrap();
        assert!(weights(&crossed) == weights(&expected), "{schedule:?}");
        // The weights of a pinned sampler are a version older than the trainer's, so its mismatch is not 0.
        let mismatch = |config: &Config| -> Vec<f64> {
            steps(config).iter().map(|(_, metrics)| metrics["mismatch/max_abs"]).collect()
        };
        assert_eq!(mismatch(&crossed), mismatch(&expected), "{schedule:?}");
        assert!(!schedule.is_empty() || mismatch(&crossed).iter().all(|&max_abs| max_abs == 0.0));
    }
}

/// The bound on a ratio that is always 1 is reported when the run starts; noise makes ratios differ from 1.
#[test]
fn a_clip_that_cannot_act_is_a_warning_with_an_exact_sampler() {
    let warnings = |exact: bool| -> Vec<String> {
        let directory = TempDir::new().unwrap();
        let overrides =
            ["stage.warmup.steps=1", "stage.rl.steps=1", "stage.rl.algorithm.loss.clip_high=0.28"];
        let config = config(directory.path(), &overrides);
        if exact {
            rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        } else {
            sampled(&config);
        }
        let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
        let before_stages =
            lines.into_iter().take_while(|line| !matches!(line.event, Event::StageStarted { .. }));
        before_stages
            .filter_map(|line| match line.event {
                Event::Warning { message } => Some(message),
                _ => None,
            })
            .collect()
    };
    let [exact, noisy] = [true, false].map(warnings);
    assert_eq!(exact.len(), 1, "{exact:?}");
    assert!(exact[0].starts_with("`stage.rl.algorithm.loss.clip_high` has no effect: "), "{exact:?}");
    assert_eq!(noisy, [] as [&str; 0]);
}

/// The noise of the sampler is known, so the mismatch that the trainer measures is, too; and a sampler that is not exact
/// gets corrections without being asked.
#[test]
fn a_noisy_sampler_is_measured_and_corrected() {
    for staleness in ["schedule.max_staleness=0", "schedule.max_staleness=1"] {
        let directory = TempDir::new().unwrap();
        let config = config(directory.path(), &[staleness, "run.checkpoint_every=1"]);
        let sampler = sampled(&config);
        assert!(sampler.lost() > 0, "requests are lost and submitted again");
        let steps = steps(&config);
        assert_eq!(steps.len() as u64, config.stages[1].steps);
        for (step, metrics) in &steps {
            assert!(metrics["mismatch/kl"] > 0.0 && metrics["mismatch/max_abs"] > 0.0, "step {step}");
            let weight = metrics["correction/weight_mean"];
            assert!(weight != 1.0 && (weight - 1.0).abs() < 0.2, "step {step}: {weight}");
            let lines = logged(&config, *step);
            let is_fresh = |line: &LoggedTrajectory| {
                line.trajectory.versions.iter().all(|span| span.version == PolicyVersion(step - 1))
            };
            if lines.iter().all(is_fresh) {
                let max_abs = metrics["mismatch/max_abs"];
                assert!((max_abs - f64::from(NOISE)).abs() < 1e-5, "step {step}: {max_abs}");
            }
            for line in &lines {
                // One version per reply, and its log-probabilities but for the known noise.
                let versions = &line.trajectory.versions;
                assert_eq!(versions.len(), 1, "{versions:?}");
                let folder = match versions[0].version.0 {
                    0 => config.run_directory().join("checkpoints/warmup-step-000003"),
                    version => config.run_directory().join(format!("checkpoints/rl-step-{version:06}")),
                };
                let positions = line.trajectory.policy_ranges().flatten();
                for ((position, &sampled), exact) in
                    positions.zip(&line.trajectory.logprobs).zip(rescored(&folder, line))
                {
                    assert!(
                        (sampled - (exact + noise(position)).min(0.0)).abs() < 1e-5,
                        "{}",
                        line.trajectory.key
                    );
                }
            }
        }
        // What the engine cannot repeat is said, not compared.
        let ticket = logged(&config, 2)[0].trajectory.key.ticket.0;
        let name = SampleName { stage: None, ticket, sample: Some(0) };
        let (parts, inputs) = Parts::new(&config);
        let engines = FolderSampling { parts, sampler };
        let error = replay_on(&config.run_directory(), &config, &name, &engines, &inputs).unwrap_err();
        let reason = NotRepeatable::InexactEngine;
        assert!(matches!(&error, RunError::NotRepeatable { reason: r, .. } if *r == reason), "{error}");
    }
}

/// Two runs train two policies on one engine: each is sampled by its own weights, and everything carries its id.
#[test]
fn two_policies_share_an_engine() {
    let directories = [(); 4].map(|()| TempDir::new().unwrap());
    let ids = [PolicyId::MAIN, PolicyId(1)];
    let configs: Vec<Config> = directories
        .iter()
        .enumerate()
        .map(|(i, directory)| {
            let seed = format!("run.seed={}", 3 + i % 2);
            config(directory.path(), &[&seed])
        })
        .collect();
    let shared = FolderSampler::new(32);
    std::thread::scope(|scope| {
        for (config, id) in configs[..2].iter().zip(ids) {
            let sampler = shared.clone();
            scope.spawn(move || {
                sampling_run(config, &sampler, id, &mut (), &StopFlag::default()).unwrap();
            });
        }
    });
    assert_eq!(shared.policies(), ids);
    for (config, id) in configs[..2].iter().zip(ids) {
        for line in (1..=5).flat_map(|step| logged(config, step)) {
            assert!(line.trajectory.versions.iter().all(|span| span.policy == id));
        }
    }
    // Alone on an engine of their own, both come out the same.
    for (together, alone) in configs[..2].iter().zip(&configs[2..]) {
        sampled(alone);
        assert!(weights(together) == weights(alone));
    }
}

/// Attachments of the environment reach the sampler and, with their group, the trainer's far side; candidate ids are
/// scored at every position. Neither changes the result.
#[test]
fn attachments_and_candidates_pass_through_a_run() {
    // With pinned versions two runs give the same bytes.
    for schedule in [&[][..], &["schedule.max_staleness=1", "schedule.pin_version=true"]] {
        let [plain, illustrated] = [(); 2].map(|()| TempDir::new().unwrap());
        let expected = config(plain.path(), schedule);
        sampled(&expected);
        let config = config(illustrated.path(), schedule);
        let (parts, mut inputs) = Parts::new(&config);
        let received = parts.received();
        inputs.policy = PolicyId(1);
        inputs.episode_hook = Some(EpisodeHook::new(|settings| {
            settings.world = Arc::new(rloom_env::Solo::new(Arc::new(WithPictures)));
        }));
        let engines = FolderSampling { parts, sampler: FolderSampler::new(32) };
        train_on(&config, &engines, &inputs, &mut (), &StopFlag::default()).unwrap();
        assert!(engines.sampler.attachments() > 0 && received.positions() > 0);
        let trained: BTreeMap<u64, BTreeSet<Vec<u8>>> = (1..=config.stages[1].steps)
            .flat_map(|step| logged(&config, step))
            .map(|line| (line.trajectory.key.ticket.0, BTreeSet::from([picture(line.task)])))
            .collect();
        assert!(!trained.is_empty());
        assert_eq!(received.attachments(), trained);
        let own = |config| steps(config).into_iter().map(|(_, metrics)| metrics["loss"]).collect::<Vec<_>>();
        assert_eq!(own(&config), own(&expected));
        assert!(weights(&config) == weights(&expected));
    }
}

/// Records the progress that an engine reports.
fn recorded(engine: &mut impl TrainEngine) -> Arc<Mutex<Vec<TrainProgress>>> {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&reports);
    engine.observe(ProgressObserver::new(move |progress| list.lock().unwrap().push(progress)));
    reports
}

/// An engine behind bytes scores k candidate ids per position as the embedded one does, and reports the same progress.
#[test]
fn candidates_are_scored_through_bytes() {
    let directory = TempDir::new().unwrap();
    let config = config(directory.path(), &[]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let (parts, _) = Parts::new(&config);
    let stage = &config.stages[1];
    let folder = config.run_directory().join("checkpoints/rl-step-000005");
    let start = StageStart::Published(parts_open(&config, &folder));
    let engines = ByteTraining(parts);
    let mut remote = engines.models(stage, 2, start.clone()).unwrap().policy;
    let embedded = embedded(&config);
    let mut local = embedded.models(stage, 2, start).unwrap().policy;
    let trajectories: Vec<_> = logged(&config, 5).into_iter().map(|line| line.trajectory).collect();
    let mut packed = rloom_engine::pack(&trajectories, 64).unwrap();
    for batch in &mut packed {
        let ids = batch.rows.iter().flat_map(|&row| [batch.tokens[row as usize], 1, 2]).collect();
        batch.candidates = Some(rloom_engine::CandidateIds::new(3, ids).unwrap());
    }
    let reports = [recorded(&mut local), recorded(&mut remote)];
    let near = local.score(rloom_engine::Which::Policy, &packed).unwrap();
    let far = remote.score(rloom_engine::Which::Policy, &packed).unwrap();
    assert_eq!(near, far);
    let [near_reports, far_reports] = reports.map(|reports| reports.lock().unwrap().clone());
    assert_eq!(near_reports.len(), packed.len() + 1);
    assert_eq!(near_reports, far_reports);
    for (scores, batch) in near.iter().zip(&packed) {
        assert_eq!(scores.candidate_logprob.len(), 3 * batch.rows.len());
        let own: Vec<f32> = scores.candidate_logprob.iter().step_by(3).copied().collect();
        assert_eq!(own, scores.logprob, "the first candidate is the token itself");
    }
}

fn embedded(config: &Config) -> EmbeddedEngines {
    let ctx = context(config.run.threads).unwrap();
    EmbeddedEngines::new(&Policy::initial(config, &Hub::from_env()).unwrap(), config, ctx)
}

fn parts_open(config: &Config, folder: &Path) -> rloom_engine::PublishedPolicy {
    embedded(config).open(folder, PolicyVersion(5)).unwrap()
}

/// Asks to stop, gently or at once, after a number of steps of reinforcement learning.
struct StopAfter {
    steps: u64,
    requests: u32,
    stop: StopFlag,
}

impl Observer for StopAfter {
    fn observe(&mut self, line: &EventLine) {
        if line.stage == "rl" && matches!(line.event, Event::Step { .. }) && self.steps > 0 {
            self.steps -= 1;
            if self.steps == 0 {
                for _ in 0..self.requests {
                    self.stop.request();
                }
            }
        }
    }
}

/// Interrupted and stopped at once again and again, a run trains on every group exactly once.
#[test]
fn stops_and_resumes_train_on_each_group_once() {
    for staleness in ["schedule.max_staleness=0", "schedule.max_staleness=1"] {
        let directory = TempDir::new().unwrap();
        let config = config(directory.path(), &[staleness, "stage.rl.steps=8"]);
        let sampler = FolderSampler::new(32);
        let attempt = |observer: &mut dyn Observer, stop: &StopFlag| loop {
            match sampling_run(&config, &sampler, PolicyId::MAIN, observer, stop) {
                // A training thread that was left behind holds the lock until its job is done.
                Err(RunError::Store(rloom_store::StoreError::Locked { .. })) => std::thread::yield_now(),
                ended => break ended,
            }
        };
        for (steps, requests) in [(1, 1), (2, 2), (1, 2), (2, 1)] {
            let stop = StopFlag::default();
            let mut observer = StopAfter { steps, requests, stop: stop.clone() };
            match attempt(&mut observer, &stop) {
                Ok(summary) => assert!(summary.interrupted),
                Err(RunError::Stage(StageError::StoppedNow { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
        attempt(&mut (), &StopFlag::default()).unwrap();
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 1..=8 {
            let tickets: BTreeSet<u64> =
                logged(&config, step).iter().map(|line| line.trajectory.key.ticket.0).collect();
            assert_eq!(tickets.len() as u64, config.stages[1].groups_per_batch);
            for ticket in tickets {
                assert_eq!(seen.insert(ticket, step), None, "group {ticket} was trained on twice");
            }
        }
    }
}
