//! Time and resources of the controller with many inference servers and many ranks: stand-ins that speak the protocols of
//! vLLM and of PyTorch ranks, in processes of their own.
//!
//!     cargo bench -p rloom-run --bench many_peers [-- REPLICAS RANKS]

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::exit,
    reason = "it prints its measurements, and ends by panicking"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rloom_algo::{LossStep, TokenScores};
use rloom_config::{Config, Stage};
use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{PublishedPolicy, RolloutEngineSettings, TrainCapabilities};
use rloom_hub::Hub;
use rloom_learn::Models;
use rloom_remote::{
    Gang, GangSettings, ModelLimits, RankCommand, RankEnd, RankLauncher, RankProcess, ReplicaPool, Server,
};
use rloom_run::assembly::{EmbeddedEngines, EngineFactory, StageStart};
use rloom_run::{Policy, RunError, RunInputs, StopFlag, context, train_on};
use rloom_stage::PolicyWriter;
use rloom_telemetry::{Event, EventLine, Observer};
use rloom_wire::{Connection, Frame, Identity, Options, TOKEN_VARIABLE, Tensor, Token, connect};
use serde_json::{Map, Value, json};

#[expect(dead_code, reason = "tests of crate remote, which use more of it")]
#[path = "../../remote/tests/remote/stand_in/mod.rs"]
mod stand_in;

use stand_in::model::{VOCABULARY, publish};
use stand_in::{CONTEXT, StandIn};

const STEPS: u64 = 8;
const GROUPS: u64 = 64;
const GROUP_SIZE: u64 = 8;
const TOKENS: usize = 256;
/// Log-probability of each token in the view of the ranks.
const LOGPROB: f32 = -2.2;

/// Numbers of replicas and ranks.
const CASES: [(usize, usize); 7] = [(1, 2), (16, 2), (64, 2), (256, 2), (64, 16), (64, 64), (256, 64)];

fn recipe(urls: &[String]) -> String {
    let urls: Vec<String> = urls.iter().map(|url| format!("'{url}'")).collect();
    format!(
        r#"
[run]
name = "peers"
checkpoint_every = 0
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = {CONTEXT}
[tokenizer]
# As many tokens as the stand-ins have.
alphabet = "0123456789+-*="
[data]
generator = "arithmetic"
operations = ["+"]
max_digits = 2
[reward]
components = [{{ kind = "random" }}]
[rollout]
engine = "vllm"
max_requests = 64
# The ranks do not know what the servers compute.
probe_tolerance = 100
urls = [{}]
[sampling]
max_new_tokens = {TOKENS}
[[stage]]
name = "rl"
method = "grpo"
steps = {STEPS}
groups_per_batch = {GROUPS}
[stage.algorithm]
group_size = {GROUP_SIZE}
"#,
        urls.join(",")
    )
}

/// This program in another role, with as many open files as the system allows.
fn role(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n $(ulimit -Hn); exec \"$0\" \"$@\""]).arg(program).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Starts servers, prints their addresses, and ends with its input.
fn servers(count: usize) {
    let servers: Vec<StandIn> = (0..count).map(|_| StandIn::start()).collect();
    for server in &servers {
        server.set_whole_lengths();
        println!("{}", server.url);
    }
    println!();
    std::io::stdin().lines().for_each(drop);
    // Their threads need not end one after the other.
    std::process::exit(0);
}

/// Starts a rank for each line of input, and ends with it.
fn ranks() {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
        std::thread::spawn(move || {
            let [address, rank, epoch, token] = &fields[..] else { panic!("{fields:?}") };
            let identity = Identity::new("rank", rank.parse().unwrap(), epoch.parse().unwrap());
            let (token, deadline) = (Token::new(token).unwrap(), Instant::now() + Duration::from_mins(2));
            serve(&connect(address, &token, &identity, Options::default(), deadline).unwrap(), rank == "0");
        });
    }
    std::process::exit(0);
}

/// Answers the jobs of a rank, whose model gives every token the same score.
fn serve(connection: &Connection, is_first: bool) {
    let minutes = || Instant::now() + Duration::from_mins(20);
    while let Ok(frame) = connection.receive(minutes()) {
        let asked: Value = frame.parse().unwrap();
        let mut tensors = Vec::new();
        let answer = match asked["job"].as_str().unwrap() {
            "shutdown" => return,
            "listen" => json!({ "port": 1 }),
            "open" => json!({ "numeric_path": "none", "repeats_bits": true, "layout": "packed" }),
            "digest" => json!({ "digest": 1 }),
            "step" => json!({ "grad_norm": 1.0 }),
            "accumulate" => {
                let loss = LossStep::from_bytes(&frame.tensor("loss").unwrap().data).unwrap();
                let mut trained = Map::new();
                for tensor in &frame.tensors {
                    let Some(index) = tensor.name.strip_suffix(".rows") else { continue };
                    trained.insert(index.to_owned(), json!({ "tokens": tensor.shape[0], "skipped": 0 }));
                    let count = tensor.shape[0];
                    let (logprob, entropy) = (vec![LOGPROB; count], vec![1.0; count]);
                    let scores = TokenScores { logprob, entropy, ..TokenScores::default() };
                    let grad = loss.evaluate(index.parse().unwrap(), &scores).unwrap();
                    let terms = grad.terms.to_bytes().unwrap();
                    tensors.push(Tensor::new(format!("{index}.terms"), &[terms.len()], &terms));
                }
                json!({ "trained": trained })
            }
            "score" => {
                for tensor in &frame.tensors {
                    let Some(index) = tensor.name.strip_suffix(".rows") else { continue };
                    let count = tensor.shape[0];
                    for (name, scores) in [
                        ("logprob", vec![LOGPROB; count]),
                        ("entropy", vec![1.0; count]),
                        ("value", Vec::new()),
                        ("last_value", Vec::new()),
                    ] {
                        tensors.push(Tensor::new(format!("{index}.{name}"), &[scores.len()], &scores));
                    }
                }
                json!({})
            }
            "publish" => {
                if is_first {
                    let file = Path::new(asked["folder"].as_str().unwrap()).join("weights.json");
                    std::fs::write(file, "[1, 2]").unwrap();
                }
                json!({ "files": [["weights.json", 6]] })
            }
            "save" => {
                std::fs::create_dir_all(Path::new(asked["folder"].as_str().unwrap()).join("trainer"))
                    .unwrap();
                json!({ "files": [] })
            }
            _ => json!({}),
        };
        let answer = Frame { epoch: frame.epoch, job: frame.job, message: answer.to_string(), tensors };
        if connection.send(&answer, minutes()).is_err() {
            return;
        }
    }
}

/// Starts ranks as threads of another process.
struct OtherProcess(Mutex<ChildStdin>);

impl RankLauncher for OtherProcess {
    fn start(&self, command: &RankCommand) -> std::io::Result<Box<dyn RankProcess>> {
        let [_, _, address, rank, _, epoch] = &command.arguments[..] else { panic!("{command:?}") };
        let token = command.environment.iter().find(|(name, _)| name == TOKEN_VARIABLE).unwrap();
        writeln!(self.0.lock().unwrap(), "{address} {rank} {epoch} {}", token.1)?;
        Ok(Box::new(OtherThread))
    }
}

#[derive(Debug)]
struct OtherThread;

impl RankProcess for OtherThread {
    fn ended(&mut self) -> Option<RankEnd> {
        None
    }

    fn request_stacks(&self) {}

    fn kill(&mut self) {}

    fn stderr(&self) -> String {
        String::new()
    }
}

struct Peers {
    embedded: EmbeddedEngines,
    urls: Vec<String>,
    ranks: usize,
    launcher: OtherProcess,
    folder: PathBuf,
}

impl EngineFactory for Peers {
    type Rollout = ReplicaPool;
    type Train = Gang;

    fn rollout(&self, settings: &RolloutEngineSettings) -> Result<ReplicaPool, RunError> {
        let RolloutEngineSettings::Vllm(settings) = settings else { panic!("{settings:?}") };
        let limits = ModelLimits { context: CONTEXT, vocabulary: VOCABULARY };
        let pool = ReplicaPool::new(limits, settings, None).expect("a pool");
        for url in &self.urls {
            pool.join(Server::vllm(url).expect("an address"));
        }
        Ok(pool)
    }

    fn models(&self, _: &Stage, _: usize, _: StageStart) -> Result<Models<Gang>, RunError> {
        let settings = GangSettings { ranks: self.ranks, ..GangSettings::new(&self.folder, &self.folder) };
        let policy = Gang::start(settings, &self.launcher, 1).expect("ranks");
        Ok(Models::of_policy(policy))
    }

    fn open(&self, _: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        Ok(publish(&self.folder, PolicyId::MAIN, version))
    }

    fn open_start(&self, _: StageStart) -> Result<PublishedPolicy, RunError> {
        Ok(publish(&self.folder, PolicyId::MAIN, PolicyVersion(0)))
    }

    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities {
        TrainCapabilities {
            ranks: self.ranks,
            shares_prompts: false,
            forms: vec![rloom_engine::Form::Folder],
            ..self.embedded.train_capabilities(stage)
        }
    }

    fn is_sampler_exact(&self, _: &Stage) -> bool {
        false
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        self.embedded.writer()
    }
}

/// Processor time of this process in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

/// A number of `/proc/self/status`.
fn status(field: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Processor time and time at the end of each step.
#[derive(Default)]
struct StepEnds(Vec<(f64, f64)>);

impl Observer for StepEnds {
    fn observe(&mut self, line: &EventLine) {
        match &line.event {
            Event::Step { .. } => self.0.push((cpu_seconds(), line.elapsed)),
            Event::Warning { message } => println!("warning: {message}"),
            _ => {}
        }
    }
}

/// Threads and open files at most.
static THREADS: AtomicUsize = AtomicUsize::new(0);
static FILES: AtomicUsize = AtomicUsize::new(0);

fn controller(replicas: usize, ranks: usize) {
    let mut children = [role(&["servers", &replicas.to_string()]), role(&["ranks"])];
    let output = children[0].stdout.take().unwrap();
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let urls: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    assert_eq!(urls.len(), replicas, "servers");
    let launcher = OtherProcess(Mutex::new(children[1].stdin.take().unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let overrides = [format!("run.directory={}", folder.path().display())];
    let config = Config::from_text("peers.toml", &recipe(&urls), &overrides);
    let config = config.map_err(|errors| errors.to_string()).expect("a recipe");
    let hub = Arc::new(Hub::from_env());
    let ctx = context(config.run.threads).expect("threads");
    let policy = Policy::initial(&config, &hub).expect("a model");
    let inputs = RunInputs::new(&policy, Arc::clone(&hub), ctx.threads(), config.run.seed);
    let embedded = EmbeddedEngines::new(&policy, &config, ctx);
    let engines = Peers { embedded, urls, ranks, launcher, folder: folder.path().to_owned() };
    std::thread::spawn(|| {
        loop {
            THREADS.fetch_max(status("Threads:"), Ordering::Relaxed);
            let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            FILES.fetch_max(files, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut ends = StepEnds::default();
    train_on(&config, &engines, &inputs, &mut ends, &StopFlag::default()).expect("a run");
    let (first, last) = (ends.0[0], *ends.0.last().unwrap());
    let steps = (ends.0.len() - 1) as f64;
    let cpu = 1e3 * (last.0 - first.0) / steps;
    let completions = (GROUPS * GROUP_SIZE) as f64;
    println!(
        "| {replicas} | {ranks} | {cpu:.0} | {:.0} | {:.0} | {} | {} | {} |",
        1e3 * cpu / completions,
        1e3 * (last.1 - first.1) / steps,
        status("VmHWM:") / 1024,
        THREADS.load(Ordering::Relaxed),
        FILES.load(Ordering::Relaxed),
    );
    drop(children[0].stdin.take());
    drop(engines);
    for mut child in children {
        child.wait().unwrap();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |at: usize| arguments[at].parse().expect("a number");
    match arguments.first().map(String::as_str) {
        Some("servers") => servers(number(1)),
        Some("ranks") => ranks(),
        Some("controller") => controller(number(1), number(2)),
        other => {
            println!(
                "{} completions of {TOKENS} tokens a step; processor time of the controller alone",
                GROUPS * GROUP_SIZE
            );
            println!(
                "| replicas | ranks | ms of processor time per step | per 1,000 completions | ms between steps | MiB | threads | open files |"
            );
            println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
            let cases = if other.is_some() { vec![(number(0), number(1))] } else { CASES.to_vec() };
            for (replicas, ranks) in cases {
                let program = std::env::current_exe().unwrap();
                let case = [replicas, ranks].map(|n| n.to_string());
                let status = Command::new(program).arg("controller").args(case).status().unwrap();
                if !status.success() {
                    println!("| {replicas} | {ranks} | failed: {status} |");
                }
            }
        }
    }
}
