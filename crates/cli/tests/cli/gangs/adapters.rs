//! Runs that train an adapter on ranks, sampled by the engine of this process.

use std::collections::BTreeMap;

use rloom_model::Model;
use rloom_telemetry::{Event, read_events};

use super::run::{Run, succeeded};

/// A base that is trained in full, an adapter that samples, and two that continue it on preferences: a reward model and a policy.
const RECIPE: &str = r#"
[run]
name = "gang"
seed = 3
threads = 1
checkpoint_every = 100
keep_last = 100

[model.new]
layers = 2
hidden_size = 32
heads = 2
intermediate_size = 48
max_positions = 64
initializer_range = 0.2

[data]
generator = "arithmetic"
operations = ["+"]
style = "mixed"

[reward]
components = [{ kind = "random" }]

[sampling]
max_new_tokens = 6

[[stage]]
name = "warmup"
method = "sft"
steps = 1
groups_per_batch = 8

[stage.trainer]
backend = "embedded"

[[stage]]
name = "rl"
method = "grpo"
steps = 3
groups_per_batch = 2

[stage.algorithm]
group_size = 4
kl = { coef = 0.1 }

[[stage]]
name = "reward"
method = "reward_model"
steps = 2
groups_per_batch = 4

[stage.data]
rows = "preferences"
worked_share = 0.7

[[stage]]
name = "dpo"
method = "dpo"
from = "rl"
steps = 2
groups_per_batch = 4

[stage.data]
rows = "preferences"
worked_share = 0.7
"#;

fn train(name: &str, lora: &str, ranks: &str) -> Run {
    let run = Run::new(name);
    run.sandbox.write("gang.toml", RECIPE);
    let python = format!("trainer.python={}", std::env::var("RLOOM_TEST_PYTHON").unwrap());
    let of_stage = |stage: &str| format!("stage.{stage}.trainer.lora={lora}");
    let [rl, reward, dpo] = ["rl", "reward", "dpo"].map(of_stage);
    let settings =
        ["trainer.backend=torch", "trainer.learning_rate=1e-2", ranks, &python, &rl, &reward, &dpo];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = ["train", "gang.toml", "--quiet"].into_iter().chain(settings).collect();
    succeeded(&run.finish(run.start(&arguments)));
    run.check_ended();
    run
}

fn metrics(run: &Run, stage: &str) -> Vec<BTreeMap<String, f64>> {
    let lines = read_events(&run.sandbox.path("runs/gang/events.jsonl")).unwrap();
    let of_stage = lines.into_iter().filter(|line| line.stage == stage);
    of_stage
        .filter_map(|line| match line.event {
            Event::Step { metrics } => Some(metrics),
            _ => None,
        })
        .collect()
}

/// The sampler has the weights of the trainer, the KL is measured against the start, and the next stage continues the adapter.
fn check(run: &Run) {
    let sampled = metrics(run, "rl");
    assert_eq!(sampled.len(), 3);
    for step in &sampled {
        assert!(step["mismatch/max_abs"] < 1e-4, "{step:?}");
    }
    assert!(sampled[0]["kl"].abs() < 1e-6 && sampled[2]["kl"] > 1e-5, "{sampled:?}");
    for stage in ["reward", "dpo"] {
        let preferred = metrics(run, stage);
        assert!((preferred[0]["loss"] - std::f64::consts::LN_2).abs() < 1e-6, "{stage}: {preferred:?}");
    }
    let checkpoints = run.sandbox.path("runs/gang/checkpoints");
    let base = checkpoints.join("warmup-step-000001").canonicalize().unwrap();
    for name in ["rl-step-000003", "reward-step-000002", "dpo-step-000002"] {
        let folder = checkpoints.join(name);
        assert_eq!(Model::base_of(&folder).unwrap().unwrap().canonicalize().unwrap(), base, "{name}");
        assert!(!folder.join("model.safetensors").exists());
    }
    let reward = Model::load_reward(&checkpoints.join("reward-step-000002")).unwrap();
    assert!(reward.config().reads_end_token());
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn ranks_train_an_adapter_that_this_process_samples() {
    let run = train("adapter", "{rank=4,targets=['q_proj','down_proj']}", "trainer.ranks=2");
    check(&run);
    // Other commands read the checkpoint as one of the embedded engine.
    let exported = run.finish(run.start(&[
        "export",
        "runs/gang",
        "model",
        "--merge",
        "--checkpoint",
        "latest",
        "--out",
        "out",
    ]));
    succeeded(&exported);
    assert!(Model::load(&run.sandbox.path("out")).unwrap().lora().is_none());
}

/// Samplers get the sum with the base in 4 bits, and checkpoints hold the adapter over the base as it was.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn weights_of_a_quantized_base_are_sampled_merged() {
    let run = train("quantized", "{rank=4,quantize='nf4'}", "trainer.ranks=1");
    check(&run);
    let replayed = run.finish(run.start(&["replay", "runs/gang", "rl/0/0"]));
    assert_eq!(replayed.code, Some(1), "{}", replayed.text());
    assert!(replayed.stderr.contains("a quantized base (`lora.quantize`)"), "{}", replayed.stderr);
}

/// Only PyTorch computes it: the sampler gets the weights with the adapter added.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn weights_with_dora_are_sampled_merged() {
    let run = train("dora", "{rank=4,dora=true}", "trainer.ranks=1");
    check(&run);
    let latest = ["--merge", "--checkpoint", "latest", "--out", "out"];
    let arguments: Vec<&str> = ["export", "runs/gang", "model"].into_iter().chain(latest).collect();
    succeeded(&run.finish(run.start(&arguments)));
    let merged = Model::load(&run.sandbox.path("out")).unwrap();
    let read = Model::load(&run.sandbox.path("runs/gang/checkpoints/dpo-step-000002")).unwrap();
    assert!(merged.named_tensors().zip(read.named_tensors()).all(|((_, a), (_, b))| a == b));
}
