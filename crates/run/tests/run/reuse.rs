//! Experience replay: batches that also train on groups of earlier batches.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rloom_config::Config;
use rloom_core::{Group, Ticket};
use rloom_hub::Hub;
use rloom_run::lineage::SampleName;
use rloom_run::{FoundIn, Origin, Replay, RunError, StopFlag, Verdict};
use rloom_sched::ReusedGroup;
use rloom_store::journal::{self, Record};
use rloom_telemetry::{Event, Metrics, StepFiles, read_events, rollout_log};

use crate::recipe;

/// Rewards that differ within every group, so that every batch changes the weights.
const CONTRAST: &str = "reward.components=[{kind='random'},{kind='exact'}]";
/// Two of eight groups of a batch.
const REUSE: &str = "schedule.reuse={share=0.25,max_age=3,max_uses=2}";

fn trained(directory: &Path, overrides: &[&str]) -> Config {
    let all: Vec<&str> = [CONTRAST, "run.keep_last=9"].iter().chain(overrides).copied().collect();
    let config = recipe::config(directory, &all);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    config
}

fn weights(config: &Config) -> Vec<u8> {
    let last = format!("checkpoints/rl-step-{:06}/model.safetensors", config.stages[1].steps);
    std::fs::read(config.run_directory().join(last)).unwrap()
}

/// Metrics of the steps of reinforcement learning.
fn steps(config: &Config) -> Vec<Metrics> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let of_step = |event| if let Event::Step { metrics } = event { Some(metrics) } else { None };
    lines.into_iter().filter(|line| line.stage == "rl").filter_map(|line| of_step(line.event)).collect()
}

/// The cuts of the journal: tickets of the new groups, and the reused groups.
fn cuts(config: &Config) -> Vec<(Vec<Ticket>, Vec<ReusedGroup>)> {
    let records = journal::read(&config.run_directory().join("journal"), 1).unwrap().log;
    let cut = |record| match record {
        Record::Cut { tickets, reused, .. } => Some((tickets, reused)),
        _ => None,
    };
    records.into_iter().filter_map(cut).collect()
}

/// The logged groups of a step.
fn logged(config: &Config, step: u64) -> Vec<Group> {
    let files = StepFiles::new(&config.run_directory(), "rl", u64::MAX);
    rollout_log::read(&files.path(step)).unwrap()
}

fn replay(config: &Config, sample: &str) -> Result<Replay, RunError> {
    let name: SampleName = sample.parse().unwrap();
    rloom_run::replay(
        &config.run_directory(),
        config,
        &name,
        &Arc::new(Hub::from_env()),
        true,
        &mut |_, _| {},
    )
}

/// With a share of 0 the bytes are those of a run without the table; with more they are others.
#[test]
fn a_share_of_0_changes_nothing() {
    let [plain, zero, some] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let short = "stage.rl.steps=3";
    let plain = weights(&trained(plain.path(), &[short]));
    assert!(weights(&trained(zero.path(), &[short, "schedule.reuse.share=0.0"])) == plain);
    assert!(weights(&trained(some.path(), &[short, REUSE])) != plain);
}

/// Reused groups are those of earlier steps with all that was recorded, and each use is in one record of the journal.
#[test]
fn every_reuse_is_one_record_of_an_earlier_group() {
    for overrides in [&[REUSE][..], &[REUSE, "schedule.max_staleness=1"]] {
        let directory = tempfile::tempdir().unwrap();
        let config = trained(directory.path(), &[&["stage.rl.steps=8"], overrides].concat());
        let mut before: BTreeMap<Ticket, Group> = BTreeMap::new();
        let mut uses = BTreeSet::new();
        let cuts = cuts(&config);
        assert_eq!(cuts.len(), 8);
        for (step, ((tickets, reused), metrics)) in (1..).zip(cuts.into_iter().zip(steps(&config))) {
            assert_eq!(tickets.len(), 6);
            assert_eq!(reused.len(), if step == 1 { 0 } else { 2 }, "step {step}");
            let groups = logged(&config, step);
            let of_cut: Vec<Ticket> =
                tickets.iter().copied().chain(reused.iter().map(|r| r.ticket)).collect();
            assert_eq!(groups.iter().map(|group| group.ticket).collect::<Vec<_>>(), of_cut);
            for (reused, group) in reused.iter().zip(&groups[6..]) {
                assert!(uses.insert(*reused), "{reused:?} is reused twice");
                assert_eq!(before[&group.ticket].episodes, group.episodes);
            }
            assert_eq!(metrics["reuse/share"], reused.len() as f64 / groups.len() as f64);
            let oldest = |group: &Group| {
                let spans = group.episodes.iter().flat_map(|e| &e.segments).flat_map(|s| &s.versions);
                spans.map(|span| span.version.0).min().unwrap()
            };
            let ages = groups[6..].iter().map(|group| (step - 1 - oldest(group)) as f64);
            if step > 1 {
                let oldest = ages.fold(0.0, f64::max);
                assert!((1.0..=3.0).contains(&oldest));
                assert_eq!(metrics["reuse/age_max"], oldest);
                assert!(metrics["off_policy/staleness_max"] >= oldest);
                assert!(metrics["off_policy/fresh_tokens"] < 1.0);
                assert!(metrics["correction/ess"] > 0.0);
            }
            let of_new = groups[..6].iter().flat_map(|group| &group.episodes);
            let rewards: Vec<f64> = of_new.filter_map(|episode| episode.rewards.total()).collect();
            let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
            assert!((metrics["reward"] - mean).abs() < 1e-9, "the reward is that of the new groups");
            before.extend(groups.into_iter().take(6).map(|group| (group.ticket, group)));
        }
        assert_eq!(uses.len(), 14);
        assert!(uses.iter().any(|reused| reused.reuse == 2), "some are reused twice");
    }
}

/// A version without a checkpoint is retrained on its batches, reused groups included: from the rollouts of the steps, and
/// from the journal.
#[test]
fn replay_retrains_on_reused_groups() {
    let directory = tempfile::tempdir().unwrap();
    let own = ["run.keep_every=0", "run.keep_last=2", "run.checkpoint_every=4", "eval.every=100", REUSE];
    let config = trained(directory.path(), &[&["stage.rl.steps=7"], &own[..]].concat());
    // Step 4 was sampled from version 3, step 7 from version 6, after the checkpoint of version 4.
    for (sample, step, version, from) in [("20/1", 4, 3, 0), ("38/2", 7, 6, 4)] {
        let replayed = replay(&config, sample).unwrap();
        assert_eq!((replayed.verdict, replayed.found), (Verdict::Equal, FoundIn::Rollouts { step }));
        assert_eq!(replayed.versions, BTreeMap::from([(version, Origin::Rebuilt { from })]));
    }
    for step in 1..=7 {
        let files = StepFiles::new(&config.run_directory(), "rl", u64::MAX);
        std::fs::remove_file(files.path(step)).unwrap();
    }
    let replayed = replay(&config, "38/2").unwrap();
    assert_eq!((replayed.verdict, replayed.found), (Verdict::Equal, FoundIn::Journal));
}

/// A run on recorded rollouts takes the new groups of each step and reuses them by its own rule.
#[test]
fn recorded_rollouts_are_reused_again() {
    let [recorded, again] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let source = trained(recorded.path(), &["stage.rl.steps=4", REUSE]);
    let rollouts = format!("run.rollouts='{}'", source.run_directory().display());
    let config = trained(again.path(), &["stage.rl.steps=4", REUSE, &rollouts]);
    assert!(weights(&config) == weights(&source));
}
