//! Runs on several machines: their daemons are processes of this one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Sandbox, TINY};

const TOKEN: &str = "a token for the daemons of this test";

/// A configuration of two machines, whose run listens on a free port.
fn two_nodes(sandbox: &Sandbox, join_seconds: f64) -> String {
    sandbox.write("tiny.toml", TINY);
    // Free until the run listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let text = format!(
        "[cluster]\nlauncher = \"wait\"\nnodes = 2\nbind = \"{address}\"\njoin_seconds = {join_seconds}\n"
    );
    sandbox.write("two-nodes.toml", &text);
    address
}

fn daemon(sandbox: &Sandbox, address: &str, index: &str) -> Child {
    let mut command = sandbox.command(&["node", "--controller", address, "--index", index]);
    command.env("RLOOM_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_run_waits_for_its_nodes_which_end_with_it() {
    let sandbox = Sandbox::new();
    let address = two_nodes(&sandbox, 120.0);
    // The first one comes before the run, the second one twice.
    let first = daemon(&sandbox, &address, "0");
    let train = sandbox.command(&["train", "tiny.toml", "two-nodes.toml"]).env("RLOOM_TOKEN", TOKEN).spawn();
    let mut train = train.unwrap();
    let seconds = [daemon(&sandbox, &address, "1"), daemon(&sandbox, &address, "1")];
    let deadline = Instant::now() + Duration::from_mins(4);
    while train.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the run does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(train.wait().unwrap().code(), Some(0));
    // All end with their connections.
    let mut codes = seconds.map(|daemon| wait(daemon).0).to_vec();
    codes.push(wait(first).0);
    assert!(codes.iter().all(|code| *code == Some(0)), "{codes:?}");
    let events = std::fs::read_to_string(sandbox.path("runs/tiny/events.jsonl")).unwrap();
    assert_eq!(events.matches("\"event\":\"node_joined\"").count(), 2, "{events}");
    assert!(sandbox.path("runs/tiny/checkpoints/latest/model.safetensors").is_file());
}

#[test]
fn missing_nodes_are_named() {
    let sandbox = Sandbox::new();
    let address = two_nodes(&sandbox, 15.0);
    let refused = daemon(&sandbox, &address, "7");
    // One of them is refused: the first keeps its place.
    let (one, again) = (daemon(&sandbox, &address, "0"), daemon(&sandbox, &address, "0"));
    let mut command = sandbox.command(&["train", "tiny.toml", "two-nodes.toml"]);
    let failed = sandbox.finished(&command.env("RLOOM_TOKEN", TOKEN).output().unwrap());
    assert_eq!(failed.code, Some(1), "{}", failed.text());
    let message = format!("1 of 2 node daemons connected to {address} within 15 s; missing: node 1");
    assert!(failed.stderr.contains(&message), "{}", failed.stderr);
    for reason in ["has index 7, and the run has 2 machines", "has index 0, which "] {
        assert!(failed.stderr.contains(reason), "no `{reason}`:\n{}", failed.stderr);
    }
    let hint = "start `rloom node --controller HOST:PORT --index N` on the missing machines with the `RLOOM_TOKEN` of the run, or raise \
                `cluster.join_seconds`";
    // That of `ClusterError::NodesMissing`; the test above follows it.
    assert_eq!(failed.hints(), [hint]);
    assert_eq!([wait(one).0, wait(again).0, wait(refused).0], [Some(0); 3]);
    // Without a token no daemon could connect.
    let mut command = sandbox.command(&["train", "tiny.toml", "two-nodes.toml"]);
    let failed = sandbox.finished(&command.env_remove("RLOOM_TOKEN").output().unwrap());
    assert!(failed.stderr.contains("the environment variable RLOOM_TOKEN is not set"), "{}", failed.stderr);
}

#[test]
fn ray_needs_an_interpreter() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let ray = |python: &str| {
        let python = format!("cluster.python={python}");
        let all = ["--set", "cluster.launcher=ray", "--set", "cluster.join_seconds=60", "--set", &python];
        sandbox.run(&[&["train", "tiny.toml"][..], &all].concat())
    };
    let missing = ray("no-such-python");
    assert_eq!(missing.code, Some(1), "{}", missing.text());
    assert!(missing.stderr.contains("could not start `no-such-python -m rloom.ray`"), "{}", missing.stderr);
    assert_eq!(
        missing.hints(),
        ["set `cluster.python` to the interpreter of an environment with `rloom[ray]`"]
    );
    // The hint of `ClusterError::LaunchRay`. An interpreter of which the launcher is not part:
    sandbox.write("python", "#!/bin/sh\necho 'No module named rloom' >&2\nexit 1\n");
    let path = sandbox.path("python");
    assert!(std::process::Command::new("chmod").arg("+x").arg(&path).status().unwrap().success());
    let without = ray(&path.display().to_string());
    assert!(without.stderr.contains("has ended: No module named rloom"), "{}", without.stderr);
    // One that starts a daemon, as Ray does, and ends when its input is closed.
    let script = format!(
        "#!/bin/sh\n{} node --controller \"$4\" --index 0 &\ncat > /dev/null\n",
        env!("CARGO_BIN_EXE_rloom")
    );
    sandbox.write("python", &script);
    let started = ray(&path.display().to_string());
    assert_eq!(started.code, Some(0), "{}", started.text());
}

#[test]
fn the_dry_run_places_processes_on_all_nodes() {
    let sandbox = Sandbox::new();
    two_nodes(&sandbox, 1.0);
    let torch = ["--set", "trainer.backend=torch", "--set", "trainer.ranks=4"];
    let engines = ["--set", "rollout.engine=vllm", "--set", "rollout.replicas=2"];
    let gpus = ["--set", "rollout.tensor_parallel=2", "--set", "cluster.gpus_per_node=4"];
    let all = [&["train", "tiny.toml", "two-nodes.toml", "--dry-run"][..], &torch, &engines, &gpus].concat();
    let plan = sandbox.run(&all);
    assert_eq!(plan.code, Some(0), "{}", plan.text());
    for line in ["policy ranks 0-3 node 0: GPUs 0-3", "servers 0-1     node 1: GPUs 0-3, 2 each"] {
        assert!(plan.text().contains(line), "no line `{line}`:\n{}", plan.text());
    }
    let fewer = [&all[..], &["--set", "cluster.gpus_per_node=3"]].concat();
    let refused = sandbox.run(&fewer);
    assert_eq!(refused.code, Some(2), "{}", refused.text());
    let message = "4 ranks and 2 servers × 2 GPUs need 8 GPUs; the machines offer 3 + 3";
    assert!(refused.stderr.contains(message), "{}", refused.stderr);
}

/// Servers of different sizes, several servers on a GPU, a critic apart.
#[test]
fn the_dry_run_shows_how_devices_are_shared() {
    let sandbox = Sandbox::new();
    two_nodes(&sandbox, 1.0);
    let plan = |settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> =
            ["train", "tiny.toml", "two-nodes.toml", "--dry-run"].into_iter().chain(settings).collect();
        sandbox.run(&arguments)
    };
    let engines = ["rollout.engine=vllm", "cluster.gpus_per_node=4"];
    let sizes = plan(&[&engines[..], &["rollout.tensor_parallel=[2,1,1]"]].concat());
    assert!(sizes.text().contains("servers 0-2     node 0: GPUs 0-3, 2 + 1 + 1"), "{}", sizes.text());
    let halves = ["rollout.gpus_per_replica=0.5", "rollout.replicas=3"];
    let halves = plan(&[&engines[..], &halves].concat());
    assert!(halves.text().contains("servers 0-2     node 0: GPUs 0-1, up to 2 on each"), "{}", halves.text());
    assert!(halves.text().contains("limited to 0.45 of the GPU's memory"), "{}", halves.text());
    let refused = plan(&[&engines[..], &["rollout.gpus_per_replica=0.5", "rollout.memory=0.6"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.text());
    assert!(refused.stderr.contains("at most `gpus_per_replica`"), "{}", refused.stderr);
    let critic = ["stage.rl.method=ppo", "trainer.backend=torch", "trainer.ranks=4"];
    let critic = [&critic[..], &["cluster.gpus_per_node=4", "trainer.colocate_critic=false"]].concat();
    let apart = plan(&critic);
    for line in ["policy ranks 0-3 node 0: GPUs 0-3", "critic ranks 0-3 node 1: GPUs 0-3"] {
        assert!(apart.text().contains(line), "no line `{line}`:\n{}", apart.text());
    }
    let refused = plan(&[&critic[..], &["cluster.gpus_per_node=3"]].concat());
    let message = "8 ranks and no servers need 8 GPUs; the machines offer 3 + 3";
    assert!(refused.stderr.contains(message), "{}", refused.stderr);
}

/// Rewards and environments come after the engines: on machines without GPUs.
#[test]
fn the_dry_run_places_functions_on_machines_without_gpus() {
    let sandbox = Sandbox::new();
    two_nodes(&sandbox, 1.0);
    let reward = [
        "--set",
        "reward.components=[{kind='python',name='sums',function='sums.py:reward',workers=5,solved_at=1.0}]",
    ];
    let set = |more: &[&'static str]| {
        let pairs: Vec<&str> = more.iter().flat_map(|setting| ["--set", *setting]).collect();
        sandbox.run(&[&["train", "tiny.toml", "two-nodes.toml", "--dry-run"][..], &reward, &pairs].concat())
    };
    sandbox.write("sums.py", "def reward(sample):\n    return 1.0\n");
    let equal = set(&["cluster.cpus_per_node=4"]);
    assert!(equal.text().contains("reward sums     5 processes: node 0: 2; node 1: 3"), "{}", equal.text());
    let cpu_nodes = ["cluster.cpu_nodes=2", "cluster.cpus_per_node=4", "cluster.cpus_per_cpu_node=16"];
    let engines = ["trainer.backend=torch", "trainer.ranks=2", "rollout.engine=vllm"];
    let apart = set(&[&cpu_nodes[..], &engines].concat());
    for line in [
        "policy ranks 0-1 node 0: cores 0-3; node 1: cores 0-3",
        "server 0        node 1: cores 0-3",
        "reward sums     5 processes: node 2: 2; node 3: 3",
    ] {
        assert!(apart.text().contains(line), "no line `{line}`:\n{}", apart.text());
    }
    // Machines without GPUs come first, also among the others.
    let gpus = set(&["cluster.gpus_per_node=2", "cluster.cpu_nodes=1"]);
    assert!(gpus.text().contains("reward sums     5 processes: node 2: 5"), "{}", gpus.text());
    // This machine alone: nothing changes.
    let local = sandbox.run(&[&["train", "tiny.toml", "--dry-run"][..], &reward].concat());
    assert!(!local.text().contains("processes:"), "{}", local.text());
}

#[test]
fn processes_of_a_run_that_is_not_running_are_not_listed() {
    let sandbox = crate::support::trained();
    for arguments in [&["cluster", "ps", "runs/tiny"][..], &["cluster", "scale", "runs/tiny", "2"]] {
        let result = sandbox.run(arguments);
        assert_eq!(result.code, Some(1), "{}", result.text());
        assert!(result.stderr.contains("is not running, or has started no processes"), "{}", result.stderr);
    }
    let logs = sandbox.run(&["cluster", "logs", "runs/tiny"]);
    assert_eq!(logs.code, Some(2), "{}", logs.text());
}
