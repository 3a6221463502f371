//! Replay: samples of finished runs are generated again.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::recipe;
use std::sync::Arc;

use rloom_config::Config;
use rloom_core::{
    OnUpdate, PolicyId, PolicyVersion, Purpose, RandomKey, SampleKey, StopReason, Trajectory, VersionSpan,
};
use rloom_embedded::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::{GenerateRequest, Generation, RolloutEngine, RolloutSettings, SamplingSettings};
use rloom_hub::Hub;
use rloom_run::lineage::{Fate, SampleName, lineage};
use rloom_run::{
    Difference, FoundIn, NotRepeatable, Origin, Policy, Replay, ResumeOptions, RunError, StageError,
    StopFlag, Verdict,
};
use rloom_telemetry::{Event, EventLine, Observer};
use serde_json::Value;

/// Rewards that differ within every group, so that every batch changes the weights.
const CONTRAST: &str = "reward.components=[{kind='random'},{kind='exact'}]";

fn trained(directory: &Path, overrides: &[&str]) -> Config {
    let config = recipe::config(directory, overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    config
}

fn replay(config: &Config, sample: &str, rebuild: bool) -> Result<Replay, RunError> {
    let name: SampleName = sample.parse().unwrap();
    rloom_run::replay(
        &config.run_directory(),
        config,
        &name,
        &Arc::new(Hub::from_env()),
        rebuild,
        &mut |_, _| {},
    )
}

fn rollouts(config: &Config, step: u64) -> PathBuf {
    config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst"))
}

/// Changes the lines of a step's rollouts.
fn tamper(path: &Path, change: impl Fn(&mut Value)) {
    let text = String::from_utf8(zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()).unwrap();
    let lines = text.lines().map(|line| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        change(&mut value);
        value.to_string() + "\n"
    });
    let text: String = lines.collect();
    std::fs::write(path, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
}

#[test]
fn samples_are_bitwise_identical_under_the_checkpoint_of_their_version() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = ["run.checkpoint_every=1", "sampling.temperature=0.7", "sampling.stop=['7']", CONTRAST];
    let config = trained(directory.path(), &overrides);
    for step in [1, 2, 4] {
        for sample in ["0", "3"] {
            let found = replay(&config, &format!("rl/{}/{sample}", (step - 1) * 6 + 1), false).unwrap();
            assert_eq!((found.verdict, found.found), (Verdict::Equal, FoundIn::Rollouts { step }));
            assert!(found.tokens > 0);
            let origin = found.versions.get(&(step - 1)).unwrap();
            assert_eq!(*origin == Origin::Start, step == 1, "{origin:?}");
        }
    }
}

#[test]
fn every_turn_of_an_episode_is_replayed() {
    // The second has an opponent that plays at random, the third one that is an agent as well.
    let several = "stage.rl.environment={kind='self_play',game='tic_tac_toe',max_turns=9}";
    for (game, turns, more) in
        [("guess", 4, &[][..]), ("tic_tac_toe", 9, &[]), ("tic_tac_toe", 9, &[several.to_owned()])]
    {
        let directory = tempfile::tempdir().unwrap();
        let own = [
            format!("data={{generator='{game}'}}"),
            format!("environment={{kind='{game}',max_turns={turns}}}"),
            "reward.components=[{kind='environment'}]".to_owned(),
            "eval.reward.components=[{kind='environment'}]".to_owned(),
            "model.new.max_positions=192".to_owned(),
            "stage.rl.steps=1".to_owned(),
        ];
        let overrides: Vec<&str> = own.iter().chain(more).map(String::as_str).collect();
        let config = trained(directory.path(), &overrides);
        let samples: Vec<Replay> =
            (0..6).map(|ticket| replay(&config, &format!("{ticket}/1"), false).unwrap()).collect();
        assert!(samples.iter().all(|sample| sample.verdict == Verdict::Equal), "{game}");
        // A turn has at most five tokens.
        assert!(samples.iter().any(|sample| sample.tokens > 5), "some have several turns");
    }
}

#[test]
fn a_greedy_baseline_is_replayed_greedily() {
    let directory = tempfile::tempdir().unwrap();
    let config = trained(directory.path(), &["stage.rl.method=remax", "stage.rl.steps=1"]);
    let size = config.stages[1].algorithm.group_size;
    assert_eq!(replay(&config, &format!("2/{size}"), false).unwrap().verdict, Verdict::Equal);
}

#[test]
fn a_version_without_a_checkpoint_is_named_or_retrained() {
    let directory = tempfile::tempdir().unwrap();
    let config =
        trained(directory.path(), &["run.keep_every=0", "run.keep_last=1", "eval.every=100", CONTRAST]);
    // Step 4 was sampled from version 3; checkpoints of the odd ones were never written.
    let error = replay(&config, "19/2", false).unwrap_err();
    let RunError::VersionMissing { missing, base, missing_batch: None, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((missing.as_slice(), *base), ([3].as_slice(), 0), "{error}");
    assert!(hint(&error).contains("--rebuild"), "{error}");
    let rebuilt = replay(&config, "19/2", true).unwrap();
    assert_eq!(rebuilt.verdict, Verdict::Equal);
    assert_eq!(rebuilt.versions, BTreeMap::from([(3, Origin::Rebuilt { from: 0 })]));
    // Training on other rewards gives other weights, so the version is really retrained.
    tamper(&rollouts(&config, 2), |line| {
        let value = &mut line["rewards"]["components"][0]["value"];
        *value = Value::from(1.0 - value.as_f64().unwrap());
    });
    assert_ne!(replay(&config, "19/2", true).unwrap().verdict, Verdict::Equal);
    std::fs::remove_file(rollouts(&config, 2)).unwrap();
    let error = replay(&config, "19/2", true).unwrap_err();
    assert!(matches!(error, RunError::VersionMissing { missing_batch: Some(1), .. }), "{error}");
}

#[test]
fn a_rebuild_starts_from_the_complete_state_of_a_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let overrides =
        ["stage.rl.algorithm.minibatches=2", "stage.rl.trainer.schedule=cosine", "eval.every=100", CONTRAST];
    let config = trained(directory.path(), &overrides);
    for (sample, version, from) in [("20/0", 3, 2), ("31/1", 5, 4)] {
        let rebuilt = replay(&config, sample, true).unwrap();
        assert_eq!(rebuilt.verdict, Verdict::Equal, "{sample}");
        assert_eq!(rebuilt.versions, BTreeMap::from([(version, Origin::Rebuilt { from })]));
    }
}

/// A version that was trained on pairs of samples is trained again on the same pairs.
#[test]
fn versions_trained_on_pairs_are_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = [
        "stage.rl.method=online_dpo",
        "stage.rl.algorithm={group_size=3,minibatches=2}",
        "run.keep_every=0",
        "run.keep_last=1",
        "eval.every=100",
        CONTRAST,
    ];
    let config = trained(directory.path(), &overrides);
    let text = zstd::decode_all(std::fs::File::open(rollouts(&config, 4)).unwrap()).unwrap();
    let first: Value =
        serde_json::from_str(String::from_utf8(text).unwrap().lines().next().unwrap()).unwrap();
    let name = format!("{}/2", first["key"]["ticket"]);
    let rebuilt = replay(&config, &name, true).unwrap();
    assert_eq!(rebuilt.verdict, Verdict::Equal);
    assert_eq!(rebuilt.versions, BTreeMap::from([(3, Origin::Rebuilt { from: 0 })]));
    // Other rewards choose other pairs.
    tamper(&rollouts(&config, 2), |line| {
        let value = &mut line["rewards"]["components"][0]["value"];
        *value = Value::from(1.0 - value.as_f64().unwrap());
    });
    assert_ne!(replay(&config, &name, true).unwrap().verdict, Verdict::Equal);
}

#[test]
fn a_tampered_record_is_located() {
    let directory = tempfile::tempdir().unwrap();
    let config = trained(directory.path(), &["stage.rl.steps=1"]);
    let path = rollouts(&config, 1);
    let whole = std::fs::read(&path).unwrap();
    let mine = |line: &Value| line["key"]["ticket"] == 2 && line["key"]["sample"] == 1;
    let first = |line: &Value| line["spans"][0]["range"]["end"].as_u64().unwrap() as usize;
    tamper(&path, |line| {
        if mine(line) {
            let logprob = line["logprobs"][0].as_f64().unwrap() as f32;
            line["logprobs"][0] = Value::from(f32::from_bits(logprob.to_bits() + 1));
        }
    });
    let Verdict::Different { first: Difference::Logprob { position, recorded, replayed, .. } } =
        replay(&config, "2/1", false).unwrap().verdict
    else {
        panic!("one changed bit of a log-probability is a difference");
    };
    assert_eq!(recorded.to_bits(), replayed.to_bits() + 1);
    assert_eq!(replay(&config, "2/0", false).unwrap().verdict, Verdict::Equal, "other samples are unchanged");
    std::fs::write(&path, whole).unwrap();
    tamper(&path, |line| {
        if mine(line) {
            let at = first(line);
            assert_eq!(at, position);
            line["tokens"][at] = Value::from(line["tokens"][at].as_u64().unwrap() ^ 1);
        }
    });
    let verdict = replay(&config, "2/1", false).unwrap().verdict;
    assert!(
        matches!(verdict, Verdict::Different { first: Difference::Token { position: at, .. } } if at == position),
        "{verdict:?}"
    );
}

/// Requests an immediate stop after a step.
struct StopAt(u64, StopFlag);

impl Observer for StopAt {
    fn observe(&mut self, line: &EventLine) {
        if line.stage == "rl" && line.step == self.0 && matches!(line.event, Event::Step { .. }) {
            self.1.request();
            self.1.request();
        }
    }
}

/// Warnings of a run.
#[derive(Default)]
struct Warnings(Vec<String>);

impl Observer for Warnings {
    fn observe(&mut self, line: &EventLine) {
        if let Event::Warning { message } = &line.event {
            self.0.push(message.clone());
        }
    }
}

#[test]
fn without_rollout_files_samples_and_batches_come_from_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let config = recipe::config(directory.path(), &["run.checkpoint_every=100", "eval.every=100", CONTRAST]);
    let stop = StopFlag::default();
    let ended = rloom_run::train(&config, &mut StopAt(4, stop.clone()), &stop);
    assert!(matches!(ended, Err(RunError::Stage(StageError::StoppedNow { .. }))));
    std::fs::remove_dir_all(config.run_directory().join("rollouts")).unwrap();
    std::fs::create_dir(config.run_directory().join("rollouts")).unwrap();
    let found = replay(&config, "13/2", true).unwrap();
    assert_eq!((found.verdict, found.found), (Verdict::Equal, FoundIn::Journal));
    let found_lineage = lineage(&config.run_directory(), &"13/2".parse().unwrap()).unwrap();
    assert_eq!(found_lineage.fate, Fate::Trained { step: 3, version: PolicyVersion(2), age: 0 });
    let task = found_lineage.task.unwrap();
    assert!(task.prompt.ends_with('=') && task.index.is_some(), "{task:?}");
    assert_eq!(found_lineage.samples[0].components.len(), 2);
    assert!(
        !found_lineage.samples[0].completion.starts_with("tokens"),
        "the tokenizer comes from a checkpoint"
    );
    // The finished stage before publishes the same weights, so the run resumes from its journal.
    let mut warnings = Warnings::default();
    rloom_run::resume(
        &config.run_directory(),
        &config,
        ResumeOptions::default(),
        &mut warnings,
        &StopFlag::default(),
    )
    .unwrap();
    assert!(warnings.0.is_empty(), "{:?}", warnings.0);
    assert_eq!(found.versions, BTreeMap::from([(2, Origin::Rebuilt { from: 0 })]));
}

fn hint(error: &RunError) -> String {
    miette::Diagnostic::help(error).map(|hint| hint.to_string()).unwrap_or_default()
}

#[test]
fn errors_name_what_exists_instead() {
    let directory = tempfile::tempdir().unwrap();
    let config = trained(directory.path(), &["stage.rl.steps=1"]);
    let error = replay(&config, "77/0", false).unwrap_err();
    assert!(matches!(error, RunError::NoSample { ticket: 77, .. }), "{error}");
    assert!(hint(&error).contains("the tickets 0-5"), "{error}");
    let error = replay(&config, "3/77", false).unwrap_err();
    assert!(hint(&error).contains("ticket 3 has the samples 0-"), "{error}");
    assert!(hint(&replay(&config, "warmup/0/0", false).unwrap_err()).contains("`rl`"));
    let error = replay(&config, "3", false).unwrap_err();
    assert!(error.to_string().contains("whole group") && hint(&error).contains("3/0"), "{error}");
    for wrong in ["a/0/", "/3", "rl/3/x", "1/2/3/4"] {
        assert!(wrong.parse::<SampleName>().is_err(), "{wrong}");
    }
}

/// Generates the rest of a turn of at most `limit` tokens after `prefix`, under the weights of a checkpoint.
fn generate(
    config: &Config,
    checkpoint: &str,
    key: SampleKey,
    before: &[u32],
    prefix: &[u32],
    limit: usize,
) -> Generation {
    let folder = config.run_directory().join("checkpoints").join(checkpoint);
    let policy = Policy::open(&folder, rloom_model::Dtype::F32).unwrap();
    let settings = RolloutSettings::default();
    let ctx = rloom_run::context(1).unwrap();
    let model = policy.model().unwrap();
    let engine = EmbeddedRolloutEngine::new(model.config(), &ctx, &settings, None).unwrap();
    let sampling = SamplingSettings { max_new_tokens: limit, ..SamplingSettings::default() };
    let random = RandomKey::for_sample(config.run.seed, 1, Purpose::Rollout, key);
    let mut request = GenerateRequest::new(random, before, sampling);
    request.prefix = prefix.to_vec();
    request.stop_tokens = policy.stop_tokens();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let weights = publish_model(PolicyId::MAIN, PolicyVersion(0), &model);
        engine.load(&weights, OnUpdate::Finish).await.unwrap();
        engine.generate(request).await.unwrap()
    })
}

/// Rewrites sample 2 of a group of step 2 so that its version changes after its second token. Returns the ticket.
fn change_version_within_a_turn(config: &Config) -> u64 {
    let found = Cell::new(None);
    tamper(&rollouts(config, 2), |line| {
        let mut sample: Trajectory = serde_json::from_value(line.clone()).unwrap();
        if found.get().is_some() || sample.key.sample != 2 {
            return;
        }
        let start = sample.prompt_tokens();
        let prompt = &sample.tokens[..start];
        let older = generate(config, "warmup-step-000004", sample.key, prompt, &[], 2);
        if older.stop != StopReason::Length {
            return;
        }
        let newer = generate(config, "rl-step-000001", sample.key, prompt, &older.tokens, 5);
        if newer.tokens.is_empty() {
            return;
        }
        sample.tokens.truncate(start);
        sample.tokens.extend(older.tokens.iter().chain(&newer.tokens));
        sample.logprobs = older.logprobs.into_iter().chain(newer.logprobs).collect();
        let end = sample.tokens.len();
        sample.spans[1].range = start..end;
        let version =
            |version, range| VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(version), range };
        sample.versions = vec![version(0, start..start + 2), version(1, start + 2..end)];
        for (name, value) in serde_json::to_value(&sample).unwrap().as_object().unwrap() {
            line[name] = value.clone();
        }
        found.set(Some(sample.key.ticket.0));
    });
    found.get().unwrap()
}

#[test]
fn a_turn_of_two_versions_is_replayed_under_both() {
    let directory = tempfile::tempdir().unwrap();
    let config = trained(directory.path(), &["stage.rl.steps=2", "run.checkpoint_every=1", CONTRAST]);
    let ticket = change_version_within_a_turn(&config);
    let found = replay(&config, &format!("{ticket}/2"), false).unwrap();
    assert_eq!(found.verdict, Verdict::Equal);
    assert_eq!(found.versions.keys().copied().collect::<Vec<_>>(), [0, 1]);
    // The same file, as if the run had kept old keys and values.
    let keep = ["stage.rl.schedule.max_staleness=1", "stage.rl.schedule.on_update='keep'"];
    let kept = recipe::config(directory.path(), &keep);
    let error = replay(&kept, &format!("{ticket}/2"), false).unwrap_err();
    assert!(matches!(error, RunError::NotRepeatable { reason: NotRepeatable::MixedVersions, .. }), "{error}");
    assert_eq!(replay(&kept, &format!("{ticket}/1"), false).unwrap().verdict, Verdict::Equal);
    // Under one version alone the sample is another one.
    tamper(&rollouts(&config, 2), |line| {
        if line["versions"].as_array().unwrap().len() == 2 {
            line["versions"][1]["version"] = Value::from(0);
        }
    });
    assert_ne!(replay(&config, &format!("{ticket}/2"), false).unwrap().verdict, Verdict::Equal);
}

#[test]
fn stale_samples_are_replayed_under_the_versions_that_sampled_them() {
    for schedule in ["{max_staleness=2}", "{max_staleness=2,pin_version=true}"] {
        let directory = tempfile::tempdir().unwrap();
        let schedule = format!("stage.rl.schedule={schedule}");
        let config =
            trained(directory.path(), &[&schedule, "run.checkpoint_every=3", "eval.every=100", CONTRAST]);
        let mut stale = 0;
        for ticket in [0, 7, 13, 20, 26, 32] {
            let found = replay(&config, &format!("{ticket}/1"), true).unwrap();
            assert_eq!(found.verdict, Verdict::Equal, "{schedule} {ticket}");
            let FoundIn::Rollouts { step } = found.found else { panic!("{ticket}") };
            stale += usize::from(found.versions.first_key_value().unwrap().0 + 1 < step);
        }
        assert!(stale > 0 || !schedule.contains("pin"), "{schedule}");
    }
}
