//! Runs whose policy is called by agents outside of the program.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod leases;
mod player;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rloom_config::Config;
use rloom_core::Author;
use rloom_model::Model;
use rloom_run::{RunError, StopFlag, Summary};
use rloom_telemetry::{Event, EventLine, LoggedTrajectory, Metrics, Observer, read_events};

use crate::recipe;
use crate::staleness::scored;
use crate::stand_in::{Protocol, StandIn};
use player::command;

const DIRECTORY: &str = "RLOOM_TEST_AGENTS";
/// Longest wait for something that happens at once.
const LONG: Duration = Duration::from_mins(1);

/// Evaluation without agents.
const EVAL_ALONE: [&str; 2] =
    ["eval.environment={kind='single_turn'}", "eval.reward.components=[{kind='exact'}]"];

/// A run of two steps with agents.
fn config(directory: &Path, environment: &str, more: &[&str]) -> Config {
    let environment = format!("environment={{kind='agent',{environment}}}");
    let mut overrides = vec![
        environment.as_str(),
        recipe::CHAT_TEMPLATE,
        "stage.rl.steps=2",
        "stage.rl.groups_per_batch=3",
        "eval.tasks=4",
        "sampling.max_new_tokens=4",
        "reward.components=[{kind='environment'}]",
    ];
    overrides.extend(more);
    recipe::config(directory, &overrides)
}

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &EventLine) {}
}

fn train(config: &Config) -> Result<Summary, RunError> {
    rloom_run::train(config, &mut Silent, &StopFlag::default())
}

fn rollouts(config: &Config, step: u64) -> Vec<LoggedTrajectory> {
    let path = config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
    let text = String::from_utf8(zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Metrics of the steps of reinforcement learning.
fn metrics(config: &Config) -> Vec<Metrics> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let of_step = |line: EventLine| match line.event {
        Event::Step { metrics } if line.stage == "rl" => Some(metrics),
        _ => None,
    };
    lines.into_iter().filter_map(of_step).collect()
}

fn logs(config: &Config, name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(config.run_directory().join("agents").join(name));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn a_run_trains_on_what_its_agents_sampled() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), concat!(command!("rewarded"), ",keep_logs=3"), &[]);
    train(&config).unwrap();
    let metrics = metrics(&config);
    assert_eq!(metrics.len(), 2);
    for step in metrics {
        assert_eq!(
            (step["sessions/episodes"], step["sessions/calls"], step["sessions/segments"]),
            (12.0, 2.0, 1.0)
        );
        assert_eq!((step["sessions/failed"], step["sessions/reward/reward"]), (0.0, step["reward"]));
    }
    let trained = rollouts(&config, 2);
    assert_eq!(trained.len(), 12);
    for LoggedTrajectory { trajectory, .. } in &trained {
        trajectory.validate().unwrap();
        assert_eq!(trajectory.policy_ranges().count(), 2);
        assert!(trajectory.spans.iter().any(|span| span.author != Author::Policy && span.range.start > 0));
        let steps: Vec<f64> = trajectory.steps().map(|step| step.reward).collect();
        assert_eq!((steps.len(), steps[0]), (2, 0.0), "the reward of a session belongs to its last turn");
        assert!(trajectory.versions.iter().all(|span| span.version.0 == 1));
    }
    assert!(trained.iter().any(|logged| logged.trajectory.steps().any(|step| step.reward > 0.0)));
    assert_eq!((logs(&config, "rl").len(), logs(&config, "eval").len()), (3, 3));
    let log = config.run_directory().join("agents/rl").join(&logs(&config, "rl")[0]);
    assert!(std::fs::read_to_string(log).unwrap().contains("the agent begins"));
}

/// The sessions of agents are the same over servers outside as over the embedded engine.
#[test]
fn agents_are_sampled_by_a_pool_of_servers() {
    for (protocol, engine) in [(Protocol::Vllm, "vllm"), (Protocol::Sglang, "sglang")] {
        let folder = tempfile::tempdir().unwrap();
        let servers = [(); 2].map(|()| StandIn::at(0, protocol));
        let urls = servers.each_ref().map(|server| format!("'{}'", server.url)).join(",");
        let (urls, engine) = (format!("rollout.urls=[{urls}]"), format!("rollout.engine={engine}"));
        // As many tokens as the stand-ins have, which compute other log-probabilities than the trainer.
        let more = [
            &engine,
            "tokenizer.alphabet='0123456789+-*='",
            "rollout.probe_tolerance=1000",
            "rollout.max_requests=32",
            &urls,
        ];
        let config = config(folder.path(), command!("rewarded"), &more);
        train(&config).unwrap();
        for step in metrics(&config) {
            assert_eq!(
                (step["sessions/episodes"], step["sessions/calls"], step["sessions/failed"]),
                (12.0, 2.0, 0.0)
            );
        }
        let trained = rollouts(&config, 2);
        assert_eq!(trained.len(), 12);
        for LoggedTrajectory { trajectory, .. } in &trained {
            trajectory.validate().unwrap();
            assert_eq!(trajectory.policy_ranges().count(), 2);
        }
    }
}

#[test]
fn an_agent_that_fails_is_not_a_reward_of_zero() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), concat!(command!("broken"), ",attempts=2"), &EVAL_ALONE);
    let message = train(&config).unwrap_err().to_string();
    for part in ["exited with status 3", "the agent is broken, with key [session token]", "-2.failed.log"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(logs(&config, "rl").iter().any(|name| name.ends_with("-1.failed.log")), "the first attempt");
}

#[test]
fn an_agent_without_a_reward_is_judged_by_the_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = "reward.components=[{kind='exact'},{kind='random'}]";
    train(&config(&folder.path().join("judged"), command!("silent"), &[rewards])).unwrap();
    let own = config(&folder.path().join("own"), concat!(command!("silent"), ",attempts=1"), &EVAL_ALONE);
    let message = train(&own).unwrap_err().to_string();
    assert!(message.contains("without reporting a reward"), "{message}");
}

/// Every batch has its quota of each kind of task, whatever the order in which agents end, with rollouts that overlap with
/// training.
#[test]
fn quotas_hold_for_agents() {
    for order in ["ticket", "completion"] {
        let folder = tempfile::tempdir().unwrap();
        let order = format!("schedule.cut_order={order}");
        let more = [
            "data.sources=[{generator='arithmetic',operations=['+'],max_digits=1,domain='easy',weight=9.0},\
             {generator='arithmetic',operations=['+'],max_digits=2,domain='hard'}]",
            "domains.quotas={easy=1.0,hard=2.0}",
            "schedule.max_staleness=1",
            "stage.rl.steps=4",
            "stage.rl.algorithm.group_size=2",
            &order,
        ];
        let config = config(
            folder.path(),
            concat!(command!("rewarded"), ",concurrency=4"),
            &[&more[..], &EVAL_ALONE].concat(),
        );
        train(&config).unwrap();
        let steps = metrics(&config);
        assert_eq!(steps.len(), 4);
        for step in steps {
            let share = |domain: &str| step[&format!("domain/share/{domain}")];
            assert_eq!((share("easy"), share("hard")), (1.0 / 3.0, 2.0 / 3.0), "{order}");
        }
    }
}

/// A session that is open while weights are updated: each turn has the version that sampled it, and its tokens have the weight
/// of their own version in training. The ratio of the current one is 1.
#[test]
fn a_session_over_an_update_is_corrected_token_by_token() {
    let folder = tempfile::tempdir().unwrap();
    let environment = format!("{},concurrency=16,cwd='{}'", command!("patient"), folder.path().display());
    let more = [
        "schedule.max_staleness=1",
        "stage.rl.order=sequential",
        "stage.rl.algorithm.group_size=2",
        "run.checkpoint_every=1",
        "stage.rl.trainer.learning_rate=0.05",
        "reward.components=[{kind='environment'},{kind='random'}]",
    ];
    let config = config(folder.path(), &environment, &[&more[..], &EVAL_ALONE].concat());
    train(&config).unwrap();
    let model = Model::load(&config.run_directory().join("checkpoints/rl-step-000001")).unwrap();
    let trained = rollouts(&config, 2);
    assert_eq!(trained.len(), 6);
    for LoggedTrajectory { trajectory, version, .. } in trained {
        let versions: Vec<u64> = trajectory.versions.iter().map(|span| span.version.0).collect();
        assert_eq!((version.0, versions), (1, vec![0, 1]), "{:?}", trajectory.key);
        let current = scored(&model, &trajectory);
        let stale = trajectory.policy_ranges().next().unwrap().len();
        assert_eq!(current[stale..], trajectory.logprobs[stale..], "tokens of the current version");
        assert_ne!(current[..stale], trajectory.logprobs[..stale], "tokens of the version before");
    }
    let step = &metrics(&config)[1];
    assert_eq!((step["off_policy/versions_per_sample"], step["off_policy/staleness_max"]), (2.0, 1.0));
    assert!(step["off_policy/fresh_tokens"] > 0.0 && step["off_policy/fresh_tokens"] < 1.0);
    assert!(step["correction/ess"] < 1.0 && step["mismatch/max_abs"] > 0.0, "{step:?}");
}

/// Waits until a process of the agent has started, and returns its number.
fn started(folder: &Path) -> u32 {
    let begun = Instant::now();
    loop {
        let number = std::fs::read_to_string(folder.join("started")).unwrap_or_default();
        if let Ok(number) = number.parse() {
            return number;
        }
        assert!(begun.elapsed() < LONG, "no agent has started");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a process has ended.
fn wait_for_end(process: u32) {
    let begun = Instant::now();
    let is_running = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    while is_running() {
        assert!(begun.elapsed() < LONG, "process {process} still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn hanging(folder: &Path, seconds: u32) -> Config {
    let cwd = folder.display();
    let environment =
        format!("{},cwd='{cwd}',timeout_seconds={seconds},attempts=1,concurrency=1", command!("hanging"));
    config(folder, &environment, &EVAL_ALONE)
}

#[test]
fn an_agent_that_hangs_is_killed_with_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let message = train(&hanging(folder.path(), 1)).unwrap_err().to_string();
    assert!(message.contains("the agent reached a limit: "), "{message}");
    wait_for_end(started(folder.path()));
}

#[test]
fn a_run_that_stops_at_once_kills_its_agents() {
    let folder = tempfile::tempdir().unwrap();
    let config = hanging(folder.path(), 1000);
    let stop = StopFlag::default();
    let flag = stop.clone();
    let path = folder.path().to_owned();
    let stopping = std::thread::spawn(move || {
        let process = started(&path);
        flag.request();
        flag.request();
        process
    });
    assert!(rloom_run::train(&config, &mut Silent, &stop).is_err());
    wait_for_end(stopping.join().unwrap());
}

/// The run that [`a_run_that_is_killed_leaves_no_agents_behind`] kills.
#[test]
#[ignore = "a child process of another test"]
fn killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    train(&hanging(Path::new(&directory), 1000)).unwrap();
}

#[test]
fn a_run_that_is_killed_leaves_no_agents_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agents::killed", "--ignored", "--nocapture"])
        .env(DIRECTORY, folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = started(folder.path());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for_end(process);
}
