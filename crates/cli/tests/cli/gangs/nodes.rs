//! Ranks on two nodes, whose daemons are processes of this machine.

use std::net::TcpListener;
use std::process::{Child, Stdio};

use rloom_telemetry::Event;

use super::run::{Run, succeeded, undisturbed};

/// A rank, then the daemon of a node are killed, whose place another takes. The weights are those of a run on one machine
/// that nothing disturbs, bit by bit, and no process is left.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn ranks_on_two_nodes_survive_the_loss_of_one() {
    let (expected, _) = undisturbed();
    let run = Run::new("nodes");
    // Free until the run listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let token = "a token of the daemons of this test";
    let daemon = |index: &str| -> Child {
        let mut command = run.command(&["node", "--controller", &address, "--index", index]);
        command.env("RLOOM_TOKEN", token).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let (mut first, mut second) = (daemon("0"), daemon("1"));
    let bind = format!("cluster.bind={address}");
    let settings = ["cluster.launcher=wait", "cluster.nodes=2", &bind, "stage.rl.trainer.threads=1"];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut command = run.command(&[&["train", "gang.toml", "--quiet"][..], &settings].concat());
    command.env("RLOOM_TOKEN", token).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    run.wait_for_steps(&mut child, 2);
    let listed = run.sandbox.run(&["cluster", "ps", "runs/gang"]);
    for rank in ["policy rank 0", "policy rank 1"] {
        assert!(listed.stdout.contains(rank), "{}", listed.text());
    }
    run.kill("rloom.worker");
    run.wait_for_steps(&mut child, 2);
    second.kill().unwrap();
    second.wait().unwrap();
    let mut third = daemon("1");
    succeeded(&run.finish(child));
    let warnings = run.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("SIGKILL")), "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.contains("node 1 at ")), "{warnings:?}");
    assert_eq!(run.count(|event| matches!(event, Event::NodeJoined { .. })), 2);
    assert!(run.result() == *expected, "other weights on two nodes");
    for daemon in [&mut first, &mut third] {
        assert!(daemon.wait().unwrap().success());
    }
    run.check_ended();
}
