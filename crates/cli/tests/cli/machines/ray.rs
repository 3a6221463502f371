//! Ray clusters whose head is lost: its machine is the namespace of the controller in other tests, while the run is on the first
//! node. `RLOOM_TEST_RAY` is an interpreter with Ray.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rloom_telemetry::Event;

use crate::gangs::run::{GROUPS, STEPS, succeeded, undisturbed, wait_for, wait_until};

use super::network::{Cluster, EQUAL, Killed, Place, wrapped};

/// Address of Ray's head.
const HEAD: &str = "10.214.0.1:6379";
/// Redis on the second node.
const REDIS: &str = "10.214.1.2:6380";

/// A namespace with processes and a folder of Ray of its own: Ray looks for its processes in the list of the machine, and keeps
/// the machine's address in its folder.
struct Machine {
    /// Holds the namespaces.
    _holder: Killed,
    /// The first process in them.
    first: u32,
}

impl Machine {
    fn new(cluster: &Cluster, place: Place, name: &str) -> Self {
        let folder = |name: &str| {
            let folder = cluster.run.sandbox.path(name);
            std::fs::create_dir_all(&folder).unwrap();
            folder.display().to_string()
        };
        let mount = format!("mount --bind {} {} && exec sleep 86400", folder(name), folder("ray"));
        let mut holder = Command::new("ip");
        holder.args(["netns", "exec", cluster.network.namespace(place)]);
        holder.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &mount]);
        let holder = Killed(holder.spawn().unwrap());
        let (pid, mut first) = (holder.0.id(), None);
        wait_until("the first process of a machine", || {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            first = children.split_whitespace().next().map(|child| child.parse().unwrap());
            let name = |child| std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            first.is_some_and(|child: u32| name(child).trim() == "sleep")
        });
        Self { _holder: holder, first: first.unwrap() }
    }
}

/// A cluster of Ray: a head without resources, and two nodes.
struct Ray {
    machines: [Machine; 3],
    cluster: Cluster,
    python: String,
    /// Variables of all of its processes.
    variables: Vec<(&'static str, String)>,
}

impl Ray {
    fn new(name: &str, variables: &[(&'static str, &str)]) -> Option<Self> {
        let Ok(python) = std::env::var("RLOOM_TEST_RAY") else {
            println!("skipped: set RLOOM_TEST_RAY to the Python interpreter of an environment with Ray");
            return None;
        };
        let own = [
            ("RLOOM_BINARY", env!("CARGO_BIN_EXE_rloom")),
            ("RAY_USAGE_STATS_ENABLED", "0"),
            // A head uses the token of this user, if there is one, and other nodes do not.
            ("RAY_AUTH_MODE", "disabled"),
            // Daemons and ranks inherit that of Ray's workers, 15.
            ("RAY_worker_niceness", "0"),
        ];
        let variables =
            own.iter().chain(variables).map(|(name, value)| (*name, (*value).to_owned())).collect();
        let cluster = Cluster::new(name);
        let places = [Place::Controller, Place::Node(0), Place::Node(1)];
        let machines = [0, 1, 2].map(|at| Machine::new(&cluster, places[at], &format!("ray-{at}")));
        Some(Self { machines, cluster, python, variables })
    }

    /// A command on a machine.
    fn command_on(&self, place: Place, program: &str, arguments: &[&str]) -> Command {
        let machine = match place {
            Place::Controller => &self.machines[0],
            Place::Node(node) => &self.machines[node + 1],
        };
        let mut command = self.cluster.program(program, arguments);
        command.envs(self.variables.iter().cloned());
        let (first, folder) = (machine.first.to_string(), self.cluster.run.sandbox.path(""));
        let folder = format!("--wdns={}", folder.display());
        wrapped(&["nsenter", "--target", &first, "--pid", "--mount", "--net", &folder], &command)
    }

    /// Runs `ray` on a machine.
    fn ray(&self, place: Place, arguments: &[&str]) -> String {
        let program = Path::new(&self.python).with_file_name("ray").display().to_string();
        let ended = self.command_on(place, &program, arguments).output().unwrap();
        let text =
            [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(ended.status.success(), "ray {arguments:?}: {text}");
        text
    }

    fn start_head(&self, more: &[&str]) {
        let folder = self.cluster.run.sandbox.path("ray").display().to_string();
        let own = ["start", "--head", "--node-ip-address=10.214.0.1", "--port=6379", "--num-cpus=0"];
        let folder = ["--object-store-memory=80000000", "--temp-dir", &folder];
        self.ray(Place::Controller, &[&own[..], &folder, more].concat());
    }

    fn start_nodes(&self) {
        for node in 0..2 {
            let ip = format!("--node-ip-address=10.214.{node}.2");
            let arguments =
                ["start", "--address", HEAD, &ip, "--num-cpus=1", "--object-store-memory=80000000"];
            self.ray(Place::Node(node), &arguments);
        }
    }

    /// A command of the run, on the first node.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command_on(Place::Node(0), env!("CARGO_BIN_EXE_rloom"), arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn train(&self, settings: &[&str]) -> Child {
        let (address, python) =
            (format!("cluster.address={HEAD}"), format!("cluster.python={}", self.python));
        let own =
            ["cluster.launcher=ray", "cluster.nodes=2", "cluster.bind=0.0.0.0:0", "run.keep_last=100000"];
        let settings = own.into_iter().chain([address.as_str(), &python]).chain(settings.iter().copied());
        let settings = settings.flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> = ["train", "gang.toml", "--quiet"].into_iter().chain(settings).collect();
        self.command(&arguments).spawn().unwrap()
    }

    /// Kills all processes of a machine.
    fn kill(&self, place: Place) {
        for pid in self.cluster.processes_on(place) {
            // It may have ended with another one.
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
        }
    }

    fn joined(&self) -> usize {
        self.cluster.run.count(|event| matches!(event, Event::NodeJoined { .. }))
    }
}

impl Drop for Ray {
    fn drop(&mut self) {
        for place in [Place::Controller, Place::Node(0), Place::Node(1)] {
            self.kill(place);
        }
    }
}

/// Redis behind the head: the run continues without it, and the head that takes its place starts a lost worker again.
#[test]
#[ignore = "needs root, RLOOM_TEST_PYTHON and RLOOM_TEST_RAY: .ci/cluster runs it"]
fn a_lost_head_with_redis_costs_nothing() {
    let Some(ray) =
        Ray::new("redis", &[("RAY_REDIS_ADDRESS", REDIS), ("RAY_external_storage_namespace", "run")])
    else {
        return;
    };
    let run = &ray.cluster.run;
    let folder = run.sandbox.path("").display().to_string();
    let port =
        ["--port", "6380", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", &folder];
    let mut redis = ray.command_on(Place::Node(1), "redis-server", &port);
    let _redis = Killed(redis.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    ray.start_head(&[]);
    ray.start_nodes();
    let mut train = ray.train(&["stage.rl.steps=1000000"]);
    run.wait_for_steps(&mut train, 2);
    let daemons = run.processes("rloom node");
    ray.kill(Place::Controller);
    run.wait_for_steps(&mut train, 2);
    assert_eq!(run.processes("rloom node"), daemons, "daemons of Ray ended with its head");
    ray.start_head(&[]);
    assert_eq!(run.warnings(), Vec::<String>::new());
    // The daemon ends with its worker, which only the head has started again.
    run.kill("ray::Daemon");
    wait_for(&mut train, "the loss of a node", || !run.warnings().is_empty());
    run.wait_for_steps(&mut train, 2);
    let after = run.processes("rloom node");
    assert_eq!((after.len(), after == daemons), (2, false));
    // The newest of them: `nsenter` waits for it, and does not pass signals on.
    let controller = run.processes("rloom train").into_iter().max().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &controller]).status().unwrap().success());
    let ended = run.finish(train);
    assert_eq!(ended.code, Some(130), "{}", ended.text());
    println!("{}", run.warnings().join("\n"));
    assert!(run.check_interrupted_journal(GROUPS) > 4);
}

/// Nothing behind the head: the run continues until it needs another daemon, then ends at once with the loss of the head, and is
/// resumed on another cluster.
#[test]
#[ignore = "needs root, RLOOM_TEST_PYTHON and RLOOM_TEST_RAY: .ci/cluster runs it"]
fn a_run_whose_head_is_lost_ends_by_name_and_resumes() {
    let Some(ray) = Ray::new("head", &[("RAY_gcs_rpc_server_reconnect_timeout_s", "20")]) else { return };
    let run = &ray.cluster.run;
    // Slow enough that the run is not over when the launcher gives up.
    run.slow_down(2.0);
    ray.start_head(&[]);
    ray.start_nodes();
    let mut train = ray.train(&EQUAL);
    run.wait_for_steps(&mut train, 1);
    ray.kill(Place::Controller);
    wait_for(&mut train, "the end of the launcher", || run.processes("rloom.ray").is_empty());
    ray.kill(Place::Node(1));
    let lost = Instant::now();
    let ended = run.finish(train);
    println!("the run ended {:.0?} after the node", lost.elapsed());
    assert_eq!(ended.code, Some(1), "{}", ended.text());
    assert!(ended.stderr.contains("Ray's head is lost"), "{}", ended.stderr);
    for node in 0..2 {
        ray.kill(Place::Node(node));
    }
    wait_until("all processes to end", || run.processes("").is_empty());
    run.slow_down(0.05);
    ray.start_head(&[]);
    ray.start_nodes();
    let mut resumed = ray.command(&["train", "--resume", "runs/gang", "--quiet"]);
    succeeded(&run.finish(resumed.spawn().unwrap()));
    assert_eq!(ray.joined(), 4);
    run.check_journal(STEPS, GROUPS);
    for place in [Place::Controller, Place::Node(0), Place::Node(1)] {
        ray.kill(place);
    }
    assert!(run.result() == undisturbed().0, "other weights on another cluster");
}

/// `ray job submit -- rloom train` on the head, with daemons on both nodes.
#[test]
#[ignore = "needs root, RLOOM_TEST_PYTHON and RLOOM_TEST_RAY: .ci/cluster runs it"]
fn a_run_is_submitted_as_a_job() {
    let Some(ray) = Ray::new("job", &[]) else { return };
    let run = &ray.cluster.run;
    if !Command::new(&ray.python).args(["-c", "import aiohttp_cors"]).output().unwrap().status.success() {
        println!("skipped: {} has no Ray dashboard; install ray[default]", ray.python);
        return;
    }
    ray.start_head(&["--include-dashboard=true", "--dashboard-host=127.0.0.1", "--dashboard-port=8265"]);
    ray.start_nodes();
    let path = |name: &str| run.sandbox.path(name).display().to_string();
    let settings = [
        "cluster.launcher=ray".to_owned(),
        "cluster.nodes=2".to_owned(),
        "cluster.bind=0.0.0.0:0".to_owned(),
        format!("cluster.python={}", ray.python),
        "run.keep_last=100000".to_owned(),
        format!("run.directory={}", path("runs")),
        format!(
            "reward.components=[{{kind='random'}},{{kind='command',weight=0,command=['sh','{}'],workers=1}}]",
            path("judge.sh")
        ),
        EQUAL[0].to_owned(),
    ];
    let recipe = path("gang.toml");
    let settings = settings.iter().flat_map(|setting| ["--set", setting.as_str()]);
    let job = [
        "job",
        "submit",
        "--address",
        "http://127.0.0.1:8265",
        "--",
        env!("CARGO_BIN_EXE_rloom"),
        "train",
        &recipe,
    ];
    let output = ray.ray(Place::Controller, &job.into_iter().chain(settings).collect::<Vec<_>>());
    assert!(output.contains("succeeded"), "{output}");
    assert_eq!(ray.joined(), 2);
    run.check_journal(STEPS, GROUPS);
    for place in [Place::Controller, Place::Node(0), Place::Node(1)] {
        ray.kill(place);
    }
    assert!(run.result() == undisturbed().0, "other weights in a job of Ray");
}
