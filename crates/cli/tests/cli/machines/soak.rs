//! A run on two nodes whose processes are killed over and over: the audit holds, and the controller's memory stays constant.
//!
//! `RLOOM_SOAK_SECONDS` is the duration [150], `RLOOM_SOAK_KILL` the seconds between two kills [12], `RLOOM_TEST_SEED` selects other
//! processes.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use rloom_core::{Purpose, RandomKey};
use serde_json::Value;

use crate::gangs::run::GROUPS;
use crate::scale;
use crate::support::signal;

use super::network::{Cluster, stand_ins};

/// Settings of a run that does not end, saves often and may lose its processes any number of times.
const SETTINGS: [&str; 7] = [
    "stage.rl.steps=10000000",
    "run.checkpoint_every=10",
    "run.keep_rollouts=0",
    "stage.rl.trainer.restarts=100000",
    "rollout.restarts=100000",
    "rollout.max_requests=8",
    "reward.components=[{kind='random'}]",
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Ids and roles of the processes that `rloom cluster ps` lists, the controller left out.
fn listed(cluster: &Cluster) -> Vec<(u32, String)> {
    let listed = cluster.controller(&["cluster", "ps", "runs/gang", "--json"]).output().unwrap();
    let Ok(listed) = serde_json::from_slice::<Value>(&listed.stdout) else { return Vec::new() };
    let processes = listed["processes"].as_array().cloned().unwrap_or_default();
    let of = |process: &Value| Some((process["pid"].as_u64()? as u32, process["role"].as_str()?.to_owned()));
    processes.iter().filter_map(of).collect()
}

#[test]
#[ignore = "needs root and RLOOM_TEST_PYTHON: .ci/cluster runs it"]
fn a_run_survives_kills_of_its_processes_for_as_long_as_it_takes() {
    let duration = Duration::from_secs(number("RLOOM_SOAK_SECONDS", 150));
    let pause = Duration::from_secs(number("RLOOM_SOAK_KILL", 12));
    let draws = RandomKey::new(number("RLOOM_TEST_SEED", 1), 0, Purpose::Interactive, 0).stream();
    let cluster = Cluster::new("soak");
    let settings = stand_ins(&scale::write_server(&cluster.run.sandbox), 2);
    let settings: Vec<&str> = SETTINGS.into_iter().chain(settings.iter().map(String::as_str)).collect();
    let mut daemons = [0, 1].map(|node| cluster.daemon(node));
    let mut train = cluster.train(&settings);
    cluster.run.wait_for_steps(&mut train, 2);

    let start = Instant::now();
    let (mut kills, mut memory, mut next) = (BTreeMap::<String, u64>::new(), Vec::new(), start + pause);
    while start.elapsed() < duration {
        std::thread::sleep(Duration::from_millis(500));
        assert!(train.try_wait().unwrap().is_none(), "{}", cluster.run.finish(train).text());
        memory.extend(resident(train.id()));
        for (node, daemon) in daemons.iter_mut().enumerate() {
            // As SLURM's script and Kubernetes do.
            if daemon.0.try_wait().unwrap().is_some() {
                *daemon = cluster.daemon(node);
            }
        }
        if Instant::now() < next {
            continue;
        }
        next += pause;
        let mut victims = listed(&cluster);
        victims.extend(daemons.iter().map(|daemon| (daemon.0.id(), "daemon".to_owned())));
        let total: u64 = kills.values().sum();
        let (pid, role) = &victims[draws.below(total + 1, victims.len() as u64) as usize];
        // It may have ended by itself.
        if Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success() {
            *kills.entry(role.clone()).or_default() += 1;
        }
    }
    for (node, daemon) in daemons.iter_mut().enumerate() {
        if daemon.0.try_wait().unwrap().is_some() {
            *daemon = cluster.daemon(node);
        }
    }
    // Of new steps: those after a restart from the last checkpoint are repeated first.
    let before = cluster.run.check_interrupted_journal(GROUPS);
    cluster.run.wait_for_steps(&mut train, 20);
    signal(&train, "-TERM");
    let ended = cluster.run.finish(train);
    assert_eq!(ended.code, Some(130), "{}", ended.text());
    let trained = cluster.run.check_interrupted_journal(GROUPS);
    cluster.run.check_ended();
    assert!(trained > before, "the run makes no progress after {kills:?}");

    let warm = &memory[memory.len() / 5..];
    let third = warm.len() / 3;
    let [first, last] = [&warm[..third], &warm[warm.len() - third..]].map(median);
    println!("{trained} batches, killed {kills:?}; controller: {first} KiB at first, {last} KiB at last");
    // A tenth, and what the allocator keeps of the largest moment.
    assert!(last <= first + first / 10 + 4096, "the controller grows from {first} to {last} KiB");
}
