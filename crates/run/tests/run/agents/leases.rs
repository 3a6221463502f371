//! Agents that lease episodes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::player::{converse, post};
use super::{EVAL_ALONE, LONG, config, logs, metrics, train};

/// Reads the address and the key when the run has written them.
fn lease_file(run: &Path) -> Option<(PathBuf, Value)> {
    let path = run.join("agents/lease.json");
    let content = serde_json::from_str(&std::fs::read_to_string(&path).ok()?).ok()?;
    Some((path, content))
}

fn wait_for_lease_file(run: &Path) -> (PathBuf, Value) {
    let begun = Instant::now();
    loop {
        if let Some(found) = lease_file(run) {
            return found;
        }
        assert!(begun.elapsed() < LONG, "no file with the address of leases");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Leases and plays episodes until the run has ended. The first lease is abandoned.
fn play(run: &Path) -> u64 {
    let (path, content) = wait_for_lease_file(run);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others can read the key");
    let (url, key) = (content["url"].as_str().unwrap(), content["key"].as_str().unwrap());
    assert_eq!(post(url, "wrong", &json!({})).0, 401);
    let mut played = 0;
    while path.exists() {
        let answer = std::panic::catch_unwind(|| post(url, key, &json!({"wait_seconds": 1})));
        let Ok((status, lease)) = answer else { break };
        match status {
            200 if played == 0 => {
                assert!(lease["task"]["prompt"].is_string() && lease["task"].get("answer").is_none());
                played = 1;
            }
            200 => {
                let value = converse(lease["base_url"].as_str().unwrap(), &lease["task"]);
                let text = |name: &str| lease[name].as_str().unwrap().to_owned();
                assert_eq!(post(&text("reward_url"), "", &json!({"value": value})).0, 200);
                assert_eq!(post(&text("finish_url"), "", &json!({})).0, 200);
                assert_eq!(post(&text("reward_url"), "", &json!({"value": value})).0, 410);
                played += 1;
            }
            204 => {}
            other => panic!("status {other}: {lease}"),
        }
    }
    played
}

#[test]
fn agents_lease_episodes_and_an_abandoned_lease_is_leased_again() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "lease=true,lease_seconds=1,hide_answer=true,concurrency=12";
    let config = config(folder.path(), settings, &["stage.rl.steps=1", EVAL_ALONE[0], EVAL_ALONE[1]]);
    let run = config.run_directory();
    let own = run.clone();
    let agent = std::thread::spawn(move || play(&own));
    train(&config).unwrap();
    assert_eq!(agent.join().unwrap(), 1 + 12);
    let step = metrics(&config).remove(0);
    assert_eq!(
        (step["sessions/episodes"], step["sessions/expired"], step["sessions/failed"]),
        (12.0, 1.0, 1.0)
    );
    assert!(lease_file(&run).is_none(), "the key is left behind");
    assert!(logs(&config, "rl").is_empty());
}
