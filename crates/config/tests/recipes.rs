//! The recipes of the repository, and what becomes of them.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use rloom_config::{Config, ModelSource, Start};
use rloom_env::{EnvironmentSettings, GuessSettings};

fn recipe(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(name);
    Config::load(&[path], &[] as &[&str]).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Running the resolved configuration again repeats the run.
fn reads_back(config: &Config) {
    let text = config.to_toml();
    let again =
        Config::from_text("config.toml", &text, &[] as &[&str]).unwrap_or_else(|e| panic!("{text}\n{e}"));
    assert_eq!(*config, again, "{text}");
    assert_eq!(text, again.to_toml());
}

fn leaves(value: &toml::Value) -> usize {
    match value {
        toml::Value::Table(table) => table.values().map(leaves).sum(),
        _ => 1,
    }
}

#[test]
fn recipes_are_fine_and_read_back() {
    for name in ["arithmetic.toml", "gsm8k.toml", "guess.toml"] {
        reads_back(&recipe(name));
    }
}

#[test]
fn the_arithmetic_recipe_resolves() {
    let config = recipe("arithmetic.toml");
    assert_eq!(config.run.name, "arithmetic");
    assert_eq!(config.stages[0].start, Start::Model);
    assert_eq!(config.stages[1].start, Start::Stage(0));
    let ModelSource::New { tokenizer, .. } = &config.model else { panic!("made from nothing") };
    assert!(tokenizer.alphabet.contains("+0123456789="));
    let eval = config.eval.as_ref().unwrap();
    assert!(eval.sampling.is_greedy() && eval.tasks >= 500);
    assert_eq!(
        eval.sampling.max_new_tokens,
        config.stages[1].rollout.as_ref().unwrap().sampling.max_new_tokens
    );
}

#[test]
fn the_guess_recipe_is_a_game_in_every_stage_and_in_evaluation() {
    let config = recipe("guess.toml");
    let game = EnvironmentSettings::Guess(GuessSettings { max_turns: 5 });
    let environments = config.stages.iter().map(|s| s.environment);
    assert!(environments.chain(config.eval.as_ref().map(|e| e.environment)).all(|e| e == game));
    let ModelSource::New { tokenizer, .. } = &config.model else { panic!("made from nothing") };
    assert_eq!(tokenizer.alphabet, "-0123456789:<>?");
}

#[test]
fn a_stage_has_about_a_hundred_keys() {
    for name in ["arithmetic.toml", "gsm8k.toml", "guess.toml"] {
        let text: toml::Value = toml::from_str(&recipe(name).to_toml()).unwrap();
        let stages = text["stage"].as_array().unwrap();
        let longest = stages.iter().map(leaves).max().unwrap();
        let shared: usize =
            ["run", "model", "tokenizer", "eval"].iter().filter_map(|k| text.get(k)).map(leaves).sum();
        assert!(shared + longest <= 110, "{name}: {shared} + {longest} keys");
    }
}
