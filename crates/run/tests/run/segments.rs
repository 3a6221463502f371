//! Runs whose episodes have several segments.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_config::Config;
use rloom_core::{Author, Trajectory, metric};
use rloom_hub::Hub;
use rloom_run::lineage::{SampleName, lineage};
use rloom_run::{Difference, StopFlag, Verdict};
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Observer};

use crate::recipe;

/// A guessing game whose history is limited.
fn config(directory: &Path, history: &str) -> Config {
    let environment = format!("environment={{kind='guess',max_turns=5,history={history}}}");
    let overrides = [
        "data={generator='guess'}",
        &environment,
        "reward.components=[{kind='environment'},{kind='random'}]",
        "eval.reward.components=[{kind='environment'}]",
        "model.new.max_positions=96",
        "sampling.max_new_tokens=12",
        "stage.rl.steps=2",
    ];
    recipe::config(directory, &overrides)
}

fn path(config: &Config, step: u64) -> PathBuf {
    config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst"))
}

fn rollouts(config: &Config, step: u64) -> Vec<LoggedTrajectory> {
    let bytes = zstd::decode_all(std::fs::File::open(path(config, step)).unwrap()).unwrap();
    String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Metrics of the steps.
#[derive(Default)]
struct Steps(Vec<BTreeMap<String, f64>>);

impl Observer for Steps {
    fn observe(&mut self, line: &EventLine) {
        if let (Event::Step { metrics }, "rl") = (&line.event, line.stage.as_str()) {
            self.0.push(metrics.clone());
        }
    }
}

#[test]
fn every_segment_of_an_episode_is_trained_and_replayed() {
    for history in ["{window=1}", "{summary={limit=8,request='?'}}"] {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), history);
        let mut steps = Steps::default();
        rloom_run::train(&config, &mut steps, &StopFlag::default()).unwrap();

        let lines = rollouts(&config, 1);
        let last = lines.iter().map(|line| line.trajectory.key).max_by_key(|key| key.segment).unwrap();
        assert!(last.segment > 0, "{history}");
        let episodes = 6.0 * 4.0;
        assert_eq!(steps.0[0][metric::SEGMENTS], lines.len() as f64 / episodes, "{history}");
        for Trajectory { key, spans, .. } in lines.iter().map(|line| &line.trajectory) {
            // What the environment answered last begins what a further segment adds.
            assert_eq!(spans[0].author, Author::Prompt);
            assert_eq!(spans[1].author == Author::Environment, key.segment > 0, "{key}");
        }

        let name: SampleName = format!("rl/{}/{}", last.ticket.0, last.sample).parse().unwrap();
        let hub = Arc::new(Hub::from_env());
        let replay =
            || rloom_run::replay(&config.run_directory(), &config, &name, &hub, false, &mut |_, _| {});
        let found = replay().unwrap();
        assert_eq!(found.verdict, Verdict::Equal, "{history}");
        let own = |line: &&LoggedTrajectory| {
            (line.trajectory.key.ticket, line.trajectory.key.sample) == (last.ticket, last.sample)
        };
        let written: usize = lines.iter().filter(own).map(|line| line.trajectory.policy_tokens()).sum();
        assert_eq!(found.tokens, written);
        let shown = lineage(&config.run_directory(), &name).unwrap();
        let segments: Vec<u32> = shown.samples.iter().map(|sample| sample.random.segment).collect();
        assert_eq!(segments, (0..=last.segment).collect::<Vec<_>>());

        // Only the last segment differs.
        let changed = lines.into_iter().map(|mut line| {
            if line.trajectory.key == last {
                line.trajectory.logprobs[0] -= 0.25;
            }
            serde_json::to_string(&line).unwrap() + "\n"
        });
        let text: String = changed.collect();
        std::fs::write(path(&config, 1), zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
        let verdict = replay().unwrap().verdict;
        let differs = matches!(&verdict, Verdict::Different { first: Difference::Logprob { segment, .. } }
            if *segment as u32 == last.segment);
        assert!(differs, "{verdict:?}");
    }
}

#[test]
fn a_summary_beyond_the_context_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), "{summary={limit=96,request='?'}}");
    let error = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap_err().to_string();
    assert!(error.contains("`environment.history.summary.limit` is 96"), "{error}");
}
