//! Nodes whose daemons dial in: who is accepted, and what a node says about itself.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rloom_cluster::daemon::{self, Daemon};
use rloom_cluster::{ClusterError, NodeListener};
use rloom_wire::{Identity, Options, Token, WireError, connect};

use crate::{Machine, TOKEN, daemon_of, mark, shell, soon, wait_until_alive, wait_until_gone};

fn listener() -> NodeListener {
    NodeListener::bind("127.0.0.1:0", Token::new(TOKEN).unwrap(), Options::default()).unwrap()
}

/// A daemon in a thread of this process, whose result is sent.
fn run(daemon: Daemon) -> std::thread::JoinHandle<Result<(), ClusterError>> {
    std::thread::spawn(move || daemon::run(&daemon))
}

#[test]
fn nodes_have_the_index_of_their_daemon() {
    let listener = listener();
    let address = listener.address().to_string();
    let daemons = [7, 3, 3].map(|index| {
        let running = run(Daemon { index, ..daemon_of(&address) });
        (listener.accept(soon()).unwrap(), running)
    });
    let indices: Vec<u32> = daemons.iter().map(|(node, _)| node.index()).collect();
    assert_eq!(indices, [7, 3, 3]);
    assert!(daemons[1].0.name().starts_with("node 3 at 127.0.0.1:"), "{}", daemons[1].0.name());
    assert_ne!(daemons[1].0.name(), daemons[2].0.name());
    for (node, running) in daemons {
        drop(node);
        running.join().unwrap().unwrap();
    }
}

#[test]
fn a_node_describes_itself() {
    let offer = Machine::new().node.describe(soon()).unwrap();
    assert_eq!(offer.address.to_string(), "127.0.0.1");
    assert!(offer.interface.starts_with("lo"), "{offer:?}");
    let hostname = Command::new("uname").arg("-n").output().unwrap().stdout;
    assert_eq!(offer.hostname, String::from_utf8(hostname).unwrap().trim());
    assert!(offer.cores > 0 && offer.memory_bytes > 1 << 20, "{offer:?}");
}

#[test]
fn free_ports_are_free() {
    let port = Machine::new().node.free_port(soon()).unwrap();
    TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn small_files_are_read() {
    let machine = Machine::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proof");
    let read = || machine.node.read_file(&path, soon());
    let missing = read().unwrap_err().to_string();
    assert!(missing.contains("could not read") && missing.contains("No such file"), "{missing}");
    let content: Vec<u8> = (0..64 << 10).map(|byte| byte as u8).collect();
    std::fs::write(&path, &content).unwrap();
    assert_eq!(read().unwrap(), content);
    std::fs::write(&path, [content, vec![0]].concat()).unwrap();
    let large = read().unwrap_err();
    assert!(matches!(large, ClusterError::Refused { .. }), "{large}");
    assert!(large.to_string().ends_with("it has more than 65536 bytes"), "{large}");
}

#[test]
fn a_file_that_hangs_delays_nothing_else() {
    let machine = Machine::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let read = || machine.node.read_file(&path, Instant::now() + Duration::from_millis(100)).unwrap_err();
    // More than the daemon reads at a time.
    for _ in 0..16 {
        assert!(matches!(read(), ClusterError::Deadline { .. }));
    }
    let refused = machine.node.read_file(&path, soon()).unwrap_err();
    assert!(refused.to_string().contains("16 earlier files have not been read"), "{refused}");
    let mark = mark(40);
    let process = machine.start(&format!("exec sleep {mark}"));
    wait_until_alive(&mark, 1);
    // The daemon ends.
    drop(process);
    wait_until_gone(&mark);
    assert!(machine.end().success());
}

static HAS_WAITED: AtomicBool = AtomicBool::new(false);

#[test]
fn a_daemon_waits_for_its_controller() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let on_wait = |error: &WireError| {
        assert!(matches!(error, WireError::Unreachable { .. }), "{error}");
        HAS_WAITED.store(true, Ordering::SeqCst);
    };
    let running = run(Daemon { wait: Duration::from_mins(2), on_wait, ..daemon_of(&address) });
    let deadline = soon();
    while !HAS_WAITED.load(Ordering::SeqCst) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let listener = NodeListener::bind(&address, Token::new(TOKEN).unwrap(), Options::default()).unwrap();
    let node = listener.accept(soon()).unwrap();
    node.start(&shell("exit 0"), soon()).unwrap().wait(soon()).unwrap();
    drop(node);
    running.join().unwrap().unwrap();
}

#[test]
fn a_daemon_does_not_wait_for_ever() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let wait = Duration::from_millis(300);
    let error = daemon::run(&Daemon { wait, ..daemon_of(&address) }).unwrap_err();
    assert!(matches!(error, ClusterError::Wire(WireError::Unreachable { .. })), "{error}");
}

#[test]
fn a_wrong_token_is_no_reason_to_wait() {
    let listener = listener();
    let token = Token::random().unwrap();
    let daemon = daemon_of(&listener.address().to_string());
    let error = daemon::run(&Daemon { token, wait: Duration::from_hours(1), ..daemon }).unwrap_err();
    assert!(matches!(error, ClusterError::Wire(WireError::WrongToken { .. })), "{error}");
    // The listener names it once the deadline has passed, and accepts the next one.
    let error = listener.accept(Instant::now() + Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("has another token than this process"), "{error}");
    let running = run(daemon_of(&listener.address().to_string()));
    drop(listener.accept(soon()).unwrap());
    running.join().unwrap().unwrap();
}

#[test]
fn another_build_is_refused_and_another_role_is_no_node() {
    let listener = listener();
    let address = listener.address().to_string();
    let token = Token::new(TOKEN).unwrap();
    let other = Identity { build: "0.0.9+0".to_owned(), ..Identity::new("node", 1, 0) };
    let dialled = connect(&address, &token, &other, Options::default(), soon()).unwrap_err();
    assert!(matches!(dialled, WireError::WrongBuild { .. }), "{dialled}");
    let error = listener.accept(soon()).unwrap_err();
    assert!(matches!(error, ClusterError::Wire(WireError::WrongBuild { .. })), "{error}");
    assert!(error.to_string().contains("node 1 at 127.0.0.1:"), "{error}");
    let rank = connect(&address, &token, &Identity::new("rank", 1, 0), Options::default(), soon()).unwrap();
    let error = listener.accept(Instant::now() + Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, ClusterError::Wire(WireError::NobodyConnected { .. })), "{error}");
    assert!(rank.receive(soon()).is_err());
    // Both are no obstacle to a node.
    let running = run(daemon_of(&address));
    drop(listener.accept(soon()).unwrap());
    running.join().unwrap().unwrap();
}

#[test]
fn the_loss_of_a_node_is_waited_for() {
    let mut machine = Machine::new();
    assert!(!machine.node.is_lost());
    assert!(!machine.node.wait_lost(Instant::now() + Duration::from_millis(50)));
    let node = machine.node.clone();
    let waiting = std::thread::spawn(move || node.wait_lost(soon()));
    machine.daemon.0.kill().unwrap();
    assert!(waiting.join().unwrap());
    assert!(machine.node.is_lost());
}

#[test]
fn a_daemon_that_was_lost_in_the_queue_is_not_accepted() {
    let listener = listener();
    let address = listener.address().to_string();
    let token = Token::new(TOKEN).unwrap();
    let identity = Identity::new("node", 5, 0);
    drop(connect(&address, &token, &identity, Options::default(), soon()).unwrap());
    // Its end has arrived by now, or a lost node is accepted.
    std::thread::sleep(Duration::from_millis(500));
    let running = run(Daemon { index: 6, ..daemon_of(&address) });
    let node = listener.accept(soon()).unwrap();
    assert_eq!(node.index(), 6);
    drop(node);
    running.join().unwrap().unwrap();
}
