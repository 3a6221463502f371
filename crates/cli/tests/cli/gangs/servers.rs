//! Runs on vLLM servers, which die: of PyTorch ranks, and of adapters. Needs `RLOOM_TEST_VLLM` as well, an interpreter with vLLM.

use std::collections::BTreeMap;

use rloom_telemetry::{Event, Metrics};

use super::run::{Run, succeeded};
use crate::support::audit::check_groups;

const STEPS: u64 = 24;
const GROUPS: u64 = 4;

/// The share of the letter 1, which is soon learned.
const REWARD: &str = "def share(completions, **_):
    return [text.count('1') / max(len(text), 1) for text in completions]
";

/// Nothing is lost or trained twice, log-probabilities stay those of the trainer, and the run ends and learns.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON and RLOOM_TEST_VLLM"]
fn a_run_survives_the_death_of_a_vllm_server() {
    let Ok(python) = std::env::var("RLOOM_TEST_VLLM") else {
        println!("skipped: set RLOOM_TEST_VLLM to the Python interpreter of an environment with vLLM");
        return;
    };
    let run = Run::new("vllm");
    run.sandbox.write("reward.py", REWARD);
    let python = format!("rollout.python={python}");
    let settings = [
        "run.keep_last=100",
        "model.new.head_dim=64",
        "reward.components=[{kind='python',function='reward.py:share'}]",
        "sampling.max_new_tokens=8",
        "stage.rl.steps=24",
        "stage.rl.groups_per_batch=4",
        "stage.rl.algorithm.group_size=8",
        "stage.rl.trainer.learning_rate=1e-2",
        "rollout.engine=vllm",
        "rollout.replicas=2",
        "rollout.max_requests=16",
        "rollout.memory=0.1",
        "rollout.args=['--dtype','float32','--enforce-eager']",
        &python,
    ];
    let mut arguments = vec!["train", "gang.toml", "--quiet"];
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    let mut child = run.start(&arguments);
    run.wait_for_steps(&mut child, 6);
    run.kill("vllm.entrypoints");
    let result = run.finish(child);
    println!("{}", run.warnings().join("\n"));
    succeeded(&result);
    run.check_ended();
    assert!(run.warnings().iter().any(|text| text.starts_with("replica ") && text.contains(" failed and ")));
    check_groups(&run.sandbox.path("runs/gang/rollouts"), STEPS, GROUPS);
    run.check_journal(STEPS, GROUPS);

    let steps: Vec<Metrics> = run.events().into_iter().filter_map(metrics).collect();
    assert_eq!(steps.len() as u64, STEPS);
    let values = |name: &str| steps.iter().map(|step| step[name]).collect::<Vec<f64>>();
    let mismatch = values("mismatch/max_abs").into_iter().fold(0.0, f64::max);
    let rewards = values("reward");
    println!("largest mismatch {mismatch:.1e}, rewards {rewards:.2?}");
    assert!(mismatch < 1e-3, "{mismatch}");
    let mean = |rewards: &[f64]| rewards.iter().sum::<f64>() / rewards.len() as f64;
    assert!(mean(&rewards[20..]) > mean(&rewards[..4]) + 0.2, "{rewards:?}");
}

fn metrics(event: Event) -> Option<BTreeMap<String, f64>> {
    match event {
        Event::Step { metrics } => Some(metrics),
        _ => None,
    }
}

/// A base that is trained in full, and an adapter over it that servers sample.
const ADAPTED: &str = r#"
[run]
name = "gang"
seed = 3
threads = 1
checkpoint_every = 3
keep_every = 0

[model.new]
layers = 2
hidden_size = 32
heads = 2
head_dim = 64
intermediate_size = 48
max_positions = 64
initializer_range = 0.2

[data]
generator = "arithmetic"

[reward]
components = [{ kind = "python", function = "reward.py:share" }]

[sampling]
max_new_tokens = 8

[rollout]
engine = "vllm"
max_requests = 16
memory = 0.1
args = ["--dtype", "float32", "--enforce-eager"]

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
steps = 12
groups_per_batch = 4

[stage.algorithm]
group_size = 8

[stage.trainer]
lora = { rank = 4 }
learning_rate = 1e-2
"#;

/// A run whose adapters a vLLM server serves.
fn adapted(name: &str, settings: &[&str], disturb: impl Fn(&Run, &mut std::process::Child)) -> Option<Run> {
    let Ok(python) = std::env::var("RLOOM_TEST_VLLM") else {
        println!("skipped: set RLOOM_TEST_VLLM to the Python interpreter of an environment with vLLM");
        return None;
    };
    let run = Run::new(name);
    run.sandbox.write("gang.toml", ADAPTED);
    run.sandbox.write("reward.py", REWARD);
    let python = format!("rollout.python={python}");
    let settings = [settings, &[python.as_str()]].concat();
    let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
    let arguments: Vec<&str> = ["train", "gang.toml", "--quiet"].into_iter().chain(settings).collect();
    let mut child = run.start(&arguments);
    disturb(&run, &mut child);
    let result = run.finish(child);
    println!("{}", run.warnings().join("\n"));
    let result = if result.code == Some(0) { result } else { run.resume() };
    succeeded(&result);
    run.check_ended();
    let steps: Vec<Metrics> = run.events().into_iter().filter_map(metrics).collect();
    let sampled: Vec<&Metrics> = steps.iter().filter(|step| step.contains_key("mismatch/max_abs")).collect();
    let mismatch = sampled.iter().map(|step| step["mismatch/max_abs"]).fold(0.0, f64::max);
    let rewards: Vec<f64> = sampled.iter().map(|step| step["reward"]).collect();
    println!("largest mismatch {mismatch:.1e}, rewards {rewards:.2?}");
    assert!(sampled.len() >= 12 && mismatch < 1e-3, "{mismatch}");
    let mean = |rewards: &[f64]| rewards.iter().sum::<f64>() / rewards.len() as f64;
    assert!(mean(&rewards[rewards.len() - 3..]) > mean(&rewards[..3]) + 0.1, "{rewards:?}");
    // Versions were adapters, of which the server keeps those in use.
    let log = std::fs::read_to_string(run.sandbox.path("runs/gang/logs/replica-0.log")).unwrap();
    let count = |text: &str| log.matches(text).count();
    assert!(count("Loaded new LoRA adapter") >= 4 && count("Removed LoRA adapter") >= 3, "{log}");
    let checkpoint = run.sandbox.path("runs/gang/checkpoints/rl-step-000012");
    assert!(checkpoint.join("adapter_model.safetensors").exists());
    Some(run)
}

/// The server of the ranks' adapters dies, and gets the adapter again when it is back.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON and RLOOM_TEST_VLLM"]
fn a_vllm_server_serves_the_adapters_of_ranks() {
    let ranks = format!("stage.rl.trainer.python={}", std::env::var("RLOOM_TEST_PYTHON").unwrap());
    let run = adapted("served", &["stage.rl.trainer.backend=torch", &ranks], |run, child| {
        run.wait_for_steps(child, 4);
        run.kill("vllm.entrypoints");
    });
    let Some(run) = run else { return };
    assert!(run.warnings().iter().any(|text| text.starts_with("replica ") && text.contains(" failed and ")));
}

/// A run of the engine of this process is killed and continues.
#[test]
#[ignore = "needs RLOOM_TEST_VLLM"]
fn a_vllm_server_serves_the_adapters_of_the_embedded_engine() {
    adapted("embedded", &[], |run, child| {
        run.wait_for_steps(child, 6);
        child.kill().unwrap();
    });
}
