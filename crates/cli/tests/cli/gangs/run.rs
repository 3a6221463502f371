//! A small run on two ranks, and checks of its processes, journal and result.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rloom_telemetry::{Event, read_events};

use crate::support::{Finished, Sandbox, audit};

/// Marks the processes of a test in their environment.
pub(crate) const MARK: &str = "RLOOM_TEST_MARK";
pub(crate) const STEPS: u64 = 8;
pub(crate) const GROUPS: u64 = 2;

/// Two ranks train, this process samples, and a program takes its time to judge.
const RECIPE: &str = r#"
[run]
name = "gang"
seed = 3
threads = 1
checkpoint_every = 3
keep_every = 0

[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 32

[data]
generator = "arithmetic"

[reward]
components = [{ kind = "random" }, { kind = "command", weight = 0, command = ["sh", "judge.sh"], workers = 1 }]

[sampling]
max_new_tokens = 4

[[stage]]
name = "rl"
method = "grpo"
steps = 8
groups_per_batch = 2

[stage.algorithm]
group_size = 4

[stage.trainer]
backend = "torch"
ranks = 2
python = "PYTHON"
step_timeout_seconds = 60
learning_rate = 1e-3
"#;

const JUDGE: &str = r#"while read -r line; do
  id=${line#*:}; id=${id%%,*}
  case "$line" in
    *'"hello"'*) echo '{"id":'$id',"ready":{"v":1}}';;
    *) sleep 0.05; echo '{"id":'$id',"verdicts":[1]}';;
  esac
done
"#;

fn sandbox() -> Sandbox {
    let python = std::env::var("RLOOM_TEST_PYTHON");
    let python = python.expect("RLOOM_TEST_PYTHON names an interpreter with torch, transformers and rloom");
    let sandbox = Sandbox::new();
    sandbox.write("gang.toml", &RECIPE.replace("PYTHON", &python));
    sandbox.write("judge.sh", JUDGE);
    sandbox
}

/// A run in a sandbox.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) sandbox: Sandbox,
    pub(crate) mark: String,
}

impl Run {
    pub(crate) fn new(name: &str) -> Self {
        Self { sandbox: sandbox(), mark: format!("{name}-{}", std::process::id()) }
    }

    /// Gives each completion another time to be judged in seconds, which changes no result.
    pub(crate) fn slow_down(&self, seconds: f64) {
        self.sandbox.write("judge.sh", &JUDGE.replace("sleep 0.05", &format!("sleep {seconds}")));
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.env(MARK, &self.mark).env("OMP_NUM_THREADS", "1");
        command
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn finish(&self, child: Child) -> Finished {
        self.sandbox.finished(&child.wait_with_output().unwrap())
    }

    pub(crate) fn resume(&self) -> Finished {
        self.finish(self.start(&["train", "--resume", "runs/gang", "--quiet"]))
    }

    /// Processes of the run whose command line contains `text`; guards and the shells of other programs do not count.
    pub(crate) fn processes(&self, text: &str) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark);
        let names = std::fs::read_dir("/proc").unwrap().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok()?.parse::<u32>().ok());
        let file = |pid: u32, name: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let is_own = |pid: &u32| {
            let line = file(*pid, "cmdline");
            let is_guard = line.contains(" guard ") && !text.is_empty();
            !line.is_empty() && line.contains(text) && !is_guard && file(*pid, "environ").contains(&mark)
        };
        names.filter(|pid| is_own(pid) && *pid != std::process::id()).collect()
    }

    /// Sends a signal to a process, once there is one. Returns its id.
    pub(crate) fn signal(&self, signal: &str, text: &str) -> u32 {
        wait_until(&format!("a process with {text}"), || !self.processes(text).is_empty());
        let pid = self.processes(text)[0];
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        pid
    }

    pub(crate) fn kill(&self, text: &str) {
        self.signal("-KILL", text);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        let lines = read_events(&self.sandbox.path("runs/gang/events.jsonl")).unwrap_or_default();
        lines.into_iter().map(|line| line.event).collect()
    }

    pub(crate) fn count(&self, is_counted: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| is_counted(event)).count()
    }

    /// Steps that were reported, those that are repeated included.
    pub(crate) fn steps(&self) -> usize {
        self.count(|event| matches!(event, Event::Step { .. }))
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let of_event = |event| match event {
            Event::Warning { message } => Some(message),
            _ => None,
        };
        self.events().into_iter().filter_map(of_event).collect()
    }

    /// Waits for the reports of some more steps.
    pub(crate) fn wait_for_steps(&self, child: &mut Child, more: usize) {
        let before = self.steps();
        wait_for(child, "more steps", || self.steps() >= before + more);
    }

    /// Checks that no process of the run is left. Returns the time that the last one took to end.
    pub(crate) fn check_ended(&self) -> Duration {
        let start = Instant::now();
        wait_until("all processes to end", || self.processes("").is_empty());
        start.elapsed()
    }

    /// Final weights, after each group was trained on exactly once.
    pub(crate) fn result(&self) -> Vec<u8> {
        audit::check_groups(&self.sandbox.path("runs/gang/rollouts"), STEPS, GROUPS);
        self.check_ended();
        std::fs::read(self.sandbox.path("runs/gang/checkpoints/latest/model.safetensors")).unwrap()
    }

    /// Checks the journal of a run that keeps all checkpoints.
    pub(crate) fn check_journal(&self, steps: u64, groups: u64) {
        audit::check_journal(&self.sandbox.path("runs/gang"), steps, groups);
    }

    /// Checks the journal of a run that keeps all checkpoints and was interrupted; returns the number of trained batches.
    pub(crate) fn check_interrupted_journal(&self, groups: u64) -> u64 {
        audit::check_interrupted_journal(&self.sandbox.path("runs/gang"), groups)
    }
}

/// Waits for something that a run does before its end.
pub(crate) fn wait_for(child: &mut Child, what: &str, is_so: impl Fn() -> bool) {
    wait_until(what, || child.try_wait().unwrap().is_some() || is_so());
    let mut error = || child.stderr.take().map(std::io::read_to_string);
    assert!(is_so(), "the run ended before {what}: {:?}", error());
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(15);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn succeeded(result: &Finished) {
    assert_eq!(result.code, Some(0), "{}", result.text());
}

/// Weights of a run that nothing disturbs, and its time. All tests of a process share one.
pub(crate) fn undisturbed() -> &'static (Vec<u8>, Duration) {
    static RESULT: OnceLock<(Vec<u8>, Duration)> = OnceLock::new();
    RESULT.get_or_init(|| {
        let start = Instant::now();
        let run = Run::new("undisturbed");
        succeeded(&run.finish(run.start(&["train", "gang.toml", "--quiet"])));
        assert_eq!(run.warnings().len(), 0);
        let learns = |event: &Event| matches!(event, Event::Step { metrics } if metrics["grad_norm"] > 0.0);
        assert!(run.count(learns) as u64 > STEPS / 2, "equal weights show nothing if they do not change");
        (run.result(), start.elapsed())
    })
}
