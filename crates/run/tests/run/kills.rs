//! Runs that are killed anywhere can be resumed: recorded steps are repeated bitwise, and every group is trained on exactly
//! once.
//!
//! A child process runs a small recipe and is killed: from outside after a random time, or from inside at a file
//! operation, selected by its name, at which the disk may also be full. It is resumed and killed again until the run is
//! finished.
//!
//! `RLOOM_TEST_KILLS=N` kills N times as often, `RLOOM_TEST_SEED` selects other times and operations.

#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports its kills"
)]

mod kinds;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::engines::factory::{FolderSampling, Parts};
use crate::engines::folder_sampler::FolderSampler;
use crate::recipe;
use kinds::{AGENTS, COMMON, DISTILLATION, Engines, KINDS, Kind, OF_ROWS, REUSE, SEGMENTS};
use rloom_config::Config;
use rloom_core::{Purpose, RandomKey, RandomStream};
use rloom_run::{ResumeOptions, RunError, StopFlag, Summary, train_on};
use rloom_store::faults::{Fault, FaultPlan, fast_parent, install, install_at};
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Metrics, Observer, read_events};
use servers::Servers;
use tempfile::TempDir;

const KIND: &str = "RLOOM_TEST_KIND";
const DIRECTORY: &str = "RLOOM_TEST_RUN";
const OPERATIONS: &str = "RLOOM_TEST_OPERATIONS";
const KILL: &str = "RLOOM_TEST_KILL";
const STOP: &str = "RLOOM_TEST_STOP";
const URLS: &str = "RLOOM_TEST_URLS";
const DIES: &str = "RLOOM_TEST_DIES";

/// Addresses of the servers, in the process that they belong to.
static SERVERS: OnceLock<String> = OnceLock::new();

/// Addresses of the servers, in this process and in children.
fn urls() -> String {
    SERVERS.get().cloned().or_else(|| std::env::var(URLS).ok()).unwrap_or_default()
}

fn config(kind: &Kind, directory: &Path) -> Config {
    let urls = format!("rollout.urls=[{}]", urls());
    let urls = Some(urls.as_str()).filter(|_| kind.engines == Engines::Servers);
    let overrides: Vec<&str> = COMMON.iter().chain(kind.schedule).copied().chain(urls).collect();
    if OF_ROWS.contains(&kind.name) {
        let overrides: Vec<&str> =
            overrides.into_iter().filter(|key| !key.starts_with("sampling.")).collect();
        return recipe::without_sampling(directory, &overrides);
    }
    if kind.name == DISTILLATION {
        return recipe::without_groups(directory, &overrides);
    }
    recipe::config(directory, &overrides)
}

/// Requests a stop after a number of steps of reinforcement learning.
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

/// Starts or resumes a run.
fn run(kind: &Kind, config: &Config, observer: &mut StopAfter, stop: &StopFlag) -> Result<Summary, RunError> {
    let directory = config.run_directory();
    let exists = directory.join("config.toml").is_file();
    if !exists {
        // A kill before the configuration was written leaves a folder without a run.
        let _ = std::fs::remove_dir_all(&directory);
    }
    if kind.engines == Engines::Other {
        let (parts, inputs) = Parts::new(config);
        let engines = FolderSampling { parts, sampler: FolderSampler::new(32) };
        train_on(config, &engines, &inputs, observer, stop)
    } else if exists {
        rloom_run::resume(&directory, config, ResumeOptions::default(), observer, stop)
    } else {
        rloom_run::train(config, observer, stop)
    }
}

/// The process that the other tests start and kill.
#[test]
#[ignore = "a child process of the other tests"]
#[expect(clippy::exit, reason = "the exit code tells a full disk from a failed test")]
fn child() {
    let var = |name| std::env::var(name).ok();
    let Some(directory) = var(DIRECTORY) else { return };
    let kind = &KINDS[var(KIND).unwrap().parse::<usize>().unwrap()];
    let config = config(kind, Path::new(&directory));
    let folder = config.run_directory();
    let mut fills_the_disk = false;
    let installed = match var(KILL) {
        Some(kill) => {
            let [name, nth, moment] = kill.split(' ').collect::<Vec<_>>()[..].try_into().unwrap();
            let moment = MOMENTS[moment.parse::<usize>().unwrap()];
            fills_the_disk = matches!(moment, Fault::DiskFull | Fault::ShortWrite);
            install_at(folder, name, nth.parse().unwrap(), moment)
        }
        None => install(FaultPlan { folder, faults: Vec::new() }),
    };
    let stop = StopFlag::default();
    let mut observer = StopAfter(var(STOP).map_or(0, |steps| steps.parse().unwrap()), stop.clone());
    let result = run(kind, &config, &mut observer, &stop);
    if fills_the_disk && let Err(error) = &result {
        let text = error.to_string();
        assert!(text.contains("no storage space") && text.contains(&directory), "{text}");
        std::process::exit(FULL_DISK);
    }
    result.unwrap();
    if let Some(file) = var(OPERATIONS) {
        std::fs::write(file, installed.operations().join("\n")).unwrap();
    }
}

/// Ends at an operation: a kill before, during or after it, or an error that ends the run.
const MOMENTS: [Fault; 5] =
    [Fault::AbortBefore, Fault::AbortDuring, Fault::AbortAfter, Fault::DiskFull, Fault::ShortWrite];
/// Exit code of a child that a full disk has ended.
const FULL_DISK: i32 = 28;

fn start_child(kind: usize, directory: &Path, more: &[(&str, String)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child", "--ignored", "--nocapture"])
        .env(KIND, kind.to_string())
        .env(DIRECTORY, directory)
        .env(URLS, urls())
        .envs(more.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A temporary folder, in memory if possible: syncing is fast there, and a killed process loses nothing that it has
/// written.
fn folder() -> TempDir {
    let mut folder = tempfile::tempdir_in(fast_parent()).unwrap();
    folder.disable_cleanup(std::env::var_os("RLOOM_TEST_KEEP").is_some());
    folder
}

/// A run that is not killed.
struct Undisturbed {
    result: BTreeMap<&'static str, Vec<u8>>,
    /// Names and numbers of its file operations.
    operations: Vec<(String, u64)>,
    time: Duration,
}

fn undisturbed(kind: usize) -> Undisturbed {
    let directory = folder();
    let file = directory.path().join("operations");
    let started = Instant::now();
    let mut child = start_child(kind, directory.path(), &[(OPERATIONS, file.display().to_string())]);
    assert!(child.wait().unwrap().success());
    let time = started.elapsed();
    let mut operations = BTreeMap::new();
    for name in std::fs::read_to_string(file).unwrap().lines() {
        *operations.entry(name.to_owned()).or_insert(0) += 1;
    }
    let config = config(&KINDS[kind], directory.path());
    let mut trained = TrainedSteps::default();
    trained.read(&config);
    trained.check_finished(&KINDS[kind], &config);
    Undisturbed { result: result(&config), operations: operations.into_iter().collect(), time }
}

/// Final weights and optimiser state.
fn result(config: &Config) -> BTreeMap<&'static str, Vec<u8>> {
    let last = format!("checkpoints/rl-step-{:06}", config.stages[1].steps);
    let folder = config.run_directory().join(last);
    let read = |name| (name, std::fs::read(folder.join(name)).unwrap());
    let has_adapter = config.stages[1].trainer.lora.is_some();
    let weights = if has_adapter { "adapter_model.safetensors" } else { "model.safetensors" };
    [weights, "trainer/optimizer.safetensors"].into_iter().map(read).collect()
}

/// Trajectories that a run reports for each step. Later attempts must report the same ones.
#[derive(Default)]
struct TrainedSteps {
    steps: BTreeMap<u64, Vec<LoggedTrajectory>>,
}

impl TrainedSteps {
    /// Reads the steps of a run after an attempt.
    fn read(&mut self, config: &Config) {
        let run = config.run_directory();
        for step in 1..=config.stages[1].steps {
            let path = run.join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
            let Ok(bytes) = std::fs::read(path) else { continue };
            let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
            let now: Vec<LoggedTrajectory> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let before = self.steps.entry(step).or_insert_with(|| now.clone());
            assert!(*before == now, "step {step} was trained on other trajectories before");
        }
    }

    /// Checks a finished run. A stage without rollouts has its metrics and its weights alone.
    fn check_finished(&self, kind: &Kind, config: &Config) {
        let stage = &config.stages[1];
        if stage.rollout.is_none() {
            return check_events(kind, config);
        }
        let mut tickets = BTreeSet::new();
        assert_eq!(self.steps.len() as u64, stage.steps);
        for (step, all) in &self.steps {
            let (reused, trained): (Vec<&LoggedTrajectory>, Vec<_>) = all.iter().partition(|t| t.reused);
            let of_reused: BTreeSet<u64> = reused.iter().map(|t| t.trajectory.key.ticket.0).collect();
            let expected = if kind.name == REUSE && *step > 1 { 2 } else { 0 };
            assert_eq!(of_reused.len(), expected, "step {step}");
            assert!(of_reused.is_subset(&tickets), "step {step} reuses groups that were not trained on");
            let own: BTreeSet<u64> = trained.iter().map(|t| t.trajectory.key.ticket.0).collect();
            assert_eq!(own.len() as u64, stage.groups_per_batch, "step {step}");
            let keys: BTreeSet<_> = trained.iter().map(|t| t.trajectory.key).collect();
            assert_eq!(keys.len(), trained.len(), "a segment is trained on twice");
            let episodes: BTreeSet<_> = keys.iter().map(|key| (key.ticket, key.sample)).collect();
            assert_eq!(episodes.len() as u64, stage.groups_per_batch * u64::from(stage.algorithm.group_size));
            assert!(kind.name == SEGMENTS || keys.len() == episodes.len());
            for ticket in own {
                assert!(tickets.insert(ticket), "group {ticket} is trained on twice");
            }
            for span in trained.iter().flat_map(|t| &t.trajectory.versions) {
                let version = step - 1;
                assert!(
                    span.version.0 <= version && version - span.version.0 <= kind.max_staleness,
                    "step {step} was trained on version {}",
                    span.version.0
                );
            }
        }
        let mut uses: BTreeMap<_, u64> = BTreeMap::new();
        for reused in self.steps.values().flatten().filter(|t| t.reused) {
            *uses.entry(reused.trajectory.key).or_default() += 1;
        }
        assert!(uses.values().all(|&uses| uses <= 2), "a group is reused too often");
        let later = self.steps.values().flatten().filter(|t| t.trajectory.key.segment > 0);
        assert_eq!(later.count() > 20, kind.name == SEGMENTS, "segments after the first");
        let by_domain = stage.rollout.as_ref().is_some_and(|rollout| rollout.domains.replaces_groups());
        let filters = by_domain || stage.algorithm.filters.replaces_groups();
        assert!(
            filters || tickets.into_iter().eq(0..stage.steps * stage.groups_per_batch),
            "a group was not trained on"
        );
        check_events(kind, config);
    }
}

/// Checks that several attempts report the same metrics for the same step or evaluation.
fn check_events(kind: &Kind, config: &Config) {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let mut reported: BTreeMap<(String, bool, u64), Metrics> = BTreeMap::new();
    for line in lines {
        let (is_step, metrics) = match line.event {
            Event::Step { metrics } => (true, metrics),
            Event::Evaluation { metrics, .. } | Event::Validation { metrics, .. } => (false, metrics),
            Event::Warning { message } => {
                let is_killed_server = kind.engines == Engines::Servers
                    && message.starts_with("replica ")
                    && message.contains(" failed and is tried again");
                // The report is telemetry: a full disk at the end of the run costs no more than it.
                let is_report = message.starts_with("no report was written");
                assert!(is_killed_server || is_report || message.contains("incomplete record"), "{message}");
                continue;
            }
            _ => continue,
        };
        let mut timed = vec!["time/", "tokens_per_second/", "overlap", "queue/", "rollout/"];
        if kind.max_staleness > 0 {
            // Counts groups that complete during training: other ones when a batch is trained again.
            timed.push("num_tokens");
        }
        if kind.name == AGENTS {
            // Counts episodes that are played in this attempt.
            timed.push("sessions/");
        }
        let is_timeless = |name: &str| !timed.iter().any(|t| name.starts_with(t));
        let metrics: Metrics = metrics.into_iter().filter(|(name, _)| is_timeless(name)).collect();
        let position = (line.stage, is_step, line.global_step);
        let before = reported.entry(position.clone()).or_insert_with(|| metrics.clone());
        assert_eq!(*before, metrics, "{position:?}, attempt {}", line.attempt);
    }
    let trained = reported.keys().filter(|(_, is_step, _)| *is_step).count() as u64;
    assert_eq!(trained, config.stages.iter().map(|stage| stage.steps).sum::<u64>());
}

/// A kill of a child.
enum Kill {
    /// After a time.
    After(Duration),
    /// At a file operation: its name, its index among those of that name, and the moment.
    At(String),
    Never,
}

#[derive(PartialEq)]
enum Outcome {
    Killed,
    Ended,
}

fn attempt(kind: usize, directory: &Path, kill: &Kill, stop: u64) -> Outcome {
    let mut environment = vec![(STOP, stop.to_string()), (DIES, "yes".to_owned())];
    if let Kill::At(at) = kill {
        environment.push((KILL, at.clone()));
    }
    let mut child = start_child(kind, directory, &environment);
    if let Kill::After(time) = kill {
        std::thread::sleep(*time);
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
    }
    let status: ExitStatus = child.wait().unwrap();
    match (status.signal(), status.code(), kill) {
        (Some(9), _, Kill::After(_)) | (Some(6), _, Kill::At(_)) | (_, Some(FULL_DISK), Kill::At(_)) => {
            Outcome::Killed
        }
        _ => {
            let at = if let Kill::At(at) = kill { at } else { "" };
            assert!(status.success(), "{}: {status}; planned kill: `{at}`", KINDS[kind].name);
            Outcome::Ended
        }
    }
}

/// Kills runs of a kind at random times and at named operations.
struct Campaign {
    kind: usize,
    undisturbed: Undisturbed,
    draws: RandomStream,
    drawn: u64,
    /// Remaining kills at random times, and at named operations.
    left: [u64; 2],
    next_operation: usize,
    /// Names of the operations at which children were killed.
    killed_at: BTreeSet<String>,
    runs: u64,
    attempts: u64,
}

impl Campaign {
    fn below(&mut self, limit: u64) -> u64 {
        self.drawn += 1;
        self.draws.below(self.drawn, limit)
    }

    fn next_kill(&mut self, attempts: u64) -> Kill {
        let named = match self.left {
            [0, 0] => return Kill::Never,
            [0, _] => true,
            [_, 0] => false,
            _ => self.below(2) == 1,
        };
        if named {
            // In turn, so that every name is covered.
            self.next_operation += 1;
            let operations = &self.undisturbed.operations;
            let (name, count) = operations[self.next_operation % operations.len()].clone();
            let (nth, moment) = (self.below(count.min(4)), self.below(MOMENTS.len() as u64));
            return Kill::At(format!("{name} {nth} {moment}"));
        }
        // Longer with each attempt, so that the run also finishes on a machine that has become slower.
        let longest = self.undisturbed.time.mul_f64(0.6 + 0.1 * attempts as f64);
        Kill::After(longest.mul_f64(self.below(1000) as f64 / 1000.0))
    }

    fn one_run(&mut self) {
        self.runs += 1;
        let directory = folder();
        let config = config(&KINDS[self.kind], directory.path());
        let last = format!("checkpoints/rl-step-{:06}", config.stages[1].steps);
        let mut trained = TrainedSteps::default();
        for attempts in 0.. {
            self.attempts += 1;
            let kill = self.next_kill(attempts);
            let stop = if self.below(4) == 0 { 1 + self.below(4) } else { 0 };
            let outcome = attempt(self.kind, directory.path(), &kill, stop);
            trained.read(&config);
            match (&kill, outcome) {
                (Kill::After(_), Outcome::Killed) => self.left[0] -= 1,
                (Kill::At(at), Outcome::Killed) => {
                    self.left[1] -= 1;
                    self.killed_at.insert(at.split(' ').next().unwrap().to_owned());
                }
                (_, Outcome::Ended) if is_finished(&config, &last) => break,
                _ => {}
            }
        }
        let kind = &KINDS[self.kind];
        trained.check_finished(kind, &config);
        if kind.is_reproducible {
            assert!(result(&config) == self.undisturbed.result, "{}: other weights", kind.name);
        }
    }
}

fn is_finished(config: &Config, last: &str) -> bool {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let finished = lines.iter().any(|line| matches!(line.event, Event::RunFinished { .. }));
    assert!(!finished || config.run_directory().join(last).is_dir());
    finished
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

fn kill(kind: usize) {
    let seed = number("RLOOM_TEST_SEED", 11);
    if KINDS[kind].engines == Engines::Servers {
        let draws = RandomKey::new(seed, 1, Purpose::Interactive, 0).stream();
        let mut drawn = 0;
        let servers = Servers::start(move |limit| {
            drawn += 1;
            draws.below(drawn, limit)
        });
        SERVERS.set(servers.urls.clone()).unwrap();
        campaign(kind, seed);
        println!("{} kills of servers", servers.end());
    } else {
        campaign(kind, seed);
    }
}

fn campaign(kind: usize, seed: u64) {
    let kills = 3 * number("RLOOM_TEST_KILLS", 1);
    let mut campaign = Campaign {
        kind,
        undisturbed: undisturbed(kind),
        draws: RandomKey::new(seed, 0, Purpose::Interactive, kind as u64).stream(),
        drawn: 0,
        left: [kills; 2],
        next_operation: seed as usize * 7 + kind * 13,
        killed_at: BTreeSet::new(),
        runs: 0,
        attempts: 0,
    };
    while campaign.left != [0, 0] {
        campaign.one_run();
    }
    let Campaign { killed_at, runs, attempts, undisturbed, .. } = campaign;
    println!(
        "{}: {kills} kills at random times and {kills} at {} of {} named operations, in {runs} runs with {attempts} \
         attempts; undisturbed {:.1} s",
        KINDS[kind].name,
        killed_at.len(),
        undisturbed.operations.len(),
        undisturbed.time.as_secs_f64()
    );
}

#[test]
fn runs_with_judged_groups_end_in_the_same_bytes() {
    kill(5);
}

#[test]
fn runs_with_quotas_filters_and_a_curriculum_end_in_the_same_bytes() {
    kill(7);
}

#[test]
fn pinned_runs_with_quotas_and_a_curriculum_end_in_the_same_bytes() {
    kill(8);
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

#[test]
fn runs_on_servers_that_are_killed_repeat_what_they_recorded() {
    kill(6);
}

#[test]
fn runs_on_other_engines_repeat_what_they_recorded() {
    kill(4);
}

#[test]
fn runs_with_episodes_of_several_segments_end_in_the_same_bytes() {
    kill(9);
}

#[test]
fn runs_of_an_adapter_end_in_the_same_bytes() {
    kill(12);
}

#[test]
fn runs_on_pairs_of_samples_end_in_the_same_bytes() {
    kill(14);
}

#[test]
fn runs_on_preferences_end_in_the_same_bytes() {
    (15..18).for_each(kill);
}

#[test]
fn runs_that_distil_demonstrations_end_in_the_same_bytes() {
    kill(18);
}

#[test]
fn runs_that_distil_samples_end_in_the_same_bytes() {
    kill(19);
}

#[test]
#[cfg(target_os = "linux")]
fn runs_with_agents_end_in_the_same_bytes() {
    kill(10);
}

#[test]
fn runs_that_train_a_reward_model_end_in_the_same_bytes() {
    kill(13);
}

#[test]
fn runs_that_reuse_groups_end_in_the_same_bytes() {
    kill(11);
}
