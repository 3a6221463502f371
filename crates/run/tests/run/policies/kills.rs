//! Runs with several policies that are killed again and again end in the same bytes.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rloom_telemetry::{EventLine, Observer};

use super::world::Rule;
use super::{LEAGUE, TRAINED, config, train};

const KIND: &str = "RLOOM_TEST_POLICIES";
const DIRECTORY: &str = "RLOOM_TEST_RUN";
const EVENTS: &str = "RLOOM_TEST_EVENTS";

/// Tables of policies, and the rule of their game.
const KINDS: [(&str, Rule); 3] = [
    (TRAINED, Rule::Together),
    ("[policies.other]\nmodel = 'new'\nfrozen = true", Rule::Together),
    (LEAGUE, Rule::Contest),
];

/// Ends the process after a number of events.
struct KillAfter(u64);

impl Observer for KillAfter {
    fn observe(&mut self, _: &EventLine) {
        if self.0 == 0 {
            std::process::abort();
        }
        self.0 -= 1;
    }
}

fn run(kind: usize, directory: &Path, observer: &mut dyn Observer) {
    let (table, rule) = KINDS[kind];
    train(&config(directory, table, &[]), ("other", 2, rule), observer).unwrap();
}

/// The process that the test kills.
#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let Ok(kind) = std::env::var(KIND) else { return };
    let events = std::env::var(EVENTS).unwrap().parse().unwrap();
    let directory = std::env::var_os(DIRECTORY).unwrap();
    run(kind.parse().unwrap(), Path::new(&directory), &mut KillAfter(events));
}

/// The files of the last checkpoint.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fn collect(root: &Path, folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, found);
            } else {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    let root = directory.join("pair/checkpoints/rl-step-000006");
    collect(&root, &root, &mut found);
    found
}

#[test]
fn killed_runs_end_in_the_same_bytes() {
    for kind in 0..KINDS.len() {
        let undisturbed = tempfile::tempdir().unwrap();
        run(kind, undisturbed.path(), &mut ());
        let directory = tempfile::tempdir().unwrap();
        let mut kills = 0;
        // Later and later, so that every attempt continues where the one before ended.
        for events in (3u64..).step_by(7) {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "policies::kills::child", "--ignored", "--nocapture"])
                .env(KIND, kind.to_string())
                .env(DIRECTORY, directory.path())
                .env(EVENTS, events.to_string())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            if status.success() {
                break;
            }
            assert_eq!(status.signal(), Some(6), "kind {kind}: {status}");
            kills += 1;
        }
        assert!(kills > 5, "kind {kind}: {kills} kills");
        let (expected, found) = (files(undisturbed.path()), files(directory.path()));
        assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
        assert!(expected.keys().any(|name| name.starts_with("policies/other")));
        for (name, bytes) in &expected {
            assert!(*bytes == found[name], "kind {kind}: {name} has other bytes");
        }
    }
}
