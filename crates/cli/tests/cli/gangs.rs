//! Runs on PyTorch ranks whose processes are killed, or whose disk is full. The tests need `RLOOM_TEST_PYTHON`, an
//! interpreter with torch, transformers and rloom, and run with `--ignored`.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking and reports its kills"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rloom_core::{Purpose, RandomKey};
use rloom_telemetry::{Event, LoggedTrajectory, read_events};

use crate::support::{Finished, Sandbox};

/// Marks the processes of a test in their environment.
const MARK: &str = "RLOOM_TEST_MARK";
const STEPS: u64 = 8;
const GROUPS: u64 = 2;

/// Two ranks train, this process samples, and a program takes its time to judge.
const RECIPE: &str = r#"
[run]
name = "gang"
seed = 3
threads = 1
checkpoint_every = 3
keep_every = 0

[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 32

[data]
generator = "arithmetic"

[reward]
components = [{ kind = "random" }, { kind = "command", weight = 0, command = ["sh", "judge.sh"], workers = 1 }]

[sampling]
max_new_tokens = 4

[[stage]]
name = "rl"
method = "grpo"
steps = 8
groups_per_batch = 2

[stage.algorithm]
group_size = 2

[stage.trainer]
backend = "torch"
ranks = 2
python = "PYTHON"
step_timeout_seconds = 60
learning_rate = 1e-3
"#;

const JUDGE: &str = r#"while read -r line; do
  id=${line#*:}; id=${id%%,*}
  case "$line" in
    *'"hello"'*) echo '{"id":'$id',"ready":{"v":1}}';;
    *) sleep 0.1; echo '{"id":'$id',"verdicts":[1]}';;
  esac
done
"#;

fn sandbox() -> Sandbox {
    let python = std::env::var("RLOOM_TEST_PYTHON");
    let python = python.expect("RLOOM_TEST_PYTHON names an interpreter with torch, transformers and rloom");
    let sandbox = Sandbox::new();
    sandbox.write("gang.toml", &RECIPE.replace("PYTHON", &python));
    sandbox.write("judge.sh", JUDGE);
    sandbox
}

/// A run in a sandbox.
struct Run {
    sandbox: Sandbox,
    mark: String,
}

impl Run {
    fn new(name: &str) -> Self {
        Self { sandbox: sandbox(), mark: format!("{name}-{}", std::process::id()) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.env(MARK, &self.mark).env("OMP_NUM_THREADS", "1");
        command
    }

    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn finish(&self, child: Child) -> Finished {
        self.sandbox.finished(&child.wait_with_output().unwrap())
    }

    fn resume(&self) -> Finished {
        self.finish(self.start(&["train", "--resume", "runs/gang", "--quiet"]))
    }

    /// Processes of the run whose command line contains `text`; guards and the shells of other programs do not count.
    fn processes(&self, text: &str) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark);
        let names = std::fs::read_dir("/proc").unwrap().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok()?.parse::<u32>().ok());
        let file = |pid: u32, name: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let is_own = |pid: &u32| {
            let line = file(*pid, "cmdline");
            let is_guard = line.contains(" guard ") && !text.is_empty();
            !line.is_empty() && line.contains(text) && !is_guard && file(*pid, "environ").contains(&mark)
        };
        names.filter(|pid| is_own(pid) && *pid != std::process::id()).collect()
    }

    /// Kills a process, once there is one.
    fn kill(&self, text: &str) {
        wait_until(&format!("a process with {text}"), || !self.processes(text).is_empty());
        let pid = self.processes(text)[0].to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }

    fn events(&self) -> Vec<Event> {
        let lines = read_events(&self.sandbox.path("runs/gang/events.jsonl")).unwrap_or_default();
        lines.into_iter().map(|line| line.event).collect()
    }

    fn count(&self, is_counted: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| is_counted(event)).count()
    }

    /// Steps that were reported, those that are repeated included.
    fn steps(&self) -> usize {
        self.count(|event| matches!(event, Event::Step { .. }))
    }

    fn warnings(&self) -> Vec<String> {
        let of_event = |event| match event {
            Event::Warning { message } => Some(message),
            _ => None,
        };
        self.events().into_iter().filter_map(of_event).collect()
    }

    /// Waits for the reports of some more steps.
    fn wait_for_steps(&self, more: usize) {
        let before = self.steps();
        wait_until("more steps", || self.steps() >= before + more);
    }

    /// Checks that no process of the run is left.
    fn check_ended(&self) {
        wait_until("all processes to end", || self.processes("").is_empty());
    }

    /// Final weights, after each group was trained on exactly once.
    fn result(&self) -> Vec<u8> {
        check_groups(&self.sandbox.path("runs/gang/rollouts"));
        self.check_ended();
        std::fs::read(self.sandbox.path("runs/gang/checkpoints/latest/model.safetensors")).unwrap()
    }
}

/// One batch per step, and one batch per group.
fn check_groups(rollouts: &Path) {
    let mut tickets = Vec::new();
    for step in 1..=STEPS {
        let bytes = std::fs::read(rollouts.join(format!("rl-step-{step:06}.jsonl.zst"))).unwrap();
        let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
        let read = |line| serde_json::from_str::<LoggedTrajectory>(line).unwrap().trajectory.key.ticket.0;
        tickets.extend(text.lines().map(read).collect::<BTreeSet<u64>>());
    }
    tickets.sort_unstable();
    assert_eq!(tickets, (0..STEPS * GROUPS).collect::<Vec<_>>());
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(15);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn succeeded(result: &Finished) {
    assert_eq!(result.code, Some(0), "{}", result.text());
}

fn undisturbed() -> Vec<u8> {
    let run = Run::new("undisturbed");
    succeeded(&run.finish(run.start(&["train", "gang.toml", "--quiet"])));
    assert_eq!(run.warnings().len(), 0);
    run.result()
}

/// A rank, a function and the daemon die in a run, which survives; then a run whose controller is killed resumes. Both end in
/// the same weights, bit by bit.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_run_survives_the_deaths_of_its_processes() {
    let expected = undisturbed();
    let run = Run::new("survives");
    let child = run.start(&["train", "gang.toml", "--quiet"]);
    run.wait_for_steps(2);
    run.kill("sh judge.sh");
    run.kill("rloom.worker");
    run.wait_for_steps(2);
    run.kill("rloom node");
    succeeded(&run.finish(child));
    let warnings = run.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let [rank, daemon] = [&warnings[0], &warnings[1]];
    assert!(rank.contains("the trainer was lost in step") && rank.contains("rank "), "{rank}");
    assert!(rank.contains("SIGKILL") && rank.contains("restart 1 of 3: stage `rl` continues from"), "{rank}");
    assert!(daemon.contains("the trainer was lost in step") && daemon.contains("this machine"), "{daemon}");
    assert!(run.result() == expected, "other weights after the deaths of processes");

    let run = Run::new("resumes");
    let mut child = run.start(&["train", "gang.toml", "--quiet"]);
    run.wait_for_steps(4);
    child.kill().unwrap();
    child.wait().unwrap();
    run.check_ended();
    succeeded(&run.resume());
    assert!(run.result() == expected, "other weights after the death of the controller");
}

/// Any process of a run dies at any time; the run survives, or ends with a message and can be resumed.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn any_process_may_die_at_any_time() {
    let started = Instant::now();
    let expected = undisturbed();
    let longest = started.elapsed().as_millis() as u64;
    let seed = std::env::var("RLOOM_TEST_SEED").map_or(5, |text| text.parse().unwrap());
    let draws = RandomKey::new(seed, 0, Purpose::Interactive, 0).stream();
    let mut drawn = 0;
    let mut below = |limit| {
        drawn += 1;
        draws.below(drawn, limit)
    };
    let run = Run::new("any");
    let mut child = run.start(&["train", "gang.toml", "--quiet"]);
    let mut kills = 0;
    loop {
        // The whole run once per two kills: it ends between the last ones.
        std::thread::sleep(Duration::from_millis(below(longest)));
        let processes = run.processes("");
        if kills < 6 && !processes.is_empty() && child.try_wait().unwrap().is_none() {
            let victim = processes[below(processes.len() as u64) as usize];
            let line = std::fs::read_to_string(format!("/proc/{victim}/cmdline")).unwrap_or_default();
            println!("after {} steps: {}", run.steps(), line.replace('\0', " "));
            // It may have ended by itself.
            let _ = Command::new("kill").args(["-KILL", &victim.to_string()]).status().unwrap();
            kills += 1;
        }
        if child.try_wait().unwrap().is_none() && kills < 6 {
            continue;
        }
        let result = run.finish(child);
        run.check_ended();
        if result.code == Some(0) {
            break;
        }
        // None for the controller itself.
        assert!(result.code.is_none() || result.stderr.contains("error"), "{}", result.text());
        child = run.start(&["train", "--resume", "runs/gang", "--quiet"]);
    }
    assert!(run.result() == expected, "other weights");
}

/// A rank that stops is lost like one that has died.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_rank_that_hangs_is_replaced() {
    let expected = undisturbed();
    let run = Run::new("hangs");
    let child = run.start(&["train", "gang.toml", "--quiet", "--set", "trainer.step_timeout_seconds=10"]);
    run.wait_for_steps(2);
    let ranks = run.processes("rloom.worker");
    assert!(Command::new("kill").args(["-STOP", &ranks[0].to_string()]).status().unwrap().success());
    succeeded(&run.finish(child));
    let warnings = run.warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains("no rank reported progress for 10 s"),
        "{warnings:?}"
    );
    assert!(run.result() == expected, "other weights");
}

/// Runs in a file system of a limited size, then resumes in a larger one. Writes the output of the runs to `first` and `second`,
/// and the final folder to `kept`.
const SMALL_DISK: &str = r#"set -e
mkdir -p disk kept
mount -t tmpfs -o size="$2" tmpfs disk
code=0
"$1" train gang.toml --quiet --set run.directory=disk > first 2>&1 || code=$?
mount -o remount,size=1g disk
[ $code = 0 ] || "$1" train --resume disk/gang --quiet > second 2>&1
cp -rL disk/gang/checkpoints/latest/model.safetensors disk/gang/rollouts kept
exit $code
"#;

/// The disk fills in a publication, a checkpoint or the journal: the message names a file, and the run resumes.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_full_disk_ends_a_run_that_resumes() {
    let spaces = ["-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"];
    if !Command::new("unshare").args(spaces).status().is_ok_and(|status| status.success()) {
        println!("skipped: this machine has no unprivileged mounts");
        return;
    }
    let expected = undisturbed();
    let mut named = BTreeSet::new();
    for kib in [60, 120, 180, 240, 300] {
        let run = Run::new(&format!("disk{kib}"));
        run.sandbox.write("small.sh", SMALL_DISK);
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "small.sh", env!("CARGO_BIN_EXE_rloom"), &format!("{kib}k")]);
        command.current_dir(run.sandbox.path("")).env(MARK, &run.mark).env("OMP_NUM_THREADS", "1");
        let result = run.sandbox.finished(&command.output().unwrap());
        run.check_ended();
        let read = |name| std::fs::read_to_string(run.sandbox.path(name)).unwrap_or_default();
        let (first, second) = (read("first"), read("second"));
        println!("{kib} KiB: {first}");
        assert!(run.sandbox.path("kept/model.safetensors").is_file(), "{first}\n{second}\n{}", result.text());
        if result.code == Some(0) {
            continue;
        }
        assert!(first.contains("o space left") && first.contains("disk/gang/"), "{first}");
        named.insert(first);
        check_groups(&run.sandbox.path("kept/rollouts"));
        let weights = std::fs::read(run.sandbox.path("kept/model.safetensors")).unwrap();
        assert!(weights == expected, "other weights after a full disk");
    }
    assert!(named.len() >= 2, "{named:?}");
}
