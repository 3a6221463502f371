//! Runs with several policies: trained together, frozen, or earlier versions as opponents.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod kills;
mod world;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_config::Config;
use rloom_core::PolicyId;
use rloom_hub::Hub;
use rloom_run::assembly::EmbeddedEngines;
use rloom_run::{EpisodeHook, Policy, RunError, RunInputs, StopFlag, Summary, context, train_on};
use rloom_store::checkpoint::CheckpointState;
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Metrics, Observer, read_events};
use world::{Digits, Rule};

const TEXT: &str = r#"
[run]
name = "pair"
seed = 5
threads = 2
checkpoint_every = 2
keep_every = 1

[model.new]
layers = 1
hidden_size = 32
heads = 2
intermediate_size = 32
max_positions = 24

[data]
generator = "arithmetic"
operations = ["+"]
max_digits = 1

[sampling]
max_new_tokens = 1

[reward]
components = [{ kind = "exact" }]

[trainer]
learning_rate = 1e-2

[[stage]]
name = "rl"
method = "rloo"
steps = 6
groups_per_batch = 6
algorithm.group_size = 8
"#;

/// The recipe with further tables and overrides, for a run below `directory`.
fn config(directory: &Path, more: &str, overrides: &[&str]) -> Config {
    let parent = format!("run.directory={}", directory.display());
    let all: Vec<&str> = std::iter::once(parent.as_str()).chain(overrides.iter().copied()).collect();
    let agents = if more.is_empty() { "" } else { AGENTS };
    Config::from_text("pair.toml", &format!("{agents}{more}\n{TEXT}"), &all)
        .map_err(|errors| errors.to_string())
        .unwrap()
}

/// Starts or resumes a run in which a second agent is played by the policy `policy`.
fn train(
    config: &Config,
    game: (&str, usize, Rule),
    observer: &mut dyn Observer,
) -> Result<Summary, RunError> {
    train_until(config, game, observer, &StopFlag::default())
}

/// As [`train`], until it is stopped.
fn train_until(
    config: &Config,
    (policy, rounds, rule): (&str, usize, Rule),
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    let ctx = context(config.run.threads).unwrap();
    let main = Policy::initial(config, &Hub::from_env()).unwrap();
    let policy = policy.to_owned();
    let hook =
        EpisodeHook::new(move |settings| settings.world = Arc::new(Digits::new(&policy, rounds, rule)));
    let inputs = RunInputs {
        episode_hook: Some(hook),
        ..RunInputs::new(&main, Arc::new(Hub::from_env()), ctx.threads(), config.run.seed)
    };
    let engines = EmbeddedEngines::new(&main, config, ctx);
    train_on(config, &engines, &inputs, observer, stop)
}

/// Metrics of each step.
fn steps(config: &Config) -> Vec<Metrics> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let metrics = lines.into_iter().filter_map(|line| match line.event {
        Event::Step { metrics } => Some(metrics),
        _ => None,
    });
    metrics.collect()
}

fn mean(steps: &[Metrics], name: &str) -> f64 {
    steps.iter().map(|metrics| metrics[name]).sum::<f64>() / steps.len() as f64
}

fn checkpoint(config: &Config, step: u64) -> PathBuf {
    config.run_directory().join(format!("checkpoints/rl-step-{step:06}"))
}

fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).unwrap()
}

/// Agents that name the policy; the tests play them in a game of their own.
const AGENTS: &str = "[environment]\nkind = 'chain'\norder = ['first', 'second']\nagents = { first = {}, second = { policy = 'other' } }\n";
const TRAINED: &str = "[policies.other]";

/// Two policies with weights of their own share nothing but the reward.
#[test]
fn two_policies_learn_their_halves_of_a_game_from_a_joint_reward() {
    let learn = |rule| {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), TRAINED, &["stage.rl.steps=30", "run.checkpoint_every=0"]);
        train(&config, ("other", 1, rule), &mut ()).unwrap();
        let steps = steps(&config);
        let last = &steps[steps.len() - 5..];
        assert!(steps.iter().all(|metrics| metrics.contains_key("policy/other/loss")));
        let metrics = ["environment/even", "environment/odd"];
        (metrics.map(|name| mean(&steps[..3], name)), metrics.map(|name| mean(last, name)))
    };
    let (before, after) = learn(Rule::Together);
    assert!(
        before.iter().all(|rate| *rate < 0.6) && after.iter().all(|rate| *rate > 0.85),
        "{before:?} {after:?}"
    );
    let (before, after) = learn(Rule::Chance);
    assert!(after.iter().all(|rate| *rate < 0.75), "{before:?} {after:?}");
}

/// A policy that names no model begins with the weights of the main one; `"new"` has others.
#[test]
fn policies_begin_with_the_weights_of_the_run_or_with_others() {
    let directory = tempfile::tempdir().unwrap();
    for (name, table, is_same) in
        [("same", "[policies.other]", true), ("new", "[policies.other]\nmodel = 'new'", false)]
    {
        let overrides = [
            format!("run.name={name}"),
            "stage.rl.steps=1".to_owned(),
            "trainer.learning_rate=1e-30".to_owned(),
        ];
        let config = config(directory.path(), table, &overrides.each_ref().map(String::as_str));
        train(&config, ("other", 1, Rule::Together), &mut ()).unwrap();
        let folder = checkpoint(&config, 1);
        assert_eq!(weights(&folder) == weights(&folder.join("policies/other")), is_same, "{name}");
    }
}

#[test]
fn frozen_weights_stay_bit_equal_and_have_no_optimizer() {
    let directory = tempfile::tempdir().unwrap();
    let before = config(directory.path(), "", &["run.name=before", "stage.rl.steps=2"]);
    train(&before, ("main", 1, Rule::Together), &mut ()).unwrap();
    let folder = checkpoint(&before, 2);
    let table = format!("[policies.other]\nmodel = '{}'\nfrozen = true", folder.display());
    // Opponents of an older version than the limit on staleness allows would be dropped if they had an age.
    let config = config(directory.path(), &table, &["schedule.max_staleness=1"]);
    train(&config, ("other", 1, Rule::Together), &mut ()).unwrap();
    let frozen = weights(&folder);
    let mut trained = BTreeSet::new();
    for step in [2, 4, 6] {
        let own = checkpoint(&config, step);
        assert_eq!(weights(&own.join("policies/other")), frozen, "step {step}");
        assert!(!own.join("policies/other/trainer").exists());
        trained.insert(weights(&own));
    }
    assert_eq!(trained.len(), 3, "the main policy is trained");
    let steps = steps(&config);
    assert_eq!(steps.len(), 6);
    for metrics in steps {
        assert!(metrics["off_policy/staleness_max"] <= 1.0 && !metrics.contains_key("policy/other/loss"));
    }
    let (name, hub) = ("rl/0/0".parse().unwrap(), Arc::new(Hub::from_env()));
    let replayed = rloom_run::replay(&config.run_directory(), &config, &name, &hub, false, &mut |_, _| {});
    assert!(replayed.unwrap_err().to_string().contains("the run has several policies"));
}

/// The segments that a step has trained on.
fn logged(config: &Config, step: u64) -> Vec<LoggedTrajectory> {
    let path = config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
    let bytes = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The policies that have sampled the segments of the second agent in a step, with their versions.
fn opponents(config: &Config, step: u64) -> BTreeSet<(u32, u64)> {
    let spans = logged(config, step).into_iter().flat_map(|segment| segment.trajectory.versions);
    let others = spans.filter(|span| span.policy != PolicyId::MAIN);
    others.map(|span| (span.policy.0, span.version.0)).collect()
}

const LEAGUE: &str = "[policies.other]\nleague = { every = 2, size = 2 }";

#[test]
fn groups_play_earlier_versions_of_the_policy() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), LEAGUE, &["stage.rl.steps=8"]);
    train(&config, ("other", 1, Rule::Contest), &mut ()).unwrap();
    let seen: Vec<BTreeSet<(u32, u64)>> = (1..=8).map(|step| opponents(&config, step)).collect();
    // Batches 0 and 1 play the start, later ones the two newest versions of 0, 2, 4 and 6.
    assert_eq!((&seen[0], &seen[1]), (&[(1, 0)].into(), &[(1, 0)].into()));
    let of = |steps: &[usize]| steps.iter().flat_map(|&step| seen[step].clone()).collect::<BTreeSet<_>>();
    assert_eq!(of(&[2, 3]), [(1, 0), (2, 2)].into());
    assert_eq!(of(&[4, 5]), [(1, 4), (2, 2)].into());
    assert_eq!(of(&[6, 7]), [(1, 4), (2, 6)].into());
    // What it plays are the weights of those versions.
    let last = checkpoint(&config, 8);
    assert_eq!(weights(&last.join("policies/other/0")), weights(&last));
    assert_eq!(weights(&last.join("policies/other/1")), weights(&checkpoint(&config, 6)));
    let metrics = steps(&config).pop().unwrap();
    assert!(metrics.contains_key("policy/other/win_rate"), "{metrics:?}");
    assert_eq!(metrics["policy/other/versions"], 2.0);
}

/// Requests a stop after a step.
struct StopAt(u64, StopFlag);

impl Observer for StopAt {
    fn observe(&mut self, line: &EventLine) {
        if line.step == self.0 && matches!(line.event, Event::Step { .. }) {
            self.1.request();
        }
    }
}

/// Groups that have begun when a run stops keep the opponents that they have drawn, though more versions are kept and the
/// results of more groups count when it continues.
#[test]
fn groups_in_flight_keep_their_opponents_when_a_run_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let table = "[policies.other]\nleague = { every = 1, size = 9, draw = 'win_rate' }";
    // One completion at a time: most groups are in flight when a batch is complete.
    let overrides = ["stage.rl.steps=7", "schedule.max_staleness=2", "rollout.max_batch=1"];
    let config = config(directory.path(), table, &overrides);
    let game = ("other", 2, Rule::Contest);
    let stop = StopFlag::default();
    train_until(&config, game, &mut StopAt(4, stop.clone()), &stop).unwrap();
    let state = CheckpointState::load(&checkpoint(&config, 4)).unwrap();
    let drawn = state.leagues["other"].drawn.clone();
    assert!(drawn.len() > 3, "{drawn:?}");
    train(&config, game, &mut ()).unwrap();
    let last = CheckpointState::load(&checkpoint(&config, 7)).unwrap();
    assert!(last.leagues["other"].drawn.is_empty(), "no group is left");
    let mut compared = 0;
    for trajectory in (5..=7).flat_map(|step| logged(&config, step)).map(|line| line.trajectory) {
        let Some(drawn) = drawn.get(&trajectory.key.ticket) else { continue };
        for span in trajectory.versions.iter().filter(|span| span.policy != PolicyId::MAIN) {
            assert_eq!(span.policy, *drawn, "group {}", trajectory.key.ticket.0);
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn unknown_policies_and_models_with_other_tokens_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let pair = config(directory.path(), TRAINED, &[]);
    let error = train(&pair, ("othr", 1, Rule::Together), &mut ()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("agent `second`") && text.contains("policy \"othr\""), "{text}");
    assert!(text.contains("did you mean \"other\"? known are"), "{text}");

    let subtraction = ["run.name=before", "stage.rl.steps=1", "data.operations=['+','-']"];
    let before = config(directory.path(), "", &subtraction);
    train(&before, ("main", 1, Rule::Chance), &mut ()).unwrap();
    let table = format!("[policies.other]\nmodel = '{}'", checkpoint(&before, 1).display());
    let pair = config(directory.path(), &table, &["run.name=tokens"]);
    let error = train(&pair, ("other", 1, Rule::Together), &mut ()).unwrap_err().to_string();
    assert!(error.contains("policy `other` cannot use the model") && error.contains("token"), "{error}");
}
