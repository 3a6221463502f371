//! Links that are cut, or slow.

use std::time::{Duration, Instant};

use crate::gangs::run::{GROUPS, succeeded, wait_for};
use crate::support::audit::check_groups;

use super::network::{Cluster, EQUAL};

/// The link of a node is cut for good in the middle of a run: all that runs there ends, and so does the other rank. The node
/// comes back with another daemon, and the weights are those of a run that nothing disturbs.
#[test]
#[ignore = "needs root and RLOOM_TEST_PYTHON: .ci/cluster runs it"]
fn a_cut_link_costs_the_steps_after_the_checkpoint() {
    let cluster = Cluster::new("cut");
    let mut daemons = [0, 1].map(|node| cluster.daemon(node));
    let mut train = cluster.train(&EQUAL);
    cluster.run.wait_for_steps(&mut train, 4);
    cluster.network.link(1, "down");
    cluster.wait_until_empty(1, Instant::now(), &[]);
    assert!(!daemons[1].0.wait().unwrap().success());
    wait_for(&mut train, "the loss of the rank", || !cluster.run.warnings().is_empty());
    cluster.network.link(1, "up");
    daemons[1] = cluster.daemon(1);
    cluster.check(train);
    let warnings = cluster.run.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("was silent for 10 s"), "{warnings:?}");
    assert!(daemons.iter_mut().all(|daemon| daemon.0.wait().unwrap().success()));
}

/// A cut that is shorter than the lease costs nothing.
#[test]
#[ignore = "needs root and RLOOM_TEST_PYTHON: .ci/cluster runs it"]
fn a_short_cut_costs_nothing() {
    let cluster = Cluster::new("short");
    let _daemons = [0, 1].map(|node| cluster.daemon(node));
    let mut train = cluster.train(&EQUAL);
    cluster.run.wait_for_steps(&mut train, 2);
    cluster.network.link(1, "down");
    std::thread::sleep(Duration::from_secs(3));
    cluster.network.link(1, "up");
    cluster.check(train);
    assert_eq!(cluster.run.warnings(), Vec::<String>::new());
}

/// A node behind a delay of 200 ms in each direction and 1 MB/s: half a minute per step, in which nothing is lost.
#[test]
#[ignore = "needs root and RLOOM_TEST_PYTHON: .ci/cluster runs it"]
fn a_slow_link_costs_time_alone() {
    let cluster = Cluster::with_links("slow", [None, Some((200, 1_000_000))]);
    let _daemons = [0, 1].map(|node| cluster.daemon(node));
    let steps = 2;
    let train = cluster.train(&["stage.rl.steps=2"]);
    succeeded(&cluster.run.finish(train));
    assert_eq!(cluster.run.warnings(), Vec::<String>::new());
    cluster.run.check_journal(steps, GROUPS);
    check_groups(&cluster.run.sandbox.path("runs/gang/rollouts"), steps, GROUPS);
    cluster.run.check_ended();
}
