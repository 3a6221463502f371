//! Self-play: players become harder to exploit and win more, and do not if they want to lose.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flipped;
mod kuhn_poker;

use std::path::Path;
use std::sync::Arc;

use rloom_config::Config;
use rloom_hub::Hub;
use rloom_run::assembly::EmbeddedEngines;
use rloom_run::{EpisodeHook, Policy, RunInputs, StopFlag, context, train_on};
use rloom_telemetry::{Event, Metrics, read_events};

use crate::learning::{SIGNIFICANT, config, z};
use flipped::Flipped;
use kuhn_poker::{GAME_VALUE, Strategy};

const KUHN_POKER: &str = include_str!("../../../../../recipes/self-play-kuhn-poker.toml");
const TWO_POLICIES: &str = include_str!("../../../../../recipes/two-policies.toml");
const TIC_TAC_TOE: &str = include_str!("../../../../../recipes/self-play-tic-tac-toe.toml");

/// Whether agents want to win.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    Win,
    Lose,
}

/// Trains with the rewards of the agents, or with the opposite ones.
fn train(config: &Config, aim: Aim) {
    let ctx = context(config.run.threads).unwrap();
    let main = Policy::initial(config, &Hub::from_env()).unwrap();
    let hook = EpisodeHook::new(move |settings| {
        if aim == Aim::Lose && settings.world.agents().len() == 2 {
            settings.world = Arc::new(Flipped(Arc::clone(&settings.world)));
        }
    });
    let inputs = RunInputs {
        episode_hook: Some(hook),
        ..RunInputs::new(&main, Arc::new(Hub::from_env()), ctx.threads(), config.run.seed)
    };
    train_on(config, &EmbeddedEngines::new(&main, config, ctx), &inputs, &mut (), &StopFlag::default())
        .unwrap();
}

/// The strategies of a run of a recipe of Kuhn poker, at its first and its last step.
fn strategies(recipe: &str, directory: &Path, aim: Aim, steps: u64) -> [Strategy; 2] {
    let (name, steps_set) = (format!("run.name={aim:?}"), format!("stage.rl.steps={steps}"));
    let config = config(recipe, directory, &[&name, &steps_set]);
    train(&config, aim);
    <[Strategy; 2]>::try_from(Strategy::of_run(&config, &[1, steps])).unwrap()
}

#[test]
fn kuhn_poker_becomes_harder_to_exploit_unless_the_players_want_to_lose() {
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = strategies(KUHN_POKER, directory.path(), Aim::Win, 200);
    let exploited = [&before, &after].map(Strategy::exploitability);
    assert!(exploited[1] < 0.5 * exploited[0], "{exploited:?}");
    let off = [&before, &after].map(|strategy| (strategy.value() - GAME_VALUE).abs());
    assert!(off[1] < 0.5 * off[0], "{off:?}");
    let lost = strategies(KUHN_POKER, directory.path(), Aim::Lose, 100);
    let exploited = lost.each_ref().map(Strategy::exploitability);
    assert!(exploited[1] > 0.9 * exploited[0], "{exploited:?}");
}

#[test]
fn two_policies_become_harder_to_exploit() {
    let directory = tempfile::tempdir().unwrap();
    let found = strategies(TWO_POLICIES, directory.path(), Aim::Win, 80);
    let exploited = found.each_ref().map(Strategy::exploitability);
    assert!(exploited[1] < 0.8 * exploited[0], "{exploited:?}");
}

/// Metrics of the first and the last evaluation of stage `rl`.
fn evaluations(config: &Config) -> [Metrics; 2] {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let found: Vec<Metrics> = lines
        .into_iter()
        .filter(|line| line.stage == "rl")
        .filter_map(|line| match line.event {
            Event::Evaluation { metrics, .. } => Some(metrics),
            _ => None,
        })
        .collect();
    [found[0].clone(), found[found.len() - 1].clone()]
}

#[test]
fn players_of_tic_tac_toe_win_more_unless_they_want_to_lose() {
    let directory = tempfile::tempdir().unwrap();
    let short = [
        "stage.warmup.steps=100",
        "stage.warmup.eval_every=0",
        "stage.rl.steps=25",
        "stage.rl.groups_per_batch=256",
        // A few steps learn more from opponents that rarely try bad moves.
        "stage.rl.algorithm.entropy_coef=0.1",
        "stage.rl.trainer.warmup_steps=3",
        "stage.sharpen.steps=1",
        "stage.sharpen.groups_per_batch=16",
        "stage.openings.steps=1",
        "stage.openings.groups_per_batch=16",
        "eval.every=1000",
        "eval.tasks=512",
        // Held-out games are played as X and, in the set, as O.
        "eval.data={ generator = \"tic_tac_toe\" }",
        "eval.sets=[{ name = \"o\", data = { generator = \"tic_tac_toe\", seat = \"second\" } }]",
    ];
    let learn = |aim: Aim| {
        let name = format!("run.name={aim:?}");
        let config = config(TIC_TAC_TOE, directory.path(), &[&[name.as_str()][..], &short].concat());
        train(&config, aim);
        evaluations(&config)
            .map(|metrics| f64::midpoint(metrics["eval/accuracy"], metrics["eval_set/o/accuracy"]))
    };
    let [before, after] = learn(Aim::Win);
    assert!(z(before, after, 1024.0) > SIGNIFICANT, "{before} → {after}");
    let [start, end] = learn(Aim::Lose);
    assert_eq!(start, before, "the warm start is the same");
    assert!(z(start, end, 1024.0) < -SIGNIFICANT, "who want to lose: {start} → {end}");
}

/// Figures of the whole recipes, for three seeds.
#[test]
#[ignore = "takes minutes: `cargo test --release --test run whole_recipes -- --ignored --nocapture`"]
fn whole_recipes_of_kuhn_poker_come_close_to_an_equilibrium() {
    for (name, recipe) in [("self-play-kuhn-poker", KUHN_POKER), ("two-policies", TWO_POLICIES)] {
        for seed in 1..=3 {
            let directory = tempfile::tempdir().unwrap();
            let config = config(recipe, directory.path(), &[&format!("run.seed={seed}")]);
            train(&config, Aim::Win);
            let last = config.stages.last().unwrap().steps;
            for (step, strategy) in [1, last / 4, last / 2, last]
                .iter()
                .zip(Strategy::of_run(&config, &[1, last / 4, last / 2, last]))
            {
                let (exploited, value) = (strategy.exploitability(), strategy.value());
                eprintln!(
                    "{name}, seed {seed}, step {step}: exploitability {exploited:.3}, value {value:.3}"
                );
            }
        }
    }
}
