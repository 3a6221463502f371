//! Processes that die or hang, and full disks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rloom_core::{Purpose, RandomKey};

use super::run::{GROUPS, MARK, Run, STEPS, succeeded, undisturbed, wait_for};
use crate::support::audit::check_groups;

/// Ranks, of which one is still starting, a function and the daemon die in a run, which survives; then a run whose controller
/// is killed resumes. Both end in the same weights, bit by bit.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_run_survives_the_deaths_of_its_processes() {
    let (expected, _) = undisturbed();
    let run = Run::new("survives");
    let mut child = run.start(&["train", "gang.toml", "--quiet"]);
    run.kill("rloom.worker");
    run.wait_for_steps(&mut child, 2);
    run.kill("sh judge.sh");
    run.kill("rloom.worker");
    run.wait_for_steps(&mut child, 2);
    run.kill("rloom node");
    succeeded(&run.finish(child));
    let warnings = run.warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let [start, rank, daemon] = [&warnings[0], &warnings[1], &warnings[2]];
    assert!(
        start.contains("the trainer was lost at its start: rank ") && start.contains("SIGKILL"),
        "{start}"
    );
    assert!(rank.contains("the trainer was lost in step") && rank.contains("rank "), "{rank}");
    assert!(rank.contains("SIGKILL") && rank.contains(" of 3: stage `rl` continues from"), "{rank}");
    assert!(daemon.contains("the trainer was lost in step") && daemon.contains("this machine"), "{daemon}");
    assert!(run.result() == *expected, "other weights after the deaths of processes");

    let run = Run::new("resumes");
    let mut child = run.start(&["train", "gang.toml", "--quiet"]);
    run.wait_for_steps(&mut child, 4);
    child.kill().unwrap();
    child.wait().unwrap();
    run.check_ended();
    succeeded(&run.resume());
    assert!(run.result() == *expected, "other weights after the death of the controller");
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Any process of a run dies at any time; the run survives, or ends with a message and can be resumed. `RLOOM_TEST_RUNS`
/// is the number of runs, `RLOOM_TEST_SEED` selects other times and processes.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn any_process_may_die_at_any_time() {
    let (expected, length) = undisturbed();
    let first = number("RLOOM_TEST_SEED", 5);
    let mut hits = 0;
    for seed in first..first + number("RLOOM_TEST_RUNS", 1) {
        let run = Run::new(&format!("any{seed}"));
        hits += kill_at_random(&run, seed, *length);
        run.check_journal(STEPS, GROUPS);
        assert!(run.result() == *expected, "seed {seed}: other weights");
    }
    assert!(hits > 0, "all runs ended before a process was killed");
}

/// Runs to the end with up to six kills. Returns the number of those that hit a process.
fn kill_at_random(run: &Run, seed: u64, length: Duration) -> u32 {
    let draws = RandomKey::new(seed, 0, Purpose::Interactive, 0).stream();
    let mut drawn = 0;
    let mut below = |limit| {
        drawn += 1;
        draws.below(drawn, limit)
    };
    let (mut kills, mut hits, mut slowest) = (0, 0, Duration::ZERO);
    for attempt in 0..20 {
        let mut child = if run.sandbox.path("runs/gang/config.toml").is_file() {
            run.start(&["train", "--resume", "runs/gang", "--quiet"])
        } else {
            // A kill before the configuration was written leaves a folder without a run.
            let _ = std::fs::remove_dir_all(run.sandbox.path("runs"));
            run.start(&["train", "gang.toml", "--quiet", "--set", "run.keep_last=100"])
        };
        while kills < 6 {
            // The whole run once per two kills: it ends between the last ones.
            std::thread::sleep(Duration::from_millis(below(length.as_millis() as u64)));
            if child.try_wait().unwrap().is_some() {
                break;
            }
            let processes = run.processes("");
            if processes.is_empty() {
                break;
            }
            let victim = processes[below(processes.len() as u64) as usize];
            let line = std::fs::read_to_string(format!("/proc/{victim}/cmdline")).unwrap_or_default();
            println!("seed {seed}, attempt {attempt}, {} steps: {}", run.steps(), line.replace('\0', " "));
            // It may have ended by itself.
            let status = Command::new("kill").args(["-KILL", &victim.to_string()]).status().unwrap();
            hits += u32::from(status.success());
            kills += 1;
        }
        let result = run.finish(child);
        slowest = slowest.max(run.check_ended());
        if result.code == Some(0) {
            let warnings = run.warnings().join("\n  ");
            println!("seed {seed}: the last process ended {slowest:.1?} after its run\n  {warnings}");
            return hits;
        }
        // None for the controller itself.
        assert!(result.code.is_none() || result.stderr.contains("error"), "{}", result.text());
        println!("seed {seed}, attempt {attempt}: {}", result.text());
    }
    panic!("seed {seed}: the run does not end");
}

/// Python runs this at its start: SIGUSR2 then keeps the main thread of a rank busy for ever, while its other threads continue.
const HANGING: &str = r#"import signal, sys, time

def hang(*_):
    time.sleep(1e9)

if "rloom.worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, hang)
"#;

/// A rank that makes no progress is found by the deadline of its step, and one that stops as a whole by its silence. Both are
/// lost like a rank that has died. Of the first, all ranks have written their stacks.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_rank_that_hangs_is_replaced() {
    let (expected, _) = undisturbed();
    let run = Run::new("hangs");
    run.sandbox.write("sitecustomize.py", HANGING);
    let paths = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let paths = [run.sandbox.path("")].into_iter().chain(std::env::split_paths(&paths));
    let mut child = run
        .command(&["train", "gang.toml", "--quiet", "--set", "stage.rl.trainer.step_timeout_seconds=20"])
        .env("PYTHONPATH", std::env::join_paths(paths).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    run.wait_for_steps(&mut child, 2);
    let hanging = run.signal("-USR2", "rloom.worker");
    wait_for(&mut child, "the loss of a rank that hangs", || !run.warnings().is_empty());
    assert!(!PathBuf::from(format!("/proc/{hanging}")).exists(), "the rank is still there");
    for rank in 0..2 {
        let log = run.sandbox.path(&format!("runs/gang/logs/policy-rank-{rank}.log"));
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains("most recent call first") && log.contains("rank.py"), "{log}");
    }
    run.wait_for_steps(&mut child, 1);
    run.signal("-STOP", "rloom.worker");
    succeeded(&run.finish(child));
    let warnings = run.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let [hung, stopped] = [&warnings[0], &warnings[1]];
    assert!(
        hung.contains("no rank reported progress for 20 s; rank ")
            && hung.contains("(stacks are in the logs"),
        "{hung}"
    );
    assert!(stopped.contains("was silent for 10 s"), "{stopped}");
    assert!(run.result() == *expected, "other weights");
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
    let (expected, _) = undisturbed();
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
        check_groups(&run.sandbox.path("kept/rollouts"), STEPS, GROUPS);
        let weights = std::fs::read(run.sandbox.path("kept/model.safetensors")).unwrap();
        assert!(weights == *expected, "other weights after a full disk");
    }
    assert!(named.len() >= 2, "{named:?}");
}
