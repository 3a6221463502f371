//! Network namespaces as machines, and a run whose processes are in them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::gangs::run::{GROUPS, Run, STEPS, succeeded, undisturbed};

/// Lease of a daemon.
pub(super) const LEASE: Duration = Duration::from_secs(10);
/// Time after its lease in which a daemon has ended all of its processes.
pub(super) const ENDING: Duration = Duration::from_secs(5);
/// Port of the controller, which no other process of its namespace uses.
const PORT: u16 = 29600;
const TOKEN: &str = "a token of the daemons of this test";
/// Longest wait of a test.
const LONGEST: Duration = Duration::from_mins(15);

fn ip(arguments: &str) {
    let ended = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(ended.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Controller,
    Node(usize),
}

/// Delay in milliseconds and bytes per second of a link.
pub(super) type Slowness = (u32, u32);

/// A controller that routes between two nodes.
#[derive(Debug)]
pub(super) struct Network {
    controller: String,
    nodes: [String; 2],
    /// Programs that pass the packets of slow links.
    links: Vec<Killed>,
}

impl Network {
    /// A network whose links are cables, or slow ones.
    fn new(slow: [Option<Slowness>; 2]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rl{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let controller = format!("{name}-c");
        let nodes = [0, 1].map(|node| format!("{name}-n{node}"));
        // Dropped, and thereby deleted, if one of the next commands fails.
        let mut network = Self { controller, nodes, links: Vec::new() };
        ip(&format!("netns add {}", network.controller));
        ip(&format!("-n {} link set lo up", network.controller));
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        let mut forwarding = Command::new("ip");
        forwarding.args(["netns", "exec", &network.controller, "sh", "-c", forward]);
        assert!(forwarding.status().unwrap().success());
        for (node, slowness) in slow.into_iter().enumerate() {
            network.add(node, slowness);
        }
        network
    }

    fn add(&mut self, node: usize, slow: Option<Slowness>) {
        let (controller, name) = (&self.controller, &self.nodes[node]);
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        match slow {
            None => {
                ip(&format!("link add to{node} netns {controller} type veth peer name net0 netns {name}"));
            }
            Some(slow) => {
                let link = slow_link(controller, &format!("to{node}"), name, "net0", slow);
                self.links.push(link);
            }
        }
        ip(&format!("-n {controller} addr add 10.214.{node}.1/24 dev to{node}"));
        ip(&format!("-n {name} addr add 10.214.{node}.2/24 dev net0"));
        ip(&format!("-n {controller} link set to{node} up"));
        ip(&format!("-n {name} link set net0 up"));
        ip(&format!("-n {name} route add default via 10.214.{node}.1"));
    }

    /// Cuts or restores the link of a node. No end of a connection receives an error.
    pub(super) fn link(&self, node: usize, state: &str) {
        // Of the controller's end: the node keeps its route.
        ip(&format!("-n {} link set to{node} {state}", self.controller));
    }

    pub(super) fn namespace(&self, place: Place) -> &str {
        match place {
            Place::Controller => &self.controller,
            Place::Node(node) => &self.nodes[node],
        }
    }

    /// Processes of a machine.
    fn processes(&self, place: Place) -> Vec<u32> {
        let listed = Command::new("ip").args(["netns", "pids", self.namespace(place)]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        listed.lines().map(|line| line.trim().parse().unwrap()).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.links.clear();
        for name in self.nodes.iter().chain([&self.controller]) {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A link through a program that delays packets.
fn slow_link(from: &str, interface: &str, to: &str, peer: &str, slow: Slowness) -> Killed {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/machines/slow_link.py");
    let (delay, rate) = (slow.0.to_string(), slow.1.to_string());
    let mut command = Command::new("python3");
    command.args([script, from, interface, to, peer, &delay, &rate]).stdout(Stdio::piped());
    let mut link = Killed(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(link.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{script} has failed");
    link
}

/// The same command, started by another program.
pub(super) fn wrapped(outer: &[&str], inner: &Command) -> Command {
    let mut command = Command::new(outer[0]);
    command.args(&outer[1..]).arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(inner.get_current_dir().unwrap());
    command
}

/// A run on two nodes.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) run: Run,
    pub(super) network: Network,
}

impl Cluster {
    pub(super) fn new(name: &str) -> Self {
        Self::with_links(name, [None, None])
    }

    pub(super) fn with_links(name: &str, slow: [Option<Slowness>; 2]) -> Self {
        Self { run: Run::new(name), network: Network::new(slow) }
    }

    /// The command of a daemon, to be started by `outer` inside the namespace of its node. Its output is in `daemon-N`.
    pub(super) fn daemon_by(&self, node: usize, outer: &[&str]) -> Killed {
        let address = format!("10.214.{node}.1:{PORT}");
        let mut command = self.run.command(&["node", "--controller", &address, "--index", &node.to_string()]);
        command.env("RLOOM_TOKEN", TOKEN);
        let mut command = self.on(Place::Node(node), outer, &command);
        let path = self.run.sandbox.path(&format!("daemon-{node}"));
        let output = File::options().append(true).create(true).open(path).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        Killed(command.spawn().unwrap())
    }

    pub(super) fn daemon(&self, node: usize) -> Killed {
        self.daemon_by(node, &[])
    }

    /// A command of the controller.
    pub(super) fn controller(&self, arguments: &[&str]) -> Command {
        let mut command = self.run.command(arguments);
        command.env("RLOOM_TOKEN", TOKEN);
        self.on(Place::Controller, &[], &command)
    }

    /// A command with the folder and the variables of the run.
    pub(super) fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let own = self.run.command(&[]);
        let mut command = Command::new(program);
        command.args(arguments).current_dir(own.get_current_dir().unwrap());
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    fn on(&self, place: Place, outer: &[&str], command: &Command) -> Command {
        let namespace = ["ip", "netns", "exec", self.network.namespace(place)];
        wrapped(&[&namespace, outer].concat(), command)
    }

    /// Starts `rloom train` on both nodes; its checkpoints and its journal are kept.
    pub(super) fn train(&self, settings: &[&str]) -> Child {
        let bind = format!("cluster.bind=0.0.0.0:{PORT}");
        let own = ["cluster.launcher=wait", "cluster.nodes=2", &bind, "run.keep_last=100000"];
        let settings = own.iter().chain(settings).flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> = ["train", "gang.toml", "--quiet"].into_iter().chain(settings).collect();
        self.controller(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Processes of the run on a node.
    pub(super) fn processes(&self, node: usize) -> Vec<u32> {
        self.processes_on(Place::Node(node))
    }

    /// Processes of the run on a machine.
    pub(super) fn processes_on(&self, place: Place) -> Vec<u32> {
        let own = self.run.processes("");
        let is_live = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name of the program, in parentheses, may contain anything.
            status.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
        };
        let on_node = self.network.processes(place).into_iter();
        on_node.filter(|pid| own.contains(pid)).filter(is_live).collect()
    }

    /// Waits until no process of the run is on a node, those that `stay` left out. Checks that it takes no longer than a lease
    /// and the time to end processes from `start`, which is the rule of the daemon and not a measure of speed.
    pub(super) fn wait_until_empty(&self, node: usize, start: Instant, stay: &[u32]) {
        let mut last = start;
        loop {
            let left: Vec<u32> = self.processes(node).into_iter().filter(|pid| !stay.contains(pid)).collect();
            if left.is_empty() {
                break;
            }
            last = Instant::now();
            assert!(last < start + LONGEST, "still running on node {node}: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("the last process on node {node} ended after {:.1?}", last - start);
        assert!(last - start < LEASE + ENDING, "{:?}", last - start);
    }

    /// Checks a run of the recipe that has succeeded: its journal, that nothing is left, and that its weights are those of a
    /// run that nothing disturbs, bit by bit.
    pub(super) fn check(&self, child: Child) {
        succeeded(&self.run.finish(child));
        self.run.check_journal(STEPS, GROUPS);
        assert!(self.run.result() == undisturbed().0, "other weights than without failures");
    }
}

/// Settings with which a run on two nodes computes what one on this machine does.
pub(super) const EQUAL: [&str; 1] = ["stage.rl.trainer.threads=1"];

/// Settings of a run whose rollouts come from stand-ins for vLLM, which `program` starts.
pub(super) fn stand_ins(program: &str, replicas: usize) -> Vec<String> {
    let own = [
        // As many tokens as the stand-ins have, and their model is another.
        "tokenizer.alphabet='0123456789+-*='",
        "model.new.family=qwen3",
        "rollout.engine=vllm",
        "rollout.probe_tolerance=100",
        "rollout.max_requests=8",
    ];
    let own = own.into_iter().map(str::to_owned);
    own.chain([format!("rollout.replicas={replicas}"), format!("rollout.python={program}")]).collect()
}
