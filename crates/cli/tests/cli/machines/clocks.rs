//! Nodes whose clocks are wrong.

use std::process::Command;

use super::network::{Cluster, EQUAL};

/// The clock of one node is a day ahead of that of the controller, the other one's a day behind: handshakes, leases and
/// versions do not depend on clocks.
#[test]
#[ignore = "needs root and RLOOM_TEST_PYTHON: .ci/cluster runs it"]
fn clocks_may_differ() {
    if Command::new("faketime").args(["-f", "+1d", "true"]).status().is_err() {
        println!("skipped: install faketime (Debian, Ubuntu: apt-get install faketime)");
        return;
    }
    let cluster = Cluster::new("clocks");
    // The monotonic clock of a machine starts at its boot, however its wall clock is set.
    let with_offset = |offset| ["env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "-f", offset];
    let shifted = |offset| {
        let date = Command::new("faketime").args(["-f", offset, "date", "+%s"]).output().unwrap();
        String::from_utf8(date.stdout).unwrap().trim().parse::<i64>().unwrap()
    };
    assert!(shifted("+1d") - shifted("-1d") > 100_000, "faketime has no effect");
    let mut daemons = [cluster.daemon_by(0, &with_offset("+1d")), cluster.daemon_by(1, &with_offset("-1d"))];
    cluster.check(cluster.train(&EQUAL));
    assert_eq!(cluster.run.warnings(), Vec::<String>::new());
    assert!(daemons.iter_mut().all(|daemon| daemon.0.wait().unwrap().success()));
}
