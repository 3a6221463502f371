//! Nodes whose file systems are full.

use std::process::Command;

use crate::gangs::run::{GROUPS, STEPS, succeeded};
use crate::scale;
use crate::support::audit::check_groups;

use super::network::{Cluster, stand_ins};

/// Mounts small file systems over the folders in which a daemon looks for room for weights, fills them, and becomes the daemon.
const FULL: &str = r#"for place in /dev/shm "$TMPDIR"; do
  mount -t tmpfs -o size=16k tmpfs "$place"
  head -c 20000 /dev/zero > "$place/full" 2> /dev/null
done
exec "$@"
"#;

/// The node of the server has no room for copies of the weights, and later none for the logs of its processes: the server
/// loads from the share, output is lost, and nothing else is.
#[test]
#[ignore = "needs root and RLOOM_TEST_PYTHON: .ci/cluster runs it"]
fn full_disks_of_a_node_cost_copies_and_logs() {
    let cluster = Cluster::new("full");
    let sandbox = &cluster.run.sandbox;
    sandbox.write("full.sh", FULL);
    std::fs::create_dir(sandbox.path("small")).unwrap();
    let (script, small) = (sandbox.path("full.sh"), format!("TMPDIR={}", sandbox.path("small").display()));
    let _first = cluster.daemon(0);
    let outer = ["env", &small, "unshare", "-m", "sh", script.to_str().unwrap()];
    let full = cluster.daemon_by(1, &outer);
    let settings = stand_ins(&scale::write_server(sandbox), 1);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let mut train = cluster.train(&settings);
    cluster.run.wait_for_steps(&mut train, 2);
    let logs = sandbox.path("runs/gang/logs").display().to_string();
    let fill = format!("mount -t tmpfs -o size=16k tmpfs {logs}; ! head -c 20000 /dev/zero > {logs}/full");
    let daemon = full.0.id().to_string();
    let filled = Command::new("nsenter").args(["-t", &daemon, "-m", "sh", "-c", &fill]).output().unwrap();
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    // New processes open their logs again.
    for rank in cluster.run.processes("rloom.worker") {
        if cluster.processes(1).contains(&rank) {
            assert!(Command::new("kill").args(["-KILL", &rank.to_string()]).status().unwrap().success());
        }
    }
    succeeded(&cluster.run.finish(train));
    let warnings = cluster.run.warnings();
    println!("{}", warnings.join("\n"));
    // Once for all versions.
    let notices = warnings.iter().filter(|text| text.contains("loads weights from the shared folder"));
    assert_eq!(notices.count(), 1, "{warnings:?}");
    assert!(warnings.iter().any(|text| text.contains("SIGKILL")), "{warnings:?}");
    cluster.run.check_journal(STEPS, GROUPS);
    check_groups(&sandbox.path("runs/gang/rollouts"), STEPS, GROUPS);
    cluster.run.check_ended();
}
