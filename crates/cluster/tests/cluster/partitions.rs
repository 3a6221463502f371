//! Nodes in network namespaces of their own, each on a veth pair that tests cut, like the cable of a machine. Run by
//! `.ci/cluster`.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rloom_cluster::{ClusterError, Node, NodeListener, Process, ProcessSpec};
use rloom_wire::{Identity, Options, TOKEN_VARIABLE, Token, WireError, connect};

use crate::{
    CONTROLLER, INDEX, Killed, LEASE, TOKEN, WAIT, alive, mark, shell, soon, this, wait_until_alive,
    wait_until_gone,
};

const SERVER: &str = "RLOOM_TEST_SERVER";

fn ip(arguments: &str) {
    let ended = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(ended.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// A namespace with one interface, whose other end is in the namespace of this process.
struct Machine {
    name: String,
    interface: String,
    ours: IpAddr,
    theirs: IpAddr,
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let [ours, theirs] = [1, 2].map(|host| IpAddr::from([10, 213, count as u8, host]));
        let (name, interface) = (format!("rloom-{process}-{count}"), format!("n{process}x{count}"));
        ip(&format!("netns add {name}"));
        ip(&format!("link add c{process}x{count} type veth peer name {interface} netns {name}"));
        ip(&format!("addr add {ours}/24 dev c{process}x{count}"));
        ip(&format!("link set c{process}x{count} up"));
        ip(&format!("-n {name} addr add {theirs}/24 dev {interface}"));
        ip(&format!("-n {name} link set lo up"));
        ip(&format!("-n {name} link set {interface} up"));
        Self { name, interface, ours, theirs, folder: tempfile::tempdir().unwrap() }
    }

    /// Sets the interface up or down. No end of a connection receives an error.
    fn link(&self, state: &str) {
        ip(&format!("-n {} link set {} {state}", self.name, self.interface));
    }

    fn listen(&self, options: Options) -> NodeListener {
        NodeListener::bind(&format!("{}:0", self.ours), Token::new(TOKEN).unwrap(), options).unwrap()
    }

    /// An ignored test as a process in the namespace, with its output in a file.
    fn run(&self, test: &str, variables: &[(&str, &str)]) -> Killed {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(this().path).args(this().arguments).arg(test);
        let output = File::options().append(true).create(true).open(self.output()).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        command.env(TOKEN_VARIABLE, TOKEN).env(LEASE, "10000").envs(variables.iter().copied());
        Killed(command.spawn().unwrap())
    }

    fn daemon(&self, listener: &NodeListener, variables: &[(&str, &str)]) -> Killed {
        let controller = listener.address().to_string();
        self.run("node", &[&[(CONTROLLER, controller.as_str())], variables].concat())
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("output")
    }

    /// Waits until the output contains a text.
    fn wait_for_output(&self, text: &str) {
        let deadline = soon();
        while !std::fs::read_to_string(self.output()).unwrap_or_default().contains(text) {
            assert!(Instant::now() < deadline, "{:?}", std::fs::read_to_string(self.output()));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Deletes the interfaces as well.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Starts [`server`] on the node, and waits until it listens.
fn serve(node: &Node, address: IpAddr, port: u16) -> Process {
    let spec = ProcessSpec {
        name: "server".to_owned(),
        program: this().path.to_str().unwrap().to_owned(),
        arguments: [this().arguments, vec!["partitions::server".to_owned()]].concat(),
        environment: [(SERVER.to_owned(), format!("{address}:{port}"))].into(),
        ..ProcessSpec::default()
    };
    let process = node.start(&spec, soon()).unwrap();
    crate::wait_for_output(&process, "listening");
    process
}

#[test]
#[ignore = "the server of other tests"]
fn server() {
    if crate::is_guard() {
        return;
    }
    let listener = TcpListener::bind(std::env::var(SERVER).unwrap()).unwrap();
    println!("listening");
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let stream = stream.unwrap();
            std::io::copy(&mut &stream, &mut &stream)
        });
    }
}

#[test]
#[ignore = "a daemon of another build, for other tests"]
fn other_build() {
    let identity = Identity { build: "0.0.9+0".to_owned(), ..Identity::new("node", 0, 0) };
    let (address, token) = (std::env::var(CONTROLLER).unwrap(), Token::new(TOKEN).unwrap());
    connect(&address, &token, &identity, Options::default(), soon()).unwrap();
}

fn dial(address: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    stream
}

fn exchange(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut reply = vec![0; bytes.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, bytes);
}

/// A program that appends the time to a file until it is killed, and ignores signals.
fn clock(node: &Node, path: &Path, mark: &str) -> Process {
    let script = "trap '' TERM INT HUP; (while :; do date +%s%N; sleep 0.05; done) >";
    node.start(&shell(&format!("{script} {} & exec sleep {mark}", path.display())), soon()).unwrap()
}

/// The last time in a file of [`clock`] since the epoch.
fn last_time(path: &Path) -> Duration {
    let times = std::fs::read_to_string(path).unwrap();
    let last = times.lines().rfind(|line| line.len() == 19).unwrap();
    Duration::from_nanos(last.parse().unwrap())
}

#[test]
#[ignore = "needs root and network namespaces: .ci/cluster runs it"]
fn a_cut_link_ends_both_sides() {
    let machine = Machine::new();
    let lease = Duration::from_secs(3);
    let listener = machine.listen(Options { lease, ..Options::default() });
    let mut daemon = machine.daemon(&listener, &[(LEASE, "3000")]);
    let node = listener.accept(soon()).unwrap();
    let (mark, times) = (mark(60), machine.folder.path().join("times"));
    let process = clock(&node, &times, &mark);
    let port = node.free_port(soon()).unwrap();
    let server = serve(&node, [127, 0, 0, 1].into(), port);
    let relay = node.relay(port).unwrap();
    let (mut idle, busy) = (dial(relay.address()), dial(relay.address()));
    exchange(&idle, b"before");
    machine.link("down");
    let cut = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // The controller's end: by its lease, with all relayed connections.
    let sender = std::thread::spawn(move || while (&busy).write_all(&[0; 4096]).is_ok() {});
    let error = process.wait(soon()).unwrap_err();
    assert!(matches!(error, ClusterError::NodeLost { source: WireError::Lease { .. } }), "{error}");
    assert_eq!(idle.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    sender.join().unwrap();
    assert!(node.wait_lost(Instant::now()));
    // The daemon's end: by its lease, with all its processes.
    assert!(!daemon.0.wait().unwrap().success());
    machine.wait_for_output("was silent for 3 s");
    wait_until_gone(&mark);
    drop((process, server));
    let survived = last_time(&times).saturating_sub(cut);
    println!("programs ended {survived:?} after the cut");
    // The rule of the daemon, not a measure of speed.
    assert!(survived < lease + Duration::from_secs(5), "{survived:?}");
}

#[test]
#[ignore = "needs root and network namespaces: .ci/cluster runs it"]
fn a_short_cut_ends_nothing() {
    let machine = Machine::new();
    let options = Options { lease: Duration::from_mins(1), ..Options::default() };
    let listener = machine.listen(options);
    let _daemon = machine.daemon(&listener, &[(LEASE, "60000")]);
    let node = listener.accept(soon()).unwrap();
    let port = node.free_port(soon()).unwrap();
    let server = serve(&node, [127, 0, 0, 1].into(), port);
    let relay = node.relay(port).unwrap();
    let stream = dial(relay.address());
    exchange(&stream, b"before");
    machine.link("down");
    (&stream).write_all(b"during").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    machine.link("up");
    let mut reply = [0; 6];
    (&stream).read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"during");
    assert_eq!(server.exited().unwrap(), None);
    exchange(&dial(relay.address()), b"after");
}

#[test]
#[ignore = "needs root and network namespaces: .ci/cluster runs it"]
fn a_node_offers_the_address_of_its_interface() {
    let machine = Machine::new();
    let listener = machine.listen(Options::default());
    let _daemon = machine.daemon(&listener, &[]);
    let node = listener.accept(soon()).unwrap();
    let offer = node.describe(soon()).unwrap();
    assert_eq!((offer.address, &offer.interface), (machine.theirs, &machine.interface));
    // A rendezvous of ranks: a port of that address.
    let port = node.free_port(soon()).unwrap();
    let _server = serve(&node, offer.address, port);
    exchange(&dial((offer.address, port).into()), b"rank 1");
    // Nothing but the relay reaches loopback.
    let port = node.free_port(soon()).unwrap();
    let _server = serve(&node, [127, 0, 0, 1].into(), port);
    assert!(TcpStream::connect((offer.address, port)).is_err());
    exchange(&dial(node.relay(port).unwrap().address()), b"replica 0");
}

#[test]
#[ignore = "needs root and network namespaces: .ci/cluster runs it"]
fn a_daemon_waits_for_link_and_controller() {
    let machine = Machine::new();
    let address = TcpListener::bind((machine.ours, 0)).unwrap().local_addr().unwrap().to_string();
    machine.link("down");
    let mut daemon = machine.run("node", &[(CONTROLLER, &address), (WAIT, "120")]);
    machine.wait_for_output("waiting: ");
    machine.link("up");
    let listener = NodeListener::bind(&address, Token::new(TOKEN).unwrap(), Options::default()).unwrap();
    let node = listener.accept(soon()).unwrap();
    assert!(node.start(&shell("exit 0"), soon()).unwrap().wait(soon()).unwrap().is_success());
    drop(node);
    assert!(daemon.0.wait().unwrap().success());
}

#[test]
#[ignore = "needs root and network namespaces: .ci/cluster runs it"]
fn strangers_are_refused_and_equal_indices_are_told_apart() {
    let machines = [Machine::new(), Machine::new()];
    let token = Token::new(TOKEN).unwrap();
    let listener = NodeListener::bind("0.0.0.0:0", token, Options::default()).unwrap();
    let port = listener.address().port();
    let controllers = machines.each_ref().map(|machine| format!("{}:{port}", machine.ours));
    // Another token: an error there, and named here.
    let other = [
        (CONTROLLER, controllers[0].as_str()),
        (TOKEN_VARIABLE, "another token of this test"),
        (WAIT, "120"),
    ];
    assert!(!machines[0].run("node", &other).0.wait().unwrap().success());
    machines[0].wait_for_output("has another token than this process");
    let error = listener.accept(Instant::now() + Duration::from_secs(1)).unwrap_err().to_string();
    assert!(error.contains(&machines[0].theirs.to_string()) && error.contains("another token"), "{error}");
    // Another build: an error at both ends at once.
    let ended =
        machines[1].run("partitions::other_build", &[(CONTROLLER, &controllers[1])]).0.wait().unwrap();
    assert!(!ended.success());
    machines[1].wait_for_output("WrongBuild");
    let error = listener.accept(soon()).unwrap_err();
    assert!(matches!(error, ClusterError::Wire(WireError::WrongBuild { .. })), "{error}");
    // The same index twice.
    let nodes = [0, 1].map(|at| {
        let daemon = machines[at].run("node", &[(CONTROLLER, &controllers[at]), (INDEX, "7")]);
        (listener.accept(soon()).unwrap(), daemon)
    });
    assert_eq!(nodes.each_ref().map(|(node, _)| node.index()), [7, 7]);
    for ((node, _), machine) in nodes.iter().zip(&machines) {
        assert!(node.name().starts_with(&format!("node 7 at {}:", machine.theirs)), "{}", node.name());
        assert_eq!(node.describe(soon()).unwrap().address, machine.theirs);
    }
}

#[test]
#[ignore = "needs root and network namespaces: .ci/cluster runs it"]
fn a_killed_daemon_is_replaced() {
    let machine = Machine::new();
    let listener = machine.listen(Options::default());
    let mut daemon = machine.daemon(&listener, &[]);
    let node = listener.accept(soon()).unwrap();
    let mark = mark(61);
    let process = node.start(&shell(&format!("sleep {mark} & exec sleep {mark}")), soon()).unwrap();
    wait_until_alive(&mark, 2);
    let port = node.free_port(soon()).unwrap();
    let _server = serve(&node, [127, 0, 0, 1].into(), port);
    let relay = node.relay(port).unwrap();
    let mut stream = dial(relay.address());
    exchange(&stream, b"before");
    daemon.0.kill().unwrap();
    let error = process.wait(soon()).unwrap_err();
    assert!(matches!(error, ClusterError::NodeLost { source: WireError::Closed { .. } }), "{error}");
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    wait_until_gone(&mark);
    let _daemon = machine.daemon(&listener, &[]);
    let node = listener.accept(soon()).unwrap();
    assert!(node.start(&shell("exit 0"), soon()).unwrap().wait(soon()).unwrap().is_success());
    assert_eq!(alive(&mark), Vec::<String>::new());
}

#[test]
#[ignore = "needs root and network namespaces: .ci/cluster runs it"]
fn a_slow_link_loses_nothing() {
    let machine = Machine::new();
    let netem =
        ["-n", &machine.name, "qdisc", "add", "dev", &machine.interface, "root", "netem", "delay", "200ms"];
    let delay = Command::new("tc").args(netem).output();
    if !delay.is_ok_and(|ended| ended.status.success()) {
        println!("left out: this system cannot delay packets (tc, kernel module sch_netem)");
        return;
    }
    let listener = machine.listen(Options::default());
    let _daemon = machine.daemon(&listener, &[]);
    let node = listener.accept(soon()).unwrap();
    let port = node.free_port(soon()).unwrap();
    let _server = serve(&node, [127, 0, 0, 1].into(), port);
    let relay = node.relay(port).unwrap();
    let streams: Vec<TcpStream> = (0..256).map(|_| dial(relay.address())).collect();
    for stream in &streams {
        exchange(stream, &[1; 1000]);
    }
    assert!(!node.is_lost());
}
