//! Policies that are adapters of one base.

use std::path::Path;

use rloom_config::Config;
use rloom_run::StopFlag;

use super::world::Rule;
use super::{AGENTS, StopAt, TEXT, TRAINED, checkpoint, config, mean, steps, train, train_until};

/// Trains a base for one step and returns the recipe of two adapters of it. The weights of its head are large enough for any
/// distribution, as adapters leave them alone.
fn adapters(directory: &Path, overrides: &[&str]) -> Config {
    let base = ["run.name=before", "stage.rl.steps=1", "model.new.initializer_range=0.3"];
    let before = config(directory, "", &base);
    if !before.run_directory().exists() {
        train(&before, ("main", 1, Rule::Together), &mut ()).unwrap();
    }
    let base = checkpoint(&before, 1).display().to_string();
    let (start, end) = (TEXT.find("[model.new]").unwrap(), TEXT.find("[data]").unwrap());
    let text = format!("{}[model]\npath = '{base}'\n\n{}", &TEXT[..start], &TEXT[end..]);
    let parent = format!("run.directory={}", directory.display());
    let own = [parent.as_str(), "trainer.lora={rank=4}", "trainer.learning_rate=3e-2"];
    Config::from_text("pair.toml", &format!("{AGENTS}{TRAINED}\n{text}"), &[&own, overrides].concat())
        .map_err(|errors| errors.to_string())
        .unwrap()
}

/// The adapters of both policies in a checkpoint, and what follows from them.
fn saved(config: &Config, step: u64) -> Vec<Vec<u8>> {
    let folder = checkpoint(config, step);
    let of_policy = |folder: &Path| {
        assert!(!folder.join("model.safetensors").exists(), "the base is not saved again");
        ["adapter_model.safetensors", "trainer/optimizer.safetensors"]
            .map(|file| std::fs::read(folder.join(file)).unwrap())
    };
    [folder.clone(), folder.join("policies/other")].iter().flat_map(|folder| of_policy(folder)).collect()
}

/// Both learn, each its half: adapters share the base and nothing else.
#[test]
fn two_adapters_learn_their_halves_of_a_game() {
    let directory = tempfile::tempdir().unwrap();
    let learn = |rule: Rule| {
        let name = format!("run.name={rule:?}").to_lowercase();
        let config = adapters(directory.path(), &[&name, "stage.rl.steps=30", "run.checkpoint_every=0"]);
        train(&config, ("other", 1, rule), &mut ()).unwrap();
        let steps = steps(&config);
        let saved = saved(&config, 30);
        assert_ne!(saved[0], saved[2], "each policy has an adapter of its own");
        ["environment/even", "environment/odd"].map(|name| mean(&steps[25..], name))
    };
    let after = learn(Rule::Together);
    assert!(after.iter().all(|rate| *rate > 0.85), "{after:?}");
    let after = learn(Rule::Chance);
    assert!(after.iter().all(|rate| *rate < 0.75), "{after:?}");
}

#[test]
fn a_stopped_run_of_adapters_ends_in_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let game = ("other", 1, Rule::Together);
    let whole = adapters(directory.path(), &["run.name=whole"]);
    train(&whole, game, &mut ()).unwrap();
    let broken = adapters(directory.path(), &["run.name=broken"]);
    let stop = StopFlag::default();
    train_until(&broken, game, &mut StopAt(3, stop.clone()), &stop).unwrap();
    assert!(!checkpoint(&broken, 6).exists());
    train(&broken, game, &mut ()).unwrap();
    assert!(saved(&whole, 6) == saved(&broken, 6), "the adapters or their moments differ");
}
