//! Runs with several policies that are killed again and again end in the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rloom_store::checkpoint::{CheckpointState, KeptVersion};
use rloom_telemetry::{EventLine, Observer};

use super::world::Rule;
use super::{LEAGUE, TRAINED, checkpoint, config, logged, opponents, steps, train, weights};

const KIND: &str = "RLOOM_TEST_POLICIES";
const DIRECTORY: &str = "RLOOM_TEST_RUN";
const EVENTS: &str = "RLOOM_TEST_EVENTS";

/// Tables of policies, the rule of their game, and overrides.
const KINDS: [(&str, Rule, &[&str]); 4] = [
    (TRAINED, Rule::Together, &[]),
    ("[policies.other]\nmodel = 'new'\nfrozen = true", Rule::Together, &[]),
    (LEAGUE, Rule::Contest, &[]),
    (LEAGUE, Rule::Contest, &STALE),
];
/// The kind that depends on timing.
const STALE_LEAGUE: usize = 3;
const STALE: [&str; 2] = ["schedule.max_staleness=2", "rollout.max_batch=4"];

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
    let (table, rule, overrides) = KINDS[kind];
    train(&config(directory, table, overrides), ("other", 2, rule), observer).unwrap();
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

/// Kills a run again and again until it is finished.
fn kill(kind: usize, directory: &Path) {
    let mut kills = 0;
    // Later and later, so that every attempt continues where the one before ended.
    for events in (3u64..).step_by(4) {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "policies::kills::child", "--ignored", "--nocapture"])
            .env(KIND, kind.to_string())
            .env(DIRECTORY, directory)
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
}

/// Which groups a version plays depends on timing at a staleness above 0. Whatever attempt they come from, each group is trained on
/// once, at no greater age, and the league has the weights of the versions that it names.
#[test]
fn a_killed_league_of_stale_groups_trains_on_each_group_once() {
    let directory = tempfile::tempdir().unwrap();
    kill(STALE_LEAGUE, directory.path());
    let (table, _, overrides) = KINDS[STALE_LEAGUE];
    let config = config(directory.path(), table, overrides);
    let mut trained = BTreeSet::new();
    for step in 1..=6 {
        let own: BTreeSet<u64> =
            logged(&config, step).into_iter().map(|line| line.trajectory.key.ticket.0).collect();
        assert_eq!(own.len(), 6, "step {step}");
        assert!(own.iter().all(|ticket| trained.insert(*ticket)), "step {step} trains on a group again");
        // Version v was kept after step v, for groups that began later.
        assert!(opponents(&config, step).iter().all(|(_, version)| *version < step), "step {step}");
    }
    assert!(steps(&config).iter().all(|metrics| metrics["off_policy/staleness_max"] <= 2.0));
    let last = checkpoint(&config, 6);
    let kept = CheckpointState::load(&last).unwrap().leagues["other"].kept.clone();
    assert_eq!(kept.len(), 2);
    for (slot, KeptVersion { version, .. }) in kept.iter().enumerate() {
        let own = weights(&last.join(format!("policies/other/{slot}")));
        assert!(own == weights(&checkpoint(&config, version.0)), "slot {slot}, version {}", version.0);
    }
}

#[test]
fn killed_runs_end_in_the_same_bytes() {
    for kind in 0..STALE_LEAGUE {
        let undisturbed = tempfile::tempdir().unwrap();
        run(kind, undisturbed.path(), &mut ());
        let directory = tempfile::tempdir().unwrap();
        kill(kind, directory.path());
        let (expected, found) = (files(undisturbed.path()), files(directory.path()));
        assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
        assert!(expected.keys().any(|name| name.starts_with("policies/other")));
        for (name, bytes) in &expected {
            assert!(*bytes == found[name], "kind {kind}: {name} has other bytes");
        }
    }
}
