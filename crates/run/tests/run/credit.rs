//! Credit of several agents that answer at the same time, in whole runs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use rloom_config::Config;
use rloom_core::{Purpose, RandomKey};
use rloom_hub::Hub;
use rloom_reward::{Assessment, Completion, JudgeError, OnError, Reward, Scorer};
use rloom_run::assembly::EmbeddedEngines;
use rloom_run::{EpisodeHook, Policy, RunInputs, StopFlag, context, train_on};
use rloom_telemetry::{Event, EventLine, Observer, read_events};

/// Two agents write a digit each; none knows that of the other.
const TEXT: &str = r#"
[run]
name = "digits"
seed = 5
threads = 2
checkpoint_every = 2

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

[environment]
kind = "debate"
rounds = 1
conclusion = "all"
separator = "|"
agents = { a = { prompt = "1+", policy = "other" }, b = { prompt = "2+" } }

[policies.other]

[sampling]
max_new_tokens = 1

[reward]
components = [{ kind = "exact" }]

[trainer]
learning_rate = 1e-2
weight_decay = 0.0

[[stage]]
name = "rl"
method = "grpo"
steps = 40
groups_per_batch = 6
algorithm.group_size = 8
"#;

/// What the digits of the agents are worth.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Game {
    /// 1 if their sum is a multiple of three.
    Sum,
    /// 1 for an even digit of the second agent.
    Second,
    /// By chance, whatever they write.
    Chance,
}

impl Reward for Game {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        // The first agent can write the separator, too.
        let digits = completion.text.rsplit_once('|').map(|(a, b)| (a.parse::<u32>(), b.parse::<u32>()));
        let won = match (self, digits) {
            (Self::Chance, _) => {
                RandomKey::for_sample(9, 0, Purpose::Init, completion.key).stream().uniform(0) < 0.3
            }
            (Self::Sum, Some((Ok(a), Ok(b)))) => (a + b) % 3 == 0,
            (Self::Second, Some((_, Ok(b)))) => b % 2 == 0,
            _ => false,
        };
        Ok(Assessment::value(f64::from(won)))
    }
}

/// Requests a stop after each step.
struct StopAfterStep(StopFlag);

impl Observer for StopAfterStep {
    fn observe(&mut self, line: &EventLine) {
        if matches!(line.event, Event::Step { .. }) {
            self.0.request();
        }
    }
}

/// Trains with a game as the reward, and reports how often the sum is right.
fn train(directory: &Path, game: Game, advantage: &str, overrides: &[&str]) -> Config {
    let (config, interrupted) =
        train_until(directory, game, advantage, overrides, &mut (), &StopFlag::default());
    assert!(!interrupted);
    config
}

/// Groups are sampled ahead of a step, so that some are incomplete when it ends. They then have a single policy.
const PINNED: &str = "schedule.pin_version=true";

/// Starts or resumes a run. Returns true if it was interrupted.
fn train_until(
    directory: &Path,
    game: Game,
    advantage: &str,
    overrides: &[&str],
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> (Config, bool) {
    let parent = format!("run.directory={}", directory.display());
    let advantage = format!("stage.rl.algorithm.advantage={advantage}");
    let all: Vec<&str> = [&parent[..], &advantage].into_iter().chain(overrides.iter().copied()).collect();
    let mut text = TEXT.to_owned();
    if overrides.contains(&PINNED) {
        text = text.replace(", policy = \"other\"", "").replace("[policies.other]", "");
    }
    let config = Config::from_text("digits.toml", &text, &all).map_err(|errors| errors.to_string()).unwrap();
    let ctx = context(config.run.threads).unwrap();
    let main = Policy::initial(&config, &Hub::from_env()).unwrap();
    let hook = EpisodeHook::new(move |settings| {
        let component =
            |name: &str, weight, game: Game| (name.to_owned(), weight, Box::new(game) as Box<dyn Reward>);
        let components = vec![component("game", 1.0, game), component("sum", 0.0, Game::Sum)];
        settings.scorer = Arc::new(Scorer::from_rewards(components, OnError::Fatal));
    });
    let inputs = RunInputs {
        episode_hook: Some(hook),
        ..RunInputs::new(&main, Arc::new(Hub::from_env()), ctx.threads(), config.run.seed)
    };
    let engines = EmbeddedEngines::new(&main, &config, ctx);
    let summary = train_on(&config, &engines, &inputs, observer, stop).unwrap();
    (config, summary.interrupted)
}

/// How often the sum was right in the first and the last steps.
fn sums(config: &Config) -> (f64, f64) {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let rate = |line: EventLine| match line.event {
        Event::Step { metrics } => Some(metrics["reward/sum"]),
        _ => None,
    };
    let rates: Vec<f64> = lines.into_iter().filter_map(rate).collect();
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    (mean(&rates[..4]), mean(&rates[rates.len() - 5..]))
}

const ALIGNED: &str = "magrpo";
const CROSS: &str = "{kind='magrpo',pairing='cross'}";
const COUNTERFACTUAL: &str = "counterfactual";
const JOINT: &str = "joint_gae";

/// If one of them did not learn, the sum would be right in a third of the episodes.
#[test]
fn agents_learn_from_a_joint_reward_and_not_from_chance() {
    let directory = tempfile::tempdir().unwrap();
    for (name, advantage) in [("aligned", ALIGNED), ("cross", CROSS), ("replaced", COUNTERFACTUAL)] {
        let run = format!("run.name={name}");
        let (before, after) =
            sums(&train(directory.path(), Game::Sum, advantage, &[&run, "run.checkpoint_every=0"]));
        assert!(before < 0.45 && after > 0.8, "{name}: {before} {after}");
    }
    let chance = train(directory.path(), Game::Chance, ALIGNED, &["run.checkpoint_every=0"]);
    let (before, after) = sums(&chance);
    assert!(after < 0.5, "{before} {after}");
}

/// Where only the second agent's digit counts, combinations give the first one no gradient at all: its policy keeps its bytes.
/// Aligned episodes give it that of the second.
#[test]
fn an_agent_that_changes_nothing_is_not_trained_where_turns_are_combined() {
    let directory = tempfile::tempdir().unwrap();
    for (name, advantage, is_trained) in
        [("aligned", ALIGNED, true), ("cross", CROSS, false), ("replaced", COUNTERFACTUAL, false)]
    {
        let run = format!("run.name={name}");
        let config = train(directory.path(), Game::Second, advantage, &[&run, "stage.rl.steps=4"]);
        let weights = |step: u64, folder: &str| {
            let checkpoint = config.run_directory().join(format!("checkpoints/rl-step-{step:06}"));
            std::fs::read(checkpoint.join(folder).join("model.safetensors")).unwrap()
        };
        let [first, second] = ["policies/other", ""].map(|folder| weights(2, folder) != weights(4, folder));
        assert_eq!((first, second), (is_trained, true), "{name}");
    }
}

/// The critic reads what both policies have read and written, over two rounds.
#[test]
fn two_policies_learn_with_a_critic_of_what_both_know() {
    let directory = tempfile::tempdir().unwrap();
    let two = "environment={kind='debate',rounds=2,conclusion='all',separator='|',agents={a={prompt='1+',policy='other',\
               revise='1{own}{others}+'},b={prompt='2+',revise='2{own}{others}+'}}}";
    let config =
        train(directory.path(), Game::Sum, JOINT, &[two, "run.checkpoint_every=0", "stage.rl.steps=60"]);
    let (before, after) = sums(&config);
    assert!(before < 0.45 && after > 0.8, "{before} {after}");
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let losses = lines.into_iter().filter_map(|line| match line.event {
        Event::Step { metrics } => Some((metrics["value/loss"], metrics.contains_key("policy/other/loss"))),
        _ => None,
    });
    assert!(losses.into_iter().all(|(loss, other)| loss.is_finite() && other));
}

/// Rewards of combinations are pending until a group is complete, and a critic has a state of its own.
#[test]
fn runs_that_are_stopped_after_each_step_end_in_the_same_bytes() {
    for advantage in [CROSS, COUNTERFACTUAL, JOINT] {
        let short = ["stage.rl.steps=4", "run.checkpoint_every=1", "schedule.max_staleness=2", PINNED];
        let result = |config: &Config| -> Vec<Vec<u8>> {
            let last = config.run_directory().join("checkpoints/rl-step-000004");
            let files = ["model.safetensors", "trainer/optimizer.safetensors"];
            files.map(|file| std::fs::read(last.join(file)).unwrap()).into()
        };
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let undisturbed = train(one.path(), Game::Sum, advantage, &short);
        let mut stops = 0;
        let stopped = loop {
            let stop = StopFlag::default();
            let mut observer = StopAfterStep(stop.clone());
            let (config, interrupted) =
                train_until(other.path(), Game::Sum, advantage, &short, &mut observer, &stop);
            if !interrupted {
                break config;
            }
            stops += 1;
        };
        assert!(stops > 1, "{advantage}");
        assert!(result(&stopped) == result(&undisturbed), "{advantage}: other bytes");
    }
}
