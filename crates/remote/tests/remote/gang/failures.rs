//! Ranks that die or hang, and gangs that cannot start.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rloom_engine::{TrainEngine, TrainError, Which, pack_unshared};
use rloom_remote::{Gang, GangError, GangSettings, PolicyHeads};

use super::local_ranks::LocalRanks;
use super::support::{launcher, settings, start, trajectories};

/// Process ids of the ranks of this test's gangs, by rank, found by the address that they dial.
fn pids(of_rank: usize, ranks: usize, epoch: u64) -> Vec<u32> {
    let own = std::process::id().to_string();
    let is_child = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(&own)
    };
    let end = [of_rank.to_string(), ranks.to_string(), epoch.to_string()].join("\0");
    let ids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_rank = |pid: &String| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("rloom.worker") && line.trim_end_matches('\0').ends_with(&end)
    };
    ids.filter(|pid| pid.parse::<u32>().is_ok() && is_child(pid) && is_rank(pid))
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn gang_error(error: &TrainError) -> String {
    assert!(matches!(error, TrainError::Lost(_)), "{error}");
    error.to_string()
}

/// A death ends the whole gang with an error that names the rank; a new one continues from the checkpoint.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_dead_rank_ends_the_gang_and_another_continues() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    fs::create_dir_all(&checkpoint).unwrap();
    // No other test has gangs of 4 ranks.
    let mut gang = start(settings(folder.path(), 4));
    gang.save(&checkpoint).unwrap();
    let digest = gang.digest().unwrap();
    let others: Vec<u32> = [0, 2, 3].iter().flat_map(|&rank| pids(rank, 4, 1)).collect();
    assert_eq!(others.len(), 3);
    signal("-KILL", pids(1, 4, 1)[0]);
    let batches = pack_unshared(&trajectories(0), 50).unwrap();
    let error = gang_error(&gang.score(Which::Policy, &batches).unwrap_err());
    assert!(error.contains("rank 1 ended (signal: 9"), "{error}");
    for pid in others {
        assert!(!PathBuf::from(format!("/proc/{pid}")).exists(), "rank with process {pid} is still there");
    }
    gang_error(&gang.digest().unwrap_err());
    gang_error(&gang.restore(&checkpoint).unwrap_err());
    let mut gang = start(settings(folder.path(), 4));
    gang.restore(&checkpoint).unwrap();
    assert_eq!(gang.digest().unwrap(), digest);
    gang.score(Which::Policy, &batches).unwrap();
}

/// A rank that waits for ever is found by the deadline; the error has its stack.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_rank_that_hangs_is_killed_with_its_stack() {
    let folder = tempfile::tempdir().unwrap();
    let hanging = folder.path().join("hanging");
    fs::create_dir_all(&hanging).unwrap();
    let settings = GangSettings { heads: PolicyHeads::PolicyAndValue, ..settings(folder.path(), 1) };
    let mut gang = start(GangSettings { step_deadline: Duration::from_secs(20), ..settings });
    gang.save(&hanging).unwrap();
    // Opening a pipe without a writer never returns.
    let pipe = hanging.join("trainer/value_head.safetensors");
    fs::remove_file(&pipe).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = gang_error(&gang.restore(&hanging).unwrap_err());
    assert!(error.contains("no rank reported progress for 20 s; rank 0 is in phase `restore`"), "{error}");
    assert!(error.contains("in restore") && error.contains("files.py"), "{error}");
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_gang_that_cannot_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), 1);
    let missing = LocalRanks { python: "/nowhere/python".into(), environment: Vec::new() };
    let error = Gang::start(settings.clone(), &missing, 1).unwrap_err();
    assert!(matches!(error, GangError::Start { rank: 0, .. }), "{error}");
    let mut broken = launcher();
    broken.environment.push(("PYTHONPATH".into(), "/nowhere".into()));
    broken.environment.push(("PYTHONNOUSERSITE".into(), "1".into()));
    if let Err(error) = Gang::start(settings.clone(), &broken, 1) {
        assert!(matches!(&error, GangError::Died { stderr, .. } if stderr.contains("rloom")), "{error}");
        assert!(!error.may_succeed_again());
    }
    let nothing = GangSettings { model: folder.path().join("nothing"), ..settings };
    let error = Gang::start(nothing, &launcher(), 1).unwrap_err();
    assert!(!error.may_succeed_again());
    let text = error.to_string();
    assert!(
        text.contains("rank 0 failed in phase `open`") && text.contains("transformers cannot open"),
        "{text}"
    );
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn heads_that_the_ranks_cannot_divide_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let settings = GangSettings { sequence_parallel: 3, ..settings(folder.path(), 3) };
    let error = Gang::start(settings, &launcher(), 1).unwrap_err();
    assert!(!error.may_succeed_again());
    let text = error.to_string();
    assert!(text.contains("sequence_parallel = 3 does not divide the 4 attention heads of Qwen2"), "{text}");
}
