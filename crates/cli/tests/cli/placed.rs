//! Functions on the machines of a run: two daemons, which are processes of this machine.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, or says that it is skipped"
)]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Finished, Sandbox, audit};

const TOKEN: &str = "a token for the daemons of functions";
const STEPS: u64 = 12;
const GROUPS: u64 = 2;

/// The reward counts characters, and waits while there is a file `hold`; then it makes a file `waiting`.
const RECIPE: &str = r#"
[run]
name = "placed"
seed = 3
threads = 1
checkpoint_every = 0

[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 32

[data]
generator = "arithmetic"

[reward]
timeout_seconds = 600
components = [{ kind = "python", name = "ones", function = "ones.py:ones", workers = 1 }]

[sampling]
max_new_tokens = 4

[[stage]]
name = "rl"
method = "grpo"
steps = 12
groups_per_batch = 2

[stage.algorithm]
group_size = 4

[stage.trainer]
learning_rate = 1e-2
"#;

const ONES: &str = "import pathlib, sys, time\n\n\
                    hold = pathlib.Path(__file__).with_name('hold')\n\
                    print('started', file=sys.stderr, flush=True)\n\n\n\
                    def ones(completion):\n\
                    \x20   while hold.exists():\n\
                    \x20       hold.with_name('waiting').touch()\n\
                    \x20       time.sleep(0.01)\n\
                    \x20   print('judged', file=sys.stderr, flush=True)\n\
                    \x20   return completion.count('1') + len(completion) / 8\n";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("placed.toml", RECIPE);
    sandbox.write("ones.py", ONES);
    sandbox
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|run| run.status.success());
    if !found {
        println!("skipped: there is no python3");
    }
    found
}

/// A run of two machines with their daemons.
struct Cluster {
    sandbox: Sandbox,
    address: String,
    daemons: Vec<Child>,
}

impl Cluster {
    fn new(sandbox: Sandbox) -> Self {
        // Free until the run listens there.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut cluster = Self { sandbox, address, daemons: Vec::new() };
        cluster.daemons = vec![cluster.daemon("0"), cluster.daemon("1")];
        cluster
    }

    fn daemon(&self, index: &str) -> Child {
        let mut command = self.sandbox.command(&["node", "--controller", &self.address, "--index", index]);
        command.env("RLOOM_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts the run.
    fn train(&self, more: &[&str]) -> Child {
        let bind = format!("cluster.bind={}", self.address);
        let settings = ["cluster.launcher=wait", "cluster.nodes=2", &bind];
        let settings = settings.iter().chain(more).flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> = ["train", "placed.toml", "--quiet"].into_iter().chain(settings).collect();
        let mut command = self.sandbox.command(&arguments);
        command.env("RLOOM_TOKEN", TOKEN).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn finish(&self, run: Child) -> Finished {
        self.sandbox.finished(&run.wait_with_output().unwrap())
    }

    /// Machine and process id of the functions that run.
    fn functions(&self) -> Vec<(u64, String, u64)> {
        let listed = self.sandbox.run(&["cluster", "ps", "runs/placed", "--json"]);
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        let processes = listed["processes"].as_array().cloned().unwrap_or_default();
        let function = |process: &Value| {
            let name = process["name"].as_str()?.to_owned();
            let is_function = process["role"] == "function";
            is_function.then_some((process["machine"].as_u64()?, name, process["pid"].as_u64()?))
        };
        processes.iter().filter_map(function).collect()
    }

    /// Waits until a reward runs on a machine, after the first call: before it, processes load the function and end. Returns its
    /// process id.
    fn wait_for_reward(&self, run: &mut Child, machine: u64) -> u64 {
        self.wait(run, || self.sandbox.path("waiting").exists().then_some(()));
        self.wait(run, || {
            let mut functions = self.functions().into_iter();
            functions.rfind(|(own, name, _)| (*own, name.as_str()) == (machine, "reward ones 0"))
        })
        .2
    }

    /// Has the next call of the reward wait, until `release`.
    fn hold(&self) {
        self.sandbox.write("hold", "");
    }

    fn release(&self) {
        std::fs::remove_file(self.sandbox.path("hold")).unwrap();
    }

    /// Steps that were reported.
    fn steps(&self) -> usize {
        let events = std::fs::read_to_string(self.sandbox.path("runs/placed/events.jsonl"));
        events.unwrap_or_default().matches("\"event\":\"step\"").count()
    }

    /// Waits while the run runs.
    fn wait<T>(&self, run: &mut Child, look: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_mins(4);
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(run.try_wait().unwrap().is_none(), "the run has ended after {} steps", self.steps());
            assert!(Instant::now() < deadline, "{:?} after {} steps", self.functions(), self.steps());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn weights(sandbox: &Sandbox) -> Vec<u8> {
    std::fs::read(sandbox.path("runs/placed/checkpoints/latest/model.safetensors")).unwrap()
}

fn is_alive(pid: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

/// A reward on the second machine, whose daemon is killed during a call: the reward moves, each group is scored and trained once, and the
/// weights are those of a run on one machine, bit by bit.
#[test]
fn a_reward_moves_to_another_machine_when_its_own_is_lost() {
    if !has_python() {
        return;
    }
    let alone = sandbox();
    let result = alone.run(&["train", "placed.toml", "--quiet"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    let expected = weights(&alone);

    let mut cluster = Cluster::new(sandbox());
    cluster.hold();
    let mut run = cluster.train(&[]);
    let pid = cluster.wait_for_reward(&mut run, 1);
    cluster.daemons[1].kill().unwrap();
    cluster.daemons[1].wait().unwrap();
    let moved = cluster.wait_for_reward(&mut run, 0);
    assert_ne!(pid, moved);
    cluster.release();
    let result = cluster.finish(run);
    assert_eq!(result.code, Some(0), "{}", result.text());
    audit::check_journal(&cluster.sandbox.path("runs/placed"), STEPS, GROUPS);
    audit::check_groups(&cluster.sandbox.path("runs/placed/rollouts"), STEPS, GROUPS);
    assert!(weights(&cluster.sandbox) == expected, "other weights");
    let logs = cluster.sandbox.run(&["cluster", "logs", "runs/placed", "reward-ones-0"]);
    assert!(logs.stdout.contains("judged"), "{}", logs.text());
    let deadline = Instant::now() + Duration::from_mins(2);
    while is_alive(pid) || is_alive(moved) {
        assert!(Instant::now() < deadline, "a reward is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A reward that is killed in a call is started again on its machine, and replaced after its calls; an environment plays on
/// both machines.
#[test]
fn functions_on_machines_are_restarted_and_recycled() {
    if !has_python() {
        return;
    }
    let sandbox = sandbox();
    sandbox
        .write("env.py", "def play(task):\n    reply = yield task['prompt']\n    return float(len(reply))\n");
    let mut cluster = Cluster::new(sandbox);
    let environment = "environment={kind='python',function='env.py:play',workers=2,rewards_turns=false}";
    let recycled =
        "reward.components=[{kind='python',name='ones',function='ones.py:ones',workers=1,recycle_calls=40}]";
    cluster.hold();
    let mut run = cluster.train(&[environment, recycled]);
    let first = cluster.wait_for_reward(&mut run, 1);
    let machines = cluster.wait(&mut run, || {
        let functions = cluster.functions().into_iter();
        let machines: Vec<u64> =
            functions.filter(|(_, name, _)| name.starts_with("environment ")).map(|(own, ..)| own).collect();
        (machines.len() == 2).then_some(machines)
    });
    assert!(machines.contains(&0) && machines.contains(&1), "{machines:?}");
    assert!(Command::new("kill").args(["-KILL", &first.to_string()]).status().unwrap().success());
    let (machine, ..) = cluster.wait(&mut run, || {
        let mut functions = cluster.functions().into_iter();
        functions.find(|(_, name, pid)| name == "reward ones 0" && *pid != first)
    });
    assert_eq!(machine, 1, "on its own machine");
    cluster.release();
    let result = cluster.finish(run);
    assert_eq!(result.code, Some(0), "{}", result.text());
    audit::check_journal(&cluster.sandbox.path("runs/placed"), STEPS, GROUPS);
    // 96 completions in processes of at most 40 calls, of which one was killed in its first call.
    let log = std::fs::read_to_string(cluster.sandbox.path("runs/placed/logs/reward-ones-0.log")).unwrap();
    assert_eq!((log.matches("started").count() > 3, log.matches("judged").count()), (true, 96), "{log}");
    for daemon in &mut cluster.daemons {
        assert!(daemon.wait().unwrap().success());
    }
}

/// Errors name the machine, the file and the end of stderr.
#[test]
fn functions_that_cannot_be_used_name_their_machine() {
    if !has_python() {
        return;
    }
    let refused = |name: &str, component: &str, texts: &[&str]| {
        let sandbox = sandbox();
        sandbox.write(
            "broken.py",
            "import sys\nprint('last words', file=sys.stderr, flush=True)\nimport os\nos._exit(3)\n",
        );
        let cluster = Cluster::new(sandbox);
        let run = cluster.train(&[&format!("reward.components=[{component}]")]);
        let result = cluster.finish(run);
        assert!(result.code != Some(0), "{name}: {}", result.text());
        for text in texts {
            assert!(result.stderr.contains(text), "{name}: no `{text}` in {}", result.stderr);
        }
        assert_eq!(cluster.steps(), 0);
    };
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let on_machine = format!(" on {}", hostname.trim());
    let missing = "{kind='python',function='missing.py:f',workers=1}";
    refused("missing", missing, &[&on_machine, "missing.py does not exist"]);
    let broken = "{kind='python',function='broken.py:f',workers=1}";
    refused("broken", broken, &[&on_machine, "ended with exit code 3", "last words"]);
    let program = "{kind='command',command=['/no/such/program']}";
    refused("program", program, &["could not start reward command 0 on node 1", "/no/such/program"]);
}
