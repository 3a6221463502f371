//! A long run that is killed over and over: memory, open files and disk stay flat.
//!
//! `RLOOM_SOAK_STEPS=100000 cargo test --release --test cli soak -- --nocapture` runs as many steps and prints a table with a
//! line for each attempt.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking and prints its measurements")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::Sandbox;

const RECIPE: &str = include_str!("support/soak.toml");
/// Attempts that are killed.
const KILLS: u64 = 12;
/// Steps whose rollouts the recipe keeps.
const ROLLOUTS: usize = 100;

/// Largest values during an attempt, and the disk space after it, without the history that grows with every step.
#[derive(Debug, Clone, Copy, Default)]
struct Attempt {
    memory_kib: u64,
    open_files: usize,
    disk_kib: u64,
}

impl Attempt {
    fn sample(&mut self, child: &Child) {
        let process = format!("/proc/{}", child.id());
        let status = std::fs::read_to_string(format!("{process}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        self.memory_kib = self.memory_kib.max(resident.unwrap_or(0));
        let open = std::fs::read_dir(format!("{process}/fd")).map_or(0, Iterator::count);
        self.open_files = self.open_files.max(open);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    // A running process removes files.
    entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect()
}

/// Size of the files in a folder in bytes, without `events.jsonl` and `tensorboard`.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.filter_map(Result::ok).map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() && entry.file_name() != "tensorboard" => size(&entry.path()),
        Ok(kind) if kind.is_file() && entry.file_name() != "events.jsonl" => {
            entry.metadata().map_or(0, |data| data.len())
        }
        _ => 0,
    });
    sizes.sum()
}

/// Starts or continues the run. Kills it once there is a new checkpoint and a moment has passed, if `kills`.
fn attempt(sandbox: &Sandbox, steps: u64, number: u64, kills: bool) -> (Attempt, Option<i32>) {
    let steps_key = format!("stage.rl.steps={steps}");
    let every = format!("run.checkpoint_every={}", steps / (KILLS + 1));
    let arguments = ["train", "soak.toml", "--quiet", "--set", &steps_key, "--set", &every];
    let mut child = sandbox.command(&arguments).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let checkpoints = sandbox.path("runs/soak/checkpoints");
    let before = names(&checkpoints);
    let mut found = Attempt::default();
    loop {
        found.sample(&child);
        if let Some(status) = child.try_wait().unwrap() {
            found.disk_kib = size(&sandbox.path("runs/soak")) / 1024;
            return (found, status.code());
        }
        let is_new = |name: &String| name.starts_with("rl-step-") && !before.contains(name);
        if kills && names(&checkpoints).iter().any(is_new) {
            // Not always at the same place of a step.
            std::thread::sleep(Duration::from_millis(number * 37 % 100));
            child.kill().unwrap();
            child.wait().unwrap();
            found.disk_kib = size(&sandbox.path("runs/soak")) / 1024;
            return (found, None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Steps of each attempt, and seconds from its first to its last.
fn progress(events: &Path) -> BTreeMap<u64, (u64, u64, f64)> {
    let mut attempts: BTreeMap<u64, (u64, u64, f64, f64)> = BTreeMap::new();
    for line in BufReader::new(std::fs::File::open(events).unwrap()).lines() {
        // The last line of a killed process may be torn.
        let Ok(Value::Object(line)) = serde_json::from_str(&line.unwrap()) else { continue };
        if line["event"] != "step" {
            continue;
        }
        let (step, elapsed) = (line["step"].as_u64().unwrap(), line["elapsed"].as_f64().unwrap());
        let own = attempts.entry(line["attempt"].as_u64().unwrap()).or_insert((step, step, elapsed, elapsed));
        (own.1, own.3) = (step, elapsed);
    }
    attempts.into_iter().map(|(number, (first, last, from, to))| (number, (first, last, to - from))).collect()
}

#[test]
fn memory_files_and_disk_stay_flat_over_kills() {
    let steps = std::env::var("RLOOM_SOAK_STEPS").map_or(2600, |steps| steps.parse().unwrap());
    let sandbox = Sandbox::new();
    sandbox.write("soak.toml", RECIPE);
    let mut attempts = Vec::new();
    for number in 1..=KILLS + 1 {
        let (found, code) = attempt(&sandbox, steps, number, number <= KILLS);
        assert!(matches!(code, None | Some(0)), "attempt {number} exits with {code:?}");
        attempts.push(found);
        if code.is_some() {
            break;
        }
    }
    let run = sandbox.path("runs/soak");
    let progress = progress(&run.join("events.jsonl"));
    println!("attempt  steps            ms per step  memory MiB  open files  disk KiB");
    for (number, (first, last, seconds)) in &progress {
        let Attempt { memory_kib, open_files, disk_kib } = attempts[*number as usize - 1];
        println!(
            "{number:>7}  {:<15}  {:>11.3}  {:>10.1}  {open_files:>10}  {disk_kib:>8}",
            format!("{first} to {last}"),
            1e3 * seconds / (last - first).max(1) as f64,
            memory_kib as f64 / 1024.0,
        );
    }
    assert_eq!(progress.values().map(|own| own.1).max(), Some(steps));
    assert!(attempts.len() > KILLS as usize / 2, "only {} attempts", attempts.len());

    let (first, rest) = attempts.split_first().unwrap();
    for (number, found) in rest.iter().enumerate().map(|(i, found)| (i + 2, found)) {
        let memory_limit = first.memory_kib + first.memory_kib / 2 + 8 * 1024;
        assert!(found.memory_kib <= memory_limit, "attempt {number}: {found:?}, the first {first:?}");
        assert!(found.open_files <= first.open_files + 8, "attempt {number}: {found:?}, the first {first:?}");
    }
    let last = attempts.last().unwrap();
    assert!(last.disk_kib <= 2 * attempts[1].disk_kib + 1024, "{last:?}, the second {:?}", attempts[1]);
    assert_eq!(names(&run.join("rollouts")).len(), ROLLOUTS);
    let checkpoints = names(&run.join("checkpoints"));
    assert!(checkpoints.len() <= 4, "{checkpoints:?}");
    let folders =
        ["", "rollouts", "journal", "checkpoints", "tensorboard"].map(|folder| names(&run.join(folder)));
    let leftovers: Vec<_> = folders.iter().flatten().filter(|name| name.ends_with(".partial")).collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}
