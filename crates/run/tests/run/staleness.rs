//! Runs at any staleness: bounds, exact log-probabilities, reproducibility and resumption.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::recipe;
use rloom_config::Config;
use rloom_core::{PolicyVersion, Trajectory};
use rloom_model::{Model, PackedTokens, ScoreRows};
use rloom_ops::Ctx;
use rloom_run::{ResumeOptions, StopFlag};
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Metrics, Observer, read_events};

/// More steps, a checkpoint of each, and rewards that differ within groups.
const LONG: [&str; 5] = [
    "stage.rl.steps=12",
    "run.checkpoint_every=1",
    "eval.every=4",
    "sampling.max_new_tokens=12",
    "reward.components=[{kind='random'},{kind='exact'}]",
];

fn run(directory: &Path, overrides: &[&str]) -> Config {
    let all: Vec<&str> = LONG.iter().chain(overrides).copied().collect();
    let config = recipe::config(directory, &all);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    config
}

fn logged(run: &Path, step: u64) -> Vec<LoggedTrajectory> {
    let bytes = std::fs::read(run.join(format!("rollouts/rl-step-{step:06}.jsonl.zst"))).unwrap();
    let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn steps(run: &Path) -> Vec<(u64, u32, Metrics)> {
    let lines = read_events(&run.join("events.jsonl")).unwrap();
    let steps = lines.into_iter().filter(|line| line.stage == "rl").filter_map(|line| match line.event {
        Event::Step { metrics } => Some((line.step, line.attempt, metrics)),
        _ => None,
    });
    steps.collect()
}

/// Log-probabilities of a trajectory's policy tokens under a model.
pub(crate) fn scored(model: &Model, trajectory: &Trajectory) -> Vec<f32> {
    let rows: Vec<u32> = trajectory.policy_ranges().flatten().map(|i| i as u32).collect();
    let seq_starts = [0, trajectory.tokens.len()];
    let inv_temperature = vec![1.0 / trajectory.spans[1].temperature; rows.len()];
    let packed = PackedTokens { tokens: &trajectory.tokens, seq_starts: &seq_starts, parents: &[] };
    let rows = ScoreRows { rows: &rows, inv_temperature: &inv_temperature };
    model.score(&Ctx::serial(), &packed, &rows).unwrap().logprob
}

/// Weights of a version.
fn model(run: &Path, version: PolicyVersion) -> Model {
    let folder = match version.0 {
        0 => "warmup-step-000004".to_owned(),
        step => format!("rl-step-{step:06}"),
    };
    Model::load(&run.join("checkpoints").join(folder)).unwrap()
}

/// Checks the invariants of every run: tokens are at most `max_staleness` versions old, each ticket is trained on once, and
/// every log-probability is bitwise that of the version that sampled the token, unless trajectories mix the keys and
/// values of several versions (`mixes`). Returns the number of stale tokens and of trajectories with several versions.
fn check(config: &Config, max_staleness: u64, mixes: bool) -> (usize, usize) {
    let run = config.run_directory();
    let mut models = BTreeMap::new();
    let mut tickets = BTreeSet::new();
    let (mut stale, mut mixed) = (0, 0);
    for step in 1..=config.stages[1].steps {
        let trained: Vec<LoggedTrajectory> = logged(&run, step);
        let own: BTreeSet<u64> = trained.iter().map(|t| t.trajectory.key.ticket.0).collect();
        assert_eq!(own.len() as u64, config.stages[1].groups_per_batch);
        assert!(own.iter().all(|&ticket| tickets.insert(ticket)), "a group is trained on twice");
        for LoggedTrajectory { trajectory, version, .. } in trained {
            assert_eq!(version.0, step - 1);
            trajectory.validate().unwrap();
            assert!(trajectory.versions.is_sorted_by_key(|span| span.version));
            mixed += usize::from(trajectory.versions.len() > 1);
            let start = trajectory.prompt_tokens();
            for span in &trajectory.versions {
                assert!(
                    span.version <= version && version.0 - span.version.0 <= max_staleness,
                    "step {step}: {span:?}"
                );
                if span.version < version {
                    stale += span.range.len();
                }
                if mixes && trajectory.versions.len() > 1 {
                    continue;
                }
                let model = models.entry(span.version).or_insert_with(|| model(&run, span.version));
                let scores = scored(model, &trajectory);
                let range = span.range.start - start..span.range.end - start;
                assert_eq!(scores[range.clone()], trajectory.logprobs[range], "step {step}: {span:?}");
            }
        }
    }
    (stale, mixed)
}

#[test]
fn every_on_update_policy_keeps_the_staleness_bound_and_exact_log_probabilities() {
    for (update, max_staleness) in
        [("finish", 1), ("recompute", 1), ("recompute", 3), ("keep", 2), ("abort", 2)]
    {
        let directory = tempfile::tempdir().unwrap();
        let staleness_key = format!("schedule.max_staleness={max_staleness}");
        let update_key = format!("schedule.on_update={update}");
        let config = run(directory.path(), &[&staleness_key, &update_key]);
        let (stale, mixed) = check(&config, max_staleness, update == "keep");
        assert!(stale > 0, "{update}: nothing was sampled ahead");
        assert!(update != "finish" || mixed == 0, "{mixed} trajectories of several versions");
        for (step, _, metrics) in steps(&config.run_directory()) {
            assert!(metrics["off_policy/staleness_max"] <= max_staleness as f64, "step {step}");
            for name in ["correction/ess", "correction/weight_mean", "mismatch/kl", "overlap", "queue/ready"]
            {
                assert!(metrics[name].is_finite(), "{update}, step {step}: {name}");
            }
        }
    }
}

#[test]
fn batches_in_order_of_completion_are_cut_early() {
    for (overrides, max_staleness) in [
        (vec!["schedule.oversample=3"], 0),
        (vec!["schedule.oversample=3", "schedule.stragglers=defer"], 0),
        (vec!["schedule.oversample=2", "schedule.max_staleness=1"], 1),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let all: Vec<&str> = overrides.into_iter().chain(["schedule.cut_order=completion"]).collect();
        let config = run(directory.path(), &all);
        check(&config, max_staleness, false);
        let ended = read_events(&config.run_directory().join("events.jsonl")).unwrap();
        let count = |wanted: &str| {
            let is = |line: &&EventLine| matches!(&line.event, Event::GroupEnded { end, .. } if end.name() == wanted);
            ended.iter().filter(is).count()
        };
        let defers = all.contains(&"schedule.stragglers=defer");
        if max_staleness == 0 {
            assert!(count(if defers { "deferred" } else { "stale" }) > 0, "{all:?}");
        } else {
            let trained: Vec<u64> =
                (1..=config.stages[1].steps).flat_map(|step| tickets(&config, step)).collect();
            assert!(
                !trained.iter().copied().eq(0..trained.len() as u64),
                "{all:?}: no batch overtook an earlier group"
            );
        }
    }
}

/// Final weights and optimiser state.
fn result(config: &Config) -> BTreeMap<&'static str, Vec<u8>> {
    let last = format!("checkpoints/rl-step-{:06}", config.stages[1].steps);
    let folder = config.run_directory().join(last);
    let read = |name| (name, std::fs::read(folder.join(name)).unwrap());
    ["model.safetensors", "trainer/optimizer.safetensors"].into_iter().map(read).collect()
}

#[test]
fn a_pinned_run_gives_the_same_bytes_at_any_timing() {
    for staleness in ["schedule.max_staleness=1", "schedule.max_staleness=3"] {
        let pinned = |more: &[&str]| {
            let directory = tempfile::tempdir().unwrap();
            let own = [&["schedule.pin_version=true", staleness], more].concat();
            let config = run(directory.path(), &own);
            let bound = config.stages[1].schedule().max_staleness;
            for step in 1..=config.stages[1].steps {
                for LoggedTrajectory { trajectory, .. } in logged(&config.run_directory(), step) {
                    let batch = trajectory.key.ticket.0 / config.stages[1].groups_per_batch;
                    let versions: Vec<u64> = trajectory.versions.iter().map(|span| span.version.0).collect();
                    assert_eq!(versions, [batch.saturating_sub(bound)]);
                }
            }
            check(&config, bound, false);
            result(&config)
        };
        let reference = pinned(&[]);
        assert!(reference == pinned(&["run.threads=3", "rollout.lanes=2", "rollout.max_batch=2"]));
        assert!(
            reference == pinned(&["trainer.threads=1", "rollout.threads=3", "schedule.priority=arrival"])
        );
    }
}

/// Requests a stop after a step.
struct StopAt(u64, StopFlag);

impl Observer for StopAt {
    fn observe(&mut self, line: &EventLine) {
        let here = line.stage == "rl" && line.step == self.0 && matches!(line.event, Event::Step { .. });
        if here && !self.1.after_this_step() {
            self.1.request();
        }
    }
}

fn interrupted(config: &Config, at: u64) {
    let stop = StopFlag::default();
    let summary = rloom_run::train(config, &mut StopAt(at, stop.clone()), &stop).unwrap();
    assert!(summary.interrupted);
}

fn resume(config: &Config) -> rloom_run::Summary {
    rloom_run::resume(
        &config.run_directory(),
        config,
        ResumeOptions::default(),
        &mut (),
        &StopFlag::default(),
    )
    .unwrap()
}

#[test]
fn a_pinned_run_that_is_interrupted_ends_in_the_same_bytes() {
    let pinned = ["schedule.pin_version=true", "schedule.max_staleness=2", "run.checkpoint_every=5"];
    let directory = tempfile::tempdir().unwrap();
    let whole = run(&directory.path().join("whole"), &pinned);
    for at in [1, 5, 8] {
        let all: Vec<&str> = LONG.iter().chain(&pinned).copied().collect();
        let config = recipe::config(&directory.path().join(at.to_string()), &all);
        interrupted(&config, at);
        assert!(!resume(&config).interrupted);
        assert!(result(&config) == result(&whole), "interrupted at step {at}");
    }
}

#[test]
fn an_interrupted_run_resumes_the_groups_in_flight() {
    for update in ["recompute", "abort"] {
        let directory = tempfile::tempdir().unwrap();
        let update = format!("schedule.on_update={update}");
        let overrides = ["schedule.max_staleness=2", &update];
        let all: Vec<&str> = LONG.iter().copied().chain(overrides).collect();
        let config = recipe::config(directory.path(), &all);
        interrupted(&config, 4);
        assert!(!resume(&config).interrupted);
        check(&config, 2, false);
    }
}

/// A step that is trained again after a resume has the same metrics.
#[test]
fn a_damaged_checkpoint_is_skipped_and_its_batches_are_retrained() {
    let directory = tempfile::tempdir().unwrap();
    let all: Vec<&str> = LONG
        .iter()
        .copied()
        .chain(["schedule.max_staleness=2", "run.checkpoint_every=4", "run.keep_every=0", "eval.every=100"])
        .collect();
    let config = recipe::config(directory.path(), &all);
    interrupted(&config, 11);
    let run = config.run_directory();
    let newest = std::fs::read_link(run.join("checkpoints/latest")).unwrap();
    let file = run.join("checkpoints").join(newest).join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    resume(&config);
    let reported = steps(&run);
    let timeless = |metrics: &Metrics| -> Metrics {
        let timed = ["time/", "tokens_per_second/", "overlap", "queue/", "rollout/"];
        metrics
            .iter()
            .filter(|(name, _)| !timed.iter().any(|t| name.starts_with(t)))
            .map(|(n, v)| (n.clone(), *v))
            .collect()
    };
    let mut again = 0;
    for (step, _, metrics) in reported.iter().filter(|(_, attempt, _)| *attempt == 1) {
        let repeated = reported.iter().find(|(other, attempt, _)| other == step && *attempt == 2);
        if let Some((_, _, later)) = repeated {
            assert_eq!(timeless(metrics), timeless(later), "step {step}");
            again += 1;
        }
    }
    assert!(again >= 3, "{again} steps were trained again");
    check_tickets(&config);
}

/// Tickets of the groups that a step was trained on, in ascending order.
fn tickets(config: &Config, step: u64) -> BTreeSet<u64> {
    logged(&config.run_directory(), step).iter().map(|t| t.trajectory.key.ticket.0).collect()
}

/// Checks that every group is trained on once.
fn check_tickets(config: &Config) {
    let mut trained = BTreeSet::new();
    for step in 1..=config.stages[1].steps {
        let own = tickets(config, step);
        assert_eq!(own.len() as u64, config.stages[1].groups_per_batch, "step {step}");
        assert!(own.iter().all(|&ticket| trained.insert(ticket)), "step {step}");
    }
}
