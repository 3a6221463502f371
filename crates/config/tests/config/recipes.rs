//! The recipes of the repository and their resolved configurations.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use rloom_algo::Method;
use rloom_config::{Config, ModelSource, Start};
use rloom_engine::{Backend, RolloutEngineSettings};
use rloom_env::{EnvironmentSettings, GuessSettings};

fn recipe_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(name)
}

fn recipe(name: &str) -> Config {
    recipe_with(name, &[])
}

fn recipe_with(name: &str, overrides: &[&str]) -> Config {
    Config::load(&[recipe_path(name)], overrides).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Asserts that the resolved configuration reads as an equal one.
fn assert_round_trip(config: &Config) {
    let text = config.to_toml();
    let again =
        Config::from_text("config.toml", &text, &[] as &[&str]).unwrap_or_else(|e| panic!("{text}\n{e}"));
    assert_eq!(*config, again, "{text}");
    assert_eq!(text, again.to_toml());
}

#[test]
fn recipes_are_valid_and_round_trip() {
    for name in [
        "arithmetic.toml",
        "code.toml",
        "debate.toml",
        "distill.toml",
        "coding-agent.toml",
        "frozen-lake.toml",
        "gsm8k.toml",
        "guess.toml",
        "judge-model.toml",
        "judge.toml",
        "lora.toml",
        "mixed-domains.toml",
        "online-dpo.toml",
        "tic-tac-toe.toml",
        "self-play-kuhn-poker.toml",
        "self-play-tic-tac-toe.toml",
        "two-policies.toml",
    ] {
        assert_round_trip(&recipe(name));
    }
}

#[test]
fn recipes_with_tools_are_valid_and_round_trip() {
    for (name, tool, turns) in
        [("calculator", "calculator", 2), ("search", "search", 3), ("retool", "python", 6)]
    {
        let config = recipe(&format!("{name}.toml"));
        assert_round_trip(&config);
        let environments = config.stages.iter().map(|stage| &stage.environment);
        for environment in environments.chain(config.eval.as_ref().map(|eval| &eval.environment)) {
            let EnvironmentSettings::Tools(tools) = environment else { panic!("{name}: {environment:?}") };
            let kind =
                serde_json::to_value(&tools.tools[0]).ok().and_then(|table| table.get("kind").cloned());
            assert_eq!((kind, tools.max_turns), (Some(tool.into()), turns), "{name}");
        }
    }
}

#[test]
fn second_files_move_recipes_to_other_engines() {
    for recipe in ["arithmetic.toml", "gsm8k.toml", "guess.toml"] {
        for engines in ["torch-vllm.toml", "one-gpu.toml", "eight-gpus.toml"] {
            let config = Config::load(&[recipe_path(recipe), recipe_path(engines)], &[] as &[&str]);
            // A model has a path or is new; `torch-vllm.toml` changes a new one.
            if (recipe, engines) == ("gsm8k.toml", "torch-vllm.toml") {
                assert!(config.unwrap_err().to_string().contains("[model.new]"));
                continue;
            }
            let config = config.unwrap_or_else(|errors| panic!("{recipe} {engines}: {errors}"));
            assert_round_trip(&config);
            let last = config.stages.last().unwrap_or_else(|| panic!("no stage"));
            assert!(matches!(last.trainer.backend, Backend::Torch(_)), "{recipe} {engines}");
            let rollout = last.rollout.as_ref().map(|rollout| &rollout.engine);
            assert!(matches!(rollout, Some(RolloutEngineSettings::Vllm(_))), "{recipe} {engines}");
        }
    }
}

#[test]
fn a_second_file_rewards_with_a_python_library() {
    for recipe in ["arithmetic.toml", "gsm8k.toml"] {
        let files = [recipe_path(recipe), recipe_path("math-verify.toml")];
        let config = Config::load(&files, &[] as &[&str]).unwrap_or_else(|errors| panic!("{errors}"));
        assert_round_trip(&config);
        let sampled = config.stages.iter().filter_map(|stage| stage.rollout.as_ref()).map(|r| &r.reward);
        for reward in sampled.chain(config.eval.as_ref().map(|eval| &eval.reward)) {
            let names: Vec<&str> = reward.components.iter().map(|c| c.name.as_str()).collect();
            assert_eq!(names, ["math_verify"], "{recipe}");
        }
    }
}

#[test]
fn every_method_round_trips() {
    let settings = [
        "{}",
        "{correction={level='sequence'}}",
        "{correction={level='none'}}",
        "{correction={reject='k2', reject_high=0.1}}",
        "{proximal='recompute'}",
        "{proximal='sampler'}",
        "{ratio_to='behavior'}",
        "{kl={coef=0.1}, epochs=1}",
    ];
    let mut round_trips = 0;
    for method in Method::ALL.iter().filter(|method| !method.is_supervised()) {
        for max_staleness in [0, 2] {
            for settings in settings {
                let overrides = [
                    format!("stage.rl.method={}", method.name()),
                    format!("stage.rl.schedule.max_staleness={max_staleness}"),
                    format!("stage.rl.algorithm={settings}"),
                ];
                match Config::load(&[recipe_path("guess.toml")], &overrides) {
                    Ok(config) => {
                        assert_round_trip(&config);
                        round_trips += 1;
                    }
                    Err(errors) => assert!(settings != "{}", "{method} {max_staleness}: {errors}"),
                }
            }
        }
    }
    assert!(round_trips > 12 * Method::ALL.iter().filter(|m| !m.is_supervised()).count(), "{round_trips}");
}

#[test]
fn arithmetic_recipe_resolves() {
    let config = recipe("arithmetic.toml");
    assert_eq!(config.run.name, "arithmetic");
    assert_eq!(config.stages[0].start, Start::Model);
    assert_eq!(config.stages[1].start, Start::Stage(0));
    let ModelSource::New { tokenizer, .. } = &config.model else { panic!("a new model") };
    assert!(tokenizer.alphabet.contains("+0123456789="));
    let eval = config.eval.as_ref().unwrap();
    assert!(eval.sampling.is_greedy() && eval.tasks >= 500);
    assert_eq!(
        eval.sampling.max_new_tokens,
        config.stages[1].rollout.as_ref().unwrap().sampling.max_new_tokens
    );
}

#[test]
fn guess_recipe_has_the_game_in_all_stages_and_in_evaluation() {
    let config = recipe("guess.toml");
    let game = EnvironmentSettings::Guess(GuessSettings::default());
    let environments = config.stages.iter().map(|s| &s.environment);
    assert!(environments.chain(config.eval.as_ref().map(|e| &e.environment)).all(|e| *e == game));
    let ModelSource::New { tokenizer, .. } = &config.model else { panic!("a new model") };
    assert_eq!(tokenizer.alphabet, "-0123456789:<>?");
}

/// Value of a dotted key in a stage of the resolved configuration.
fn resolved<'a>(stage: &'a toml::Value, key: &str) -> Option<&'a toml::Value> {
    key.split('.').try_fold(stage, |table, key| table.get(key))
}

/// Overrides, the keys and values that the resolved file then contains, and keys that it does not contain.
type Resolved<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn resolved_schedules_contain_only_keys_with_an_effect() {
    let cases: [Resolved<'_>; 6] = [
        (
            &[],
            &[("max_staleness", "0"), ("cut_order", "\"ticket\""), ("max_failures", "0")],
            &["on_update", "stragglers"],
        ),
        (&["max_staleness=2"], &[("max_staleness", "2"), ("on_update", "\"recompute\"")], &["stragglers"]),
        (
            &["max_staleness=2", "pin_version=true"],
            &[("pin_version", "true"), ("on_update", "\"finish\"")],
            &["stragglers"],
        ),
        (
            &["max_staleness=1", "cut_order=completion", "on_update=keep", "priority=arrival"],
            &[("on_update", "\"keep\""), ("stragglers", "\"drop\""), ("priority", "\"arrival\"")],
            &[],
        ),
        (
            &["cut_order=completion", "oversample=4", "stragglers=defer"],
            &[("oversample", "4"), ("stragglers", "\"defer\"")],
            &["on_update"],
        ),
        (&["max_failures=16"], &[("max_failures", "16")], &[]),
    ];
    for (overrides, there, absent) in cases {
        let overrides: Vec<String> = overrides.iter().map(|o| format!("schedule.{o}")).collect();
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let config = recipe_with("arithmetic.toml", &overrides);
        assert_round_trip(&config);
        let text: toml::Value = toml::from_str(&config.to_toml()).unwrap();
        let stages = text["stage"].as_array().unwrap();
        assert!(stages[0].get("schedule").is_none(), "supervised stages do not sample");
        let schedule = &stages[1]["schedule"];
        for (key, value) in there {
            let found = schedule.get(key).map(ToString::to_string);
            assert_eq!(found.as_deref(), Some(*value), "{overrides:?}: {key}");
        }
        for key in absent {
            assert!(schedule.get(key).is_none(), "{overrides:?}: {key} has no effect");
        }
    }
}

#[test]
fn stale_samples_are_corrected_by_default() {
    let correction = "algorithm.correction.level";
    for (method, stale) in
        [("grpo", Some("token")), ("gspo", Some("geometric")), ("rloo", Some("sequence")), ("dppo_tv", None)]
    {
        for staleness in [0, 2] {
            let config = recipe_with(
                "arithmetic.toml",
                &[
                    &format!("stage.rl.method={method}"),
                    &format!("stage.rl.schedule.max_staleness={staleness}"),
                ],
            );
            assert_round_trip(&config);
            let text: toml::Value = toml::from_str(&config.to_toml()).unwrap();
            let found = resolved(&text["stage"][1], correction).and_then(toml::Value::as_str);
            let expected = stale.filter(|_| staleness > 0);
            assert_eq!(found, expected, "{method} at {staleness}\n{}", text["stage"][1]["algorithm"]);
        }
    }
}

#[test]
fn another_backend_or_engine_drops_the_keys_of_the_one_before() {
    let base = ["trainer.share_prompts=false", "trainer.eps=1e-6", "rollout.lanes=3"];
    let others = ["trainer.backend=torch", "trainer.ranks=2", "rollout.engine=vllm", "rollout.replicas=2"];
    let config = recipe_with("arithmetic.toml", &[base.as_slice(), &others].concat());
    assert_round_trip(&config);
    let stage = &config.stages[1];
    let Backend::Torch(torch) = &stage.trainer.backend else { panic!("{:?}", stage.trainer) };
    assert_eq!(torch.ranks, 2);
    assert_eq!(stage.optimizer.eps, 1e-6, "keys of the optimiser stay");
    let RolloutEngineSettings::Vllm(servers) = &stage.rollout.as_ref().unwrap().engine else { panic!() };
    assert_eq!(servers.replicas, 2);
    let refused =
        Config::load(&[recipe_path("arithmetic.toml")], &["trainer.ranks=2"]).unwrap_err().to_string();
    assert!(refused.contains("ranks"), "{refused}");
}

#[test]
fn threads_restarts_and_timeouts_are_resolved() {
    let config = recipe_with(
        "arithmetic.toml",
        &[
            "run.stall_seconds=60",
            "rollout.threads=1",
            "rollout.restarts=3",
            "trainer.threads=2",
            "reward.timeout_seconds=2.5",
        ],
    );
    assert_round_trip(&config);
    let rollout = config.stages[1].rollout.as_ref().unwrap();
    let engine = rollout.engine.embedded().unwrap();
    assert_eq!((config.run.stall_seconds, engine.threads, engine.restarts), (60, 1, 3));
    assert_eq!((config.stages[1].trainer.threads, rollout.reward.timeout_seconds), (2, 2.5));
    let eval = config.eval.as_ref().unwrap();
    assert_eq!(
        (eval.rollout.embedded().unwrap().restarts, eval.reward.timeout_seconds),
        (3, 2.5),
        "evaluation has the same settings"
    );
}
