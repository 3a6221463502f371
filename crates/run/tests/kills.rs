//! Killed anywhere, a run goes on: what was recorded is repeated to the bit, and nothing is done twice or left out.
//!
//! A child process runs a small recipe and is killed: from outside after a random time, or from inside at one of the
//! operations on files, by its name. It is resumed and killed again until the run is through.
//!
//! `RLOOM_TEST_KILLS=N` kills N times as often, `RLOOM_TEST_SEED` elsewhere.

#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and tells of its kills"
)]

mod recipe;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rloom_config::Config;
use rloom_core::{Purpose, RandomKey, RandomStream};
use rloom_run::StopFlag;
use rloom_store::faults::{Fault, FaultPlan, install, install_at};
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Metrics, Observer, read_events};
use tempfile::TempDir;

const KIND: &str = "RLOOM_TEST_KIND";
const PLACE: &str = "RLOOM_TEST_RUN";
const POINTS: &str = "RLOOM_TEST_POINTS";
const DEATH: &str = "RLOOM_TEST_DEATH";
const STOP: &str = "RLOOM_TEST_STOP";

/// What is killed.
struct Kind {
    name: &'static str,
    schedule: &'static [&'static str],
    /// The bound on staleness.
    staleness: u64,
    /// Whether what it learns does not depend on timing.
    is_exact: bool,
}

const KINDS: [Kind; 4] = [
    Kind { name: "synchronous", schedule: &[], staleness: 0, is_exact: true },
    Kind {
        name: "recompute",
        schedule: &["schedule.max_staleness=2", "schedule.on_update=recompute"],
        staleness: 2,
        is_exact: false,
    },
    Kind {
        name: "abort",
        schedule: &["schedule.max_staleness=2", "schedule.on_update=abort"],
        staleness: 2,
        is_exact: false,
    },
    Kind {
        name: "pinned",
        // So little at once that requests wait for the engine, whose weights change meanwhile.
        schedule: &["schedule.max_staleness=2", "schedule.pin_version=true", "rollout.max_batch=2"],
        staleness: 2,
        is_exact: true,
    },
];

/// Several checkpoints and evaluations, batches between them that only the journal has, and rewards by which every
/// group is trained on.
const COMMON: [&str; 8] = [
    "stage.warmup.steps=3",
    "stage.rl.steps=14",
    "run.checkpoint_every=4",
    "run.keep_every=0",
    "eval.every=5",
    "eval.tasks=16",
    "sampling.max_new_tokens=12",
    "reward.components=[{kind='random'},{kind='exact'}]",
];

fn config(kind: &Kind, place: &Path) -> Config {
    let overrides: Vec<&str> = COMMON.iter().chain(kind.schedule).copied().collect();
    recipe::config(place, &overrides)
}

/// Asks to stop after so many steps of reinforcement learning.
struct StopAfter(u64, StopFlag);

impl Observer for StopAfter {
    fn observe(&mut self, line: &EventLine) {
        if line.stage == "rl" && matches!(line.event, Event::Step { .. }) && self.0 > 0 {
            self.0 -= 1;
            if self.0 == 0 {
                self.1.request();
            }
        }
    }
}

/// Not a test of its own: the process that the others start and kill.
#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let var = |name| std::env::var(name).ok();
    let Some(place) = var(PLACE) else { return };
    let kind = &KINDS[var(KIND).unwrap().parse::<usize>().unwrap()];
    let config = config(kind, Path::new(&place));
    let below = config.run_directory();
    let installed = match var(DEATH) {
        Some(death) => {
            let [name, nth, when] = death.split(' ').collect::<Vec<_>>()[..].try_into().unwrap();
            let when = WHEN[when.parse::<usize>().unwrap()];
            install_at(below.clone(), name, nth.parse().unwrap(), when)
        }
        None => install(FaultPlan { folder: below.clone(), faults: Vec::new() }),
    };
    let stop = StopFlag::default();
    let mut observer = StopAfter(var(STOP).map_or(0, |steps| steps.parse().unwrap()), stop.clone());
    if below.join("config.toml").is_file() {
        rloom_run::resume(&below, &config, &mut observer, &stop).unwrap();
    } else {
        // A kill before the configuration was written leaves a folder without a run.
        let _ = std::fs::remove_dir_all(&below);
        rloom_run::train(&config, &mut observer, &stop).unwrap();
    }
    if let Some(file) = var(POINTS) {
        std::fs::write(file, installed.operations().join("\n")).unwrap();
    }
}

const WHEN: [Fault; 3] = [Fault::AbortBefore, Fault::AbortDuring, Fault::AbortAfter];

fn start_child(kind: usize, place: &Path, more: &[(&str, String)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(KIND, kind.to_string())
        .env(PLACE, place)
        .envs(more.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A folder where syncing is quick, where the machine has that: a killed process loses nothing that it has written.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let mut made = made.unwrap();
    made.disable_cleanup(std::env::var_os("RLOOM_TEST_KEEP").is_some());
    made
}

/// A run of its kind that nothing happens to.
struct Undisturbed {
    result: BTreeMap<&'static str, Vec<u8>>,
    /// Names of its file operations, with how often there were such.
    points: Vec<(String, u64)>,
    time: Duration,
}

fn undisturbed(kind: usize) -> Undisturbed {
    let directory = folder();
    let file = directory.path().join("points");
    let begun = Instant::now();
    let mut child = start_child(kind, directory.path(), &[(POINTS, file.display().to_string())]);
    assert!(child.wait().unwrap().success());
    let time = begun.elapsed();
    let mut points = BTreeMap::new();
    for name in std::fs::read_to_string(file).unwrap().lines() {
        *points.entry(name.to_owned()).or_insert(0) += 1;
    }
    let config = config(&KINDS[kind], directory.path());
    let mut seen = Seen::default();
    seen.look(&config);
    seen.check_whole(&KINDS[kind], &config);
    Undisturbed { result: result(&config), points: points.into_iter().collect(), time }
}

/// What the last checkpoint says that was learned.
fn result(config: &Config) -> BTreeMap<&'static str, Vec<u8>> {
    let last = format!("checkpoints/rl-step-{:06}", config.stages[1].steps);
    let folder = config.run_directory().join(last);
    let read = |name| (name, std::fs::read(folder.join(name)).unwrap());
    ["model.safetensors", "trainer/optimizer.safetensors"].into_iter().map(read).collect()
}

/// What a run has said that it was trained on: a step that was told of may never be another one later.
#[derive(Default)]
struct Seen {
    steps: BTreeMap<u64, Vec<LoggedTrajectory>>,
}

impl Seen {
    /// Looks at a run after an attempt.
    fn look(&mut self, config: &Config) {
        let run = config.run_directory();
        for step in 1..=config.stages[1].steps {
            let path = run.join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
            let Ok(bytes) = std::fs::read(path) else { continue };
            let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
            let now: Vec<LoggedTrajectory> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let before = self.steps.entry(step).or_insert_with(|| now.clone());
            assert!(*before == now, "step {step} was trained on something else before");
        }
    }

    /// Looks at a run that is through.
    fn check_whole(&self, kind: &Kind, config: &Config) {
        let stage = &config.stages[1];
        let mut tickets = BTreeSet::new();
        assert_eq!(self.steps.len() as u64, stage.steps);
        for (step, trained) in &self.steps {
            let own: BTreeSet<u64> = trained.iter().map(|t| t.trajectory.key.ticket.0).collect();
            assert_eq!(own.len() as u64, stage.batch, "step {step}");
            assert_eq!(trained.len() as u64, stage.batch * u64::from(stage.algorithm.group_size));
            for ticket in own {
                assert!(tickets.insert(ticket), "group {ticket} is trained on twice");
            }
            for span in trained.iter().flat_map(|t| &t.trajectory.versions) {
                let version = step - 1;
                assert!(
                    span.version.0 <= version && version - span.version.0 <= kind.staleness,
                    "step {step} was trained on version {}",
                    span.version.0
                );
            }
        }
        assert!(tickets.into_iter().eq(0..stage.steps * stage.batch), "a group is left out");
        check_told(kind, config);
    }
}

/// What several attempts tell of the same step, and of the same evaluation, is the same.
fn check_told(kind: &Kind, config: &Config) {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let mut told: BTreeMap<(bool, u64), Metrics> = BTreeMap::new();
    for line in lines {
        let (is_step, metrics) = match line.event {
            Event::Step { metrics } => (true, metrics),
            Event::Evaluation { metrics, .. } => (false, metrics),
            Event::Warning { message } => {
                assert!(message.contains("torn record"), "{message}");
                continue;
            }
            _ => continue,
        };
        let mut timed = vec!["time/", "tokens_per_second/", "overlap", "queue/"];
        if kind.staleness > 0 {
            // Those that arrived beside the training count: others do when a batch that was cut is trained again.
            timed.push("num_tokens");
        }
        let is_timeless = |name: &str| !timed.iter().any(|t| name.starts_with(t));
        let metrics: Metrics = metrics.into_iter().filter(|(name, _)| is_timeless(name)).collect();
        let place = (is_step, line.global_step);
        let before = told.entry(place).or_insert_with(|| metrics.clone());
        assert_eq!(*before, metrics, "{place:?}, attempt {}", line.attempt);
    }
}

/// How a child is to die.
enum Death {
    /// Killed after a time.
    After(Duration),
    /// At the n-th operation of a name.
    At(String),
    /// Not at all.
    Spared,
}

/// What became of a child.
#[derive(PartialEq)]
enum Fate {
    Killed,
    Ended,
}

fn attempt(kind: usize, place: &Path, death: &Death, stop: u64) -> Fate {
    let mut environment = vec![(STOP, stop.to_string())];
    if let Death::At(at) = death {
        environment.push((DEATH, at.clone()));
    }
    let mut child = start_child(kind, place, &environment);
    if let Death::After(patience) = death {
        std::thread::sleep(*patience);
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
    }
    let status: ExitStatus = child.wait().unwrap();
    match (status.signal(), death) {
        (Some(9), Death::After(_)) | (Some(6), Death::At(_)) => Fate::Killed,
        _ => {
            let death = if let Death::At(at) = death { at } else { "" };
            assert!(status.success(), "{}: {status}; it was to die at `{death}`", KINDS[kind].name);
            Fate::Ended
        }
    }
}

/// Kills runs of a kind, so often at random times and so often at named operations.
struct Campaign {
    kind: usize,
    whole: Undisturbed,
    draws: RandomStream,
    drawn: u64,
    /// Kills that are still to be: at random times, at named operations.
    left: [u64; 2],
    next_point: usize,
    /// Names of the operations that runs died at.
    died_at: BTreeSet<String>,
    runs: u64,
    attempts: u64,
}

impl Campaign {
    fn below(&mut self, limit: u64) -> u64 {
        self.drawn += 1;
        self.draws.below(self.drawn, limit)
    }

    fn death(&mut self, attempts: u64) -> Death {
        let named = match self.left {
            [0, 0] => return Death::Spared,
            [0, _] => true,
            [_, 0] => false,
            _ => self.below(2) == 1,
        };
        if named {
            // One after the other, so that all of them have their turn.
            self.next_point += 1;
            let (name, count) = self.whole.points[self.next_point % self.whole.points.len()].clone();
            let (nth, when) = (self.below(count.min(4)), self.below(3));
            return Death::At(format!("{name} {nth} {when}"));
        }
        // Longer with time, so that a machine that has become slower gets to the end too.
        let most = self.whole.time.mul_f64(0.6 + 0.1 * attempts as f64);
        Death::After(most.mul_f64(self.below(1000) as f64 / 1000.0))
    }

    fn one_run(&mut self) {
        self.runs += 1;
        let directory = folder();
        let config = config(&KINDS[self.kind], directory.path());
        let last = format!("checkpoints/rl-step-{:06}", config.stages[1].steps);
        let mut seen = Seen::default();
        for attempts in 0.. {
            self.attempts += 1;
            let death = self.death(attempts);
            let stop = if self.below(4) == 0 { 1 + self.below(4) } else { 0 };
            let fate = attempt(self.kind, directory.path(), &death, stop);
            seen.look(&config);
            match (&death, fate) {
                (Death::After(_), Fate::Killed) => self.left[0] -= 1,
                (Death::At(at), Fate::Killed) => {
                    self.left[1] -= 1;
                    self.died_at.insert(at.split(' ').next().unwrap().to_owned());
                }
                (_, Fate::Ended) if is_through(&config, &last) => break,
                _ => {}
            }
        }
        let kind = &KINDS[self.kind];
        seen.check_whole(kind, &config);
        if kind.is_exact {
            assert!(result(&config) == self.whole.result, "{}: other weights", kind.name);
        }
    }
}

fn is_through(config: &Config, last: &str) -> bool {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let finished = lines.iter().any(|line| matches!(line.event, Event::RunFinished { .. }));
    assert!(!finished || config.run_directory().join(last).is_dir());
    finished
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

fn kill(kind: usize) {
    let seed = number("RLOOM_TEST_SEED", 11);
    let kills = 3 * number("RLOOM_TEST_KILLS", 1);
    let mut campaign = Campaign {
        kind,
        whole: undisturbed(kind),
        draws: RandomKey::new(seed, 0, Purpose::Interactive, kind as u64).stream(),
        drawn: 0,
        left: [kills; 2],
        next_point: seed as usize * 7 + kind * 13,
        died_at: BTreeSet::new(),
        runs: 0,
        attempts: 0,
    };
    while campaign.left != [0, 0] {
        campaign.one_run();
    }
    let Campaign { died_at, runs, attempts, whole, .. } = campaign;
    println!(
        "{}: {kills} kills at random times and {kills} at {} of {} named operations, in {runs} runs with {attempts} \
         attempts; undisturbed {:.1} s",
        KINDS[kind].name,
        died_at.len(),
        whole.points.len(),
        whole.time.as_secs_f64()
    );
}

#[test]
fn synchronous_runs_end_in_the_same_bytes() {
    kill(0);
}

#[test]
fn runs_that_recompute_repeat_what_they_recorded() {
    kill(1);
}

#[test]
fn runs_that_abort_repeat_what_they_recorded() {
    kill(2);
}

#[test]
fn pinned_runs_end_in_the_same_bytes() {
    kill(3);
}
