//! Runs whose rewards and environments are functions.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, or says that it is skipped"
)]

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Sandbox, TINY, lines, signal};

const EXACT: &str = "components = [{ kind = \"exact\" }]";

/// The tiny recipe with another component.
fn write_recipe(sandbox: &Sandbox, component: &str) {
    let components = format!("components = [{{ kind = \"exact\", weight = 0 }}, {component}]");
    sandbox.write("tiny.toml", &TINY.replace(EXACT, &components));
}

fn has_python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = Command::new("python3").args(["-c", check]).status().is_ok_and(|status| status.success());
    if !found {
        println!("skipped: there is no python3 of version 3.10 or later");
    }
    found
}

/// Answers 1 for each completion.
const SCRIPT: &str = r#"while read -r line; do
  id=${line#*:}; id=${id%%,*}
  case "$line" in
    *'"hello"'*) echo '{"id":'$id',"ready":{"v":1}}';;
    *hang*) sleep 98781;;
    *) echo '{"id":'$id',"verdicts":[1],"metrics":{"seen":3}}';;
  esac
done
"#;

#[test]
fn a_program_rewards_a_run() {
    let sandbox = Sandbox::new();
    sandbox.write("score.sh", SCRIPT);
    write_recipe(&sandbox, r#"{ kind = "command", command = ["sh", "score.sh"], workers = 1 }"#);
    let result = sandbox.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    let events = lines(&sandbox.path("runs/tiny/events.jsonl"));
    let of_rl = events.iter().filter(|line| line.contains("\"reward/command\":1.0"));
    assert_eq!(of_rl.filter(|line| line.contains("\"function/seen\":3.0")).count(), 4);
}

#[test]
fn functions_that_cannot_be_used_end_a_run_before_its_first_step() {
    let sandbox = Sandbox::new();
    write_recipe(&sandbox, r#"{ kind = "command", command = ["/no/such/program"] }"#);
    let result = sandbox.run(&["train", "tiny.toml"]);
    let text = result.text();
    assert!(result.code != Some(0) && !text.contains("warmup 1/3"), "{text}");
    assert!(text.contains("reward `command`: cannot start \"/no/such/program\""), "{text}");
}

#[test]
fn an_interrupted_run_leaves_no_process() {
    let sandbox = Sandbox::new();
    sandbox.write("score.sh", &SCRIPT.replace("*hang*", "*samples*"));
    write_recipe(&sandbox, r#"{ kind = "command", command = ["sh", "score.sh"], workers = 2 }"#);
    let mut child = sandbox.command(&["train", "tiny.toml", "--quiet"]).spawn().unwrap();
    wait_until(|| sleeping() > 0);
    signal(&child, "-KILL");
    child.wait().unwrap();
    wait_until(|| sleeping() == 0);
}

/// Number of processes `sleep 98781`.
fn sleeping() -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let is_sleep = |line: Vec<u8>| line == b"sleep\x0098781\0";
    entries.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(is_sleep)).count()
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(3);
    while !condition() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn python_functions_reward_and_play() {
    if !has_python() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write(
        "rewards.py",
        "def trl(prompts, completions, completion_ids, answer, log_metric, **columns):\n\
         \x20   print('noise')\n\
         \x20   log_metric('length', sum(map(len, completion_ids)) / len(completions))\n\
         \x20   return [float(len(set(c))) for c in completions]\n",
    );
    write_recipe(&sandbox, r#"{ kind = "python", function = "rewards.py:trl", group = true }"#);
    let result = sandbox.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    let events = lines(&sandbox.path("runs/tiny/events.jsonl"));
    assert_eq!(events.iter().filter(|line| line.contains("\"function/length\":")).count(), 4);

    sandbox
        .write("env.py", "def play(task):\n    reply = yield task['prompt']\n    return float(len(reply))\n");
    let environment = "[environment]\nkind = \"python\"\nfunction = \"env.py:play\"\n\n[reward]";
    let recipe = TINY.replace("[reward]", environment).replace("\"exact\"", "\"environment\"");
    sandbox.write("game.toml", &recipe);
    let result = sandbox.run(&["train", "game.toml", "--quiet"]);
    assert_eq!(result.code, Some(0), "{}", result.text());

    sandbox.write("rewards.py", "def trl(text):\n    pass\n");
    let refused = sandbox.run(&["train", "tiny.toml"]);
    assert!(
        refused.code != Some(0) && refused.text().contains("its parameters (text) fit no form"),
        "{}",
        refused.text()
    );
}
