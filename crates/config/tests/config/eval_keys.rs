//! Every key of the tables of `[eval]`: read, or refused because it has no effect.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use crate::recipe::BASE;
use rloom_config::{Code, Config};
use rloom_data::{ArithmeticSettings, DataSettings};
use rloom_engine::{RolloutQuantization, RolloutSettings, SamplingSettings};
use serde::Serialize;

/// Only stages that sample evaluate.
const SAMPLING_STAGES: &str = "stage.warmup.eval_every=0";

fn load(overrides: &[&str]) -> Result<Config, (Vec<Code>, String)> {
    let long = "model.new.max_positions=256";
    let overrides: Vec<&str> = std::iter::once(long).chain(overrides.iter().copied()).collect();
    Config::from_text("base.toml", BASE, &overrides).map_err(|errors| {
        let codes = errors.problems.iter().map(|problem| problem.code).collect();
        (codes, errors.to_string())
    })
}

/// Sets each key of `[eval.TABLE]` to the given value and checks that it is read or refused.
fn check(table: &str, keys: &[(&str, &str, bool)], others: &[&str]) {
    for (key, value, is_read) in keys {
        let set = format!("eval.{table}.{key}={value}");
        let all: Vec<&str> = others.iter().copied().chain([set.as_str()]).collect();
        match load(&all) {
            Ok(config) => {
                assert!(is_read, "{set} with {others:?} has no effect");
                let text = config.to_toml();
                let again = Config::from_text("config.toml", &text, &[] as &[&str]);
                assert_eq!(config, again.unwrap_or_else(|errors| panic!("{text}\n{errors}")), "{set}");
            }
            Err((codes, text)) => {
                assert!(!is_read, "{set} with {others:?}: {text}");
                assert_eq!(codes, [Code::Unread], "{text}");
                assert!(text.contains(&format!("nothing reads `eval.{table}.{key}`")), "{text}");
                assert!(text.contains("hint: "), "{set}: {text}");
            }
        }
    }
}

/// Names of the fields of some settings.
fn names<T: Serialize>(settings: &T) -> BTreeSet<String> {
    toml::Table::try_from(settings).unwrap().keys().cloned().collect()
}

fn listed(keys: &[(&str, &str, bool)]) -> BTreeSet<String> {
    keys.iter().map(|(key, _, _)| (*key).to_owned()).collect()
}

const ROLLOUT: [(&str, &str, bool); 9] = [
    ("threads", "2", false),
    ("lanes", "2", false),
    ("kv_memory_mib", "64", false),
    ("max_batch", "8", false),
    ("prefill_chunk", "32", false),
    ("speculation", "'ngram'", false),
    ("quantize", "'int8'", false),
    ("timeout_seconds", "60.0", true),
    ("restarts", "2", false),
];

#[test]
fn keys_of_the_engine_are_refused_where_evaluation_shares_it() {
    let all = RolloutSettings { quantize: Some(RolloutQuantization::Int8), ..RolloutSettings::default() };
    assert_eq!(listed(&ROLLOUT), names(&all), "every key is in the list");
    check("rollout", &ROLLOUT, &[SAMPLING_STAGES]);
    let read = ROLLOUT.map(|(key, value, _)| (key, value, true));
    check("rollout", &read, &[]);
    let (_, text) = load(&[SAMPLING_STAGES, "eval.rollout.lanes=2"]).unwrap_err();
    assert!(text.contains("stages that sample evaluate with their own rollout engine"), "{text}");
    assert!(text.contains("set `rollout.lanes` for all stages, or `stage.rl.rollout.lanes`"), "{text}");
    // The value of the shared engine is redundant, but true.
    for (key, value, _) in ROLLOUT {
        let (shared, own) = (format!("rollout.{key}={value}"), format!("eval.rollout.{key}={value}"));
        let config = load(&[SAMPLING_STAGES, &shared, &own]).unwrap();
        assert_eq!(config, load(&[SAMPLING_STAGES, &shared]).unwrap(), "{key}");
    }
}

/// A resolved configuration does not repeat the settings of the shared engine, so that an override of the stage's applies
/// to both.
#[test]
fn a_resolved_configuration_takes_an_override_of_the_shared_engine() {
    let text = load(&[SAMPLING_STAGES]).unwrap().to_toml();
    let config = Config::from_text("config.toml", &text, &["stage.rl.rollout.lanes=3"]).unwrap();
    assert_eq!(config.eval.unwrap().rollout.embedded().unwrap().lanes, 3);
}

#[test]
fn keys_of_sampling_are_refused_where_evaluation_is_greedy() {
    let keys = [
        ("temperature", "0.7", false),
        ("top_k", "5", false),
        ("top_p", "0.9", false),
        ("min_p", "0.1", false),
        ("max_new_tokens", "4", true),
        ("min_new_tokens", "2", false),
        ("stop", "['x']", true),
    ];
    assert_eq!(listed(&keys), names(&SamplingSettings::default()), "every key is in the list");
    check("sampling", &keys, &[]);
    check("sampling", &keys.map(|(key, value, _)| (key, value, true)), &["eval.samples=4"]);
    // All of them are reported at once.
    let (codes, _) = load(&["eval.sampling={temperature=0.7,top_k=5,top_p=0.9}"]).unwrap_err();
    assert_eq!(codes, [Code::Unread; 3]);
}

#[test]
fn keys_of_the_training_tasks_are_refused() {
    let keys = [
        ("generator", "'arithmetic'", true),
        ("operations", "['+']", true),
        ("min_digits", "2", true),
        ("max_digits", "3", true),
        ("digits", "'power_law'", true),
        ("style", "'worked'", true),
        ("rows", "'labels'", false),
        ("worked_share", "0.3", false),
        ("digit_order", "'reversed'", true),
        ("held_out", "'pairs'", true),
        ("held_out_share", "0.3", true),
        ("demonstration_share", "0.4", false),
        ("size", "50", false),
        ("eval_size", "200", true),
        ("system", "'s'", true),
        ("template", "'{prompt}'", true),
        ("chat", "false", true),
    ];
    let arithmetic = ArithmeticSettings {
        worked_share: Some(0.3),
        size: Some(1),
        eval_size: Some(1),
        ..ArithmeticSettings::default()
    };
    let mut data = DataSettings::from(rloom_data::Source::Arithmetic(arithmetic));
    data.prompt_format.system = Some(String::new());
    data.prompt_format.template = Some(String::new());
    data.prompt_format.chat = Some(false);
    assert_eq!(listed(&keys), names(&data), "every key is in the list");
    let template = "tokenizer.chat_template='{{ messages[0].content }}'";
    check("data", &keys, &[template, "data.style='mixed'"]);
    // Also where evaluation has another generator than the last stage.
    let other = ["eval.data.generator='sorting'"];
    check("data", &[("size", "50", false), ("eval_size", "200", true), ("max_length", "4", true)], &other);
    let files = ["data={path='a.jsonl',eval_path='b.jsonl'}", "tokenizer.alphabet='0123456789+='"];
    check("data", &[("limit", "50", false), ("domain", "'x'", true)], &files);
    let rows = ["data={path='a.jsonl',eval_rows=200}", files[1]];
    check("data", &[("limit", "5000", true)], &rows);
}

#[test]
fn keys_of_environment_and_reward_are_read() {
    let reward = [
        ("components", "[{kind='exact'},{kind='numeric'}]", true),
        ("outcome", "'exact'", true),
        ("on_error", "'drop'", true),
        ("timeout_seconds", "5.0", true),
    ];
    check("reward", &reward, &[]);
    let game =
        ["data.generator='guess'", "environment.kind='guess'", "reward.components=[{kind='environment'}]"];
    check("environment", &[("kind", "'guess'", true), ("max_turns", "3", true)], &game);
}
