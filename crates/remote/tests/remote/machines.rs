//! Servers on machines whose daemons connect, one of which is lost. The daemons are processes of this machine.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_cluster::{ClusterSettings, Launcher, Machines};
use rloom_core::OnUpdate;
use rloom_engine::{RolloutEngine, generate_all};
use rloom_remote::{Server, ServerHost, ServerProcess};
use rloom_wire::{Options, TOKEN_VARIABLE};

use crate::processes::{command, pool};
use crate::support::{Trainer, check, request, run};

const TOKEN: &str = "a token for the daemons of this test";

/// The token comes with the environment, which only another process can be given.
#[test]
fn a_server_of_a_lost_machine_starts_on_another() {
    let mut controller = Command::new(std::env::current_exe().unwrap());
    controller.args(crate::this().arguments).arg("machines::controller").env(TOKEN_VARIABLE, TOKEN);
    let output = controller.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stdout));
}

fn daemon(address: &str, index: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(crate::this().arguments).arg("node").stdout(Stdio::null()).stderr(Stdio::null());
    command.env("RLOOM_TEST_CONTROLLER", address).env("RLOOM_TEST_INDEX", index.to_string());
    command.env(TOKEN_VARIABLE, TOKEN).spawn().unwrap()
}

#[test]
#[ignore = "started by another test"]
fn controller() {
    let bind = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let settings = ClusterSettings {
        launcher: Launcher::Wait,
        nodes: 2,
        bind: bind.clone(),
        replace_seconds: 1.0,
        ..ClusterSettings::default()
    };
    let mut daemons = [daemon(&bind, 0), daemon(&bind, 1)];
    let machines = Machines::join(&settings, Options::default(), &mut |_| true).unwrap();
    let (trainer, pool) = (Trainer::new(), pool(5));
    let host = ServerHost::new(machines.clone(), 1, true).unwrap();
    let url = host.url();
    let server = || Server::vllm(&url).unwrap();
    let startup = Duration::from_mins(2);
    let process = ServerProcess::new(host, "replica 0".to_owned(), command("serve"), server(), startup, None);
    pool.join_managed(server(), Arc::new(process), 1);
    run(pool.load(&trainer.main(1), OnUpdate::Finish)).unwrap();
    let generate = || {
        let requests: Vec<_> = (0..4).map(|sample| request(0, sample, 20)).collect();
        let made = run(generate_all(&pool, requests.iter().cloned())).unwrap();
        requests.iter().zip(&made).for_each(|(request, made)| check(&trainer, request, made));
    };
    let machine_of_server = || {
        let processes = machines.processes();
        assert_eq!(processes.len(), 1, "{processes:?}");
        processes[0].machine
    };
    generate();
    assert_eq!(machine_of_server(), 1);
    daemons[1].kill().unwrap();
    daemons[1].wait().unwrap();
    generate();
    assert_eq!(machine_of_server(), 0);
    let deadline = Instant::now() + Duration::from_mins(1);
    // Another daemon takes the place of the lost one.
    let replacements = || machines.members().unwrap()[1].as_ref().unwrap().replacements;
    assert_eq!(replacements(), 0);
    daemons[1] = daemon(&bind, 1);
    while replacements() == 0 {
        assert!(Instant::now() < deadline, "the daemon got no place");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(machines.node(1).is_ok() && replacements() == 1);
    drop((pool, machines));
    while daemons.iter_mut().any(|daemon| daemon.try_wait().unwrap().is_none()) {
        assert!(Instant::now() < deadline, "a daemon outlives its controller");
        std::thread::sleep(Duration::from_millis(20));
    }
}
