//! Runs whose policy calls tools: replay, stops, and kills in the middle of a call.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rloom_config::Config;
use rloom_core::Author;
use rloom_hub::Hub;
use rloom_run::lineage::SampleName;
use rloom_run::{ResumeOptions, StopFlag, Verdict};
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Observer};

use crate::recipe;

const DIRECTORY: &str = "RLOOM_TEST_TOOLS";

/// A tool that writes down its calls. With a file `kill`, the call with the number in it does not return: it creates the file
/// `inside`.
const TOOL: &str = r#"
import re, time
from pathlib import Path

HERE = Path(__file__).parent

def calculator(expression: str) -> str:
    """Computes."""
    with open(HERE / "calls", "a") as file:
        file.write(expression + "\n")
    kill = HERE / "kill"
    if kill.exists() and len((HERE / "calls").read_text().splitlines()) >= int(kill.read_text()):
        (HERE / "inside").touch()
        time.sleep(1000)
    numbers = re.fullmatch(r"(\d+)\+(\d+)", expression)
    return str(int(numbers[1]) + int(numbers[2])) if numbers else "error"
"#;

/// A policy that calls the tool in about half of its episodes, in groups of two turns.
fn config(directory: &Path, more: &[&str]) -> Config {
    let file = directory.join("tool.py");
    std::fs::write(&file, TOOL).unwrap();
    let environment = format!(
        "environment={{kind='tools',format='tags',max_turns=2,alphabet='</=.()>abcdefghijklmnopqrstuvwxyz:%* -',\
         tools=[{{kind='function',function='{}:calculator',workers=1}}]}}",
        file.display()
    );
    let mut overrides = vec![
        environment.as_str(),
        "data.style=calls",
        "data.worked_share=0.9",
        "model.new.max_positions=80",
        "sampling.max_new_tokens=32",
        "stage.warmup.steps=250",
        "stage.warmup.checkpoint_every=250",
        "stage.rl.steps=3",
        // An evaluation is not recorded: one that is interrupted calls its tools again.
        "eval.environment={kind='single_turn'}",
        "eval.tasks=4",
        "reward.components=[{kind='random'},{kind='numeric',extract=['hashes','whole']}]",
    ];
    overrides.extend(more);
    recipe::config(directory, &overrides)
}

/// Rollouts of a step.
fn rollouts(config: &Config, step: u64) -> Vec<LoggedTrajectory> {
    let path = config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
    let text = String::from_utf8(zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Calls that the tool wrote down.
fn calls(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Events of a run that matter here.
#[derive(Default)]
struct Seen {
    warnings: Vec<String>,
    steps: Vec<BTreeMap<String, f64>>,
}

impl Observer for Seen {
    fn observe(&mut self, line: &EventLine) {
        match &line.event {
            Event::Warning { message, .. } => self.warnings.push(message.clone()),
            Event::Step { metrics } if line.stage == "rl" => {
                self.steps.push(metrics.clone());
            }
            _ => {}
        }
    }
}

#[test]
fn episodes_with_tools_are_counted_and_replayed_bit_for_bit() {
    let directory = tempfile::tempdir().unwrap();
    let reward = "reward.components=[{kind='random'},{kind='numeric',extract=['hashes','whole']},\
                  {kind='regex',pattern='<result>'}]";
    let config = config(directory.path(), &[reward]);
    let mut seen = Seen::default();
    rloom_run::train(&config, &mut seen, &StopFlag::default()).unwrap();
    let counted: f64 = seen.steps.iter().map(|metrics| metrics["tools/calls"]).sum();
    assert!(counted > 0.0);
    let several = rollouts(&config, 1).into_iter().find(|logged| {
        logged.trajectory.spans.iter().filter(|span| span.author == Author::Policy).count() > 1
    });
    let several = several.unwrap();
    // Rewards see what the policy wrote: what a tool returned earns nothing.
    assert!(several.completion.contains("<result>"), "{}", several.completion);
    assert_eq!(several.rewards.components[2].value(), Some(0.0));
    let key = several.trajectory.key;
    let name: SampleName = format!("rl/{}/{}", key.ticket.0, key.sample).parse().unwrap();
    let hub = Arc::new(Hub::from_env());
    let replay =
        rloom_run::replay(&config.run_directory(), &config, &name, &hub, false, &mut |_, _| {}).unwrap();
    assert_eq!(replay.verdict, Verdict::Equal);
    assert!(replay.tokens > 0);
}

/// The process that the test below kills.
#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let config = config(&PathBuf::from(directory), &[]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
}

/// Waits until the files of a folder have not grown for two seconds: all that has returned by now is recorded.
fn wait_until_quiet(folder: &Path) {
    let size = || -> u64 {
        let files = std::fs::read_dir(folder).unwrap();
        files.map(|file| file.unwrap().metadata().map_or(0, |metadata| metadata.len())).sum()
    };
    let (mut last, mut equal) = (size(), 0);
    while equal < 20 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = size();
        equal = if now == last { equal + 1 } else { 0 };
        last = now;
    }
}

#[test]
fn calls_that_returned_before_a_kill_are_not_made_again() {
    let whole = tempfile::tempdir().unwrap();
    let undisturbed = config(whole.path(), &[]);
    rloom_run::train(&undisturbed, &mut (), &StopFlag::default()).unwrap();
    let expected = calls(whole.path());
    let result = |config: &Config| {
        std::fs::read(config.run_directory().join("checkpoints/rl-step-000003/model.safetensors")).unwrap()
    };
    let trained: usize = (1..=3)
        .flat_map(|step| rollouts(&undisturbed, step))
        .filter(|logged| logged.trajectory.policy_ranges().count() > 1)
        .count();
    assert!(trained > 8, "the policy makes only {trained} calls");

    // Killed inside of a call of the second half.
    let directory = tempfile::tempdir().unwrap();
    let kill = expected.len() - trained / 2;
    std::fs::write(directory.path().join("kill"), kill.to_string()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tools::child", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !directory.path().join("inside").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before the call");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    wait_until_quiet(&config(directory.path(), &[]).run_directory().join("journal"));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    std::fs::remove_file(directory.path().join("kill")).unwrap();
    let before = calls(directory.path());
    assert_eq!(before.len(), kill);

    let config = config(directory.path(), &[]);
    let mut seen = Seen::default();
    let folder = config.run_directory();
    rloom_run::resume(&folder, &config, ResumeOptions::default(), &mut seen, &StopFlag::default()).unwrap();
    assert_eq!(result(&config), result(&undisturbed));
    // Only calls that were running are made again, and the run says so. One process serves the calls: others waited for it
    // and had no effect yet.
    let repeated = calls(directory.path()).len() - expected.len();
    assert!(repeated <= 1, "{repeated} calls were made again");
    let warned = seen.warnings.iter().any(|warning| warning.contains("are made again"));
    assert!(warned, "{:?}", seen.warnings);
}
