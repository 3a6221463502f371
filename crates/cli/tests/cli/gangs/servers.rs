//! A run on PyTorch ranks and vLLM servers, one of which dies. Needs `RLOOM_TEST_VLLM` as well, an interpreter with vLLM.

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
