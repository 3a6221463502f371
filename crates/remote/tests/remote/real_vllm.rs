//! vLLM itself, compared with transformers. Needs `RLOOM_TEST_VLLM`: the Python interpreter of an environment that has both.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_core::{OnUpdate, PolicyId, PolicyVersion, StopReason};
use rloom_engine::conformance::{ReferenceTrainer, RolloutSuite};
use rloom_engine::{
    GenerateRequest, Generation, Probe, PublishedPolicy, PublishedWeights, RolloutEngine, SamplingSettings,
    ServerSettings, WeightFolder, generate_all,
};
use rloom_remote::{AdapterSlots, ModelLimits, ReplicaPool, Server, ServerCommand, Slot};
use serde_json::{Value, json};

use crate::support::{request, run};

/// Largest difference of log-probabilities between vLLM and transformers, both in f32.
pub(crate) const TOLERANCE: f32 = 1e-3;
pub(crate) const LIMITS: ModelLimits = ModelLimits { context: 256, vocabulary: 512 };

/// Layers and width of a model.
pub(crate) struct Size(pub(crate) usize, pub(crate) usize);

/// A Python process that makes models and scores tokens.
pub(crate) struct Transformers {
    child: RefCell<Child>,
    answers: RefCell<BufReader<std::process::ChildStdout>>,
    folders: [PathBuf; 2],
}

impl Transformers {
    pub(crate) fn start(python: &str, folder: &Path, Size(layers, width): Size) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/transformers_server.py");
        let mut command = Command::new(python);
        command.arg(script).env("HF_HUB_OFFLINE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let answers = RefCell::new(BufReader::new(child.stdout.take().unwrap()));
        let folders = ["a", "b"].map(|name| folder.join(name));
        let own = Self { child: RefCell::new(child), answers, folders };
        for (seed, folder) in own.folders.iter().enumerate() {
            own.ask(
                &json!({ "op": "make", "folder": folder, "seed": seed, "layers": layers, "width": width }),
            );
        }
        own
    }

    pub(crate) fn ask(&self, question: &Value) -> Value {
        let mut child = self.child.borrow_mut();
        writeln!(child.stdin.as_mut().unwrap(), "{question}").unwrap();
        let mut line = String::new();
        self.answers.borrow_mut().read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) fn folder(&self, version: u64) -> &Path {
        &self.folders[version as usize % 2]
    }

    /// Log-probability of each token but the first.
    fn score(&self, version: u64, tokens: &[u32], temperature: f32) -> Vec<f32> {
        self.score_folder(self.folder(version), tokens, temperature)
    }

    /// Log-probability of each token but the first by the model in a folder.
    pub(crate) fn score_folder(&self, folder: &Path, tokens: &[u32], temperature: f32) -> Vec<f32> {
        let scores = self
            .ask(&json!({ "op": "score", "folder": folder, "tokens": tokens, "temperature": temperature }));
        serde_json::from_value(scores).unwrap()
    }
}

impl Drop for Transformers {
    fn drop(&mut self) {
        drop(self.child.borrow_mut().kill());
        drop(self.child.borrow_mut().wait());
    }
}

impl ReferenceTrainer for Transformers {
    fn publish(&self, policy: PolicyId, version: PolicyVersion) -> PublishedPolicy {
        let folder = self.folder(version.0);
        let tokens: Vec<u32> = (0..64).map(|at| at * 7 % 500).collect();
        let probe = Probe { logprobs: self.score(version.0, &tokens, 1.0), tokens };
        PublishedPolicy {
            policy,
            version,
            digest: version.0 % 2,
            weights: PublishedWeights::Folder(Arc::new(WeightFolder::kept(folder))),
            probe: Some(Arc::new(probe)),
        }
    }

    fn logprobs(&self, version: PolicyVersion, request: &GenerateRequest, made: &Generation) -> Vec<f32> {
        let tokens = [&request.prompt[..], &request.prefix, &made.tokens].concat();
        let all = self.score(version.0, &tokens, request.sampling.reported_temperature());
        all[tokens.len() - made.tokens.len() - 1..].to_vec()
    }
}

/// A vLLM server in a process group of its own.
pub(crate) struct Vllm {
    child: Child,
    pub(crate) url: String,
    log: PathBuf,
}

impl Vllm {
    pub(crate) fn start(settings: &ServerSettings, slot: &Slot, model: &Path, folder: &Path) -> Self {
        Self::start_with(settings, slot, model, folder, &[])
    }

    /// A server with further variables in its environment.
    pub(crate) fn start_with(
        settings: &ServerSettings,
        slot: &Slot,
        model: &Path,
        folder: &Path,
        variables: &[(&str, OsString)],
    ) -> Self {
        let command =
            |port| ServerCommand::vllm(settings, LIMITS, slot, model, port, &folder.join("modules")).unwrap();
        Self::spawn(command, folder, variables)
    }

    /// A server of adapters over the model in a folder.
    pub(crate) fn of_adapters(
        settings: &ServerSettings,
        slot: &Slot,
        model: &Path,
        folder: &Path,
        slots: AdapterSlots,
    ) -> Self {
        let modules = folder.join("modules");
        let command = |port| ServerCommand::vllm(settings, LIMITS, slot, model, port, &modules).unwrap();
        Self::spawn(|port| command(port).with_adapters(slots), folder, &[])
    }

    fn spawn(command: impl Fn(u16) -> ServerCommand, folder: &Path, variables: &[(&str, OsString)]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let command = command(port);
        let log = folder.join(format!("vllm-{port}.log"));
        let output = std::fs::File::create(&log).unwrap();
        let child = Command::new(command.program)
            .args(command.arguments)
            .envs(command.environment)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap();
        Self { child, url: format!("http://127.0.0.1:{port}"), log }
    }

    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        drop(Command::new("kill").args([signal, "--", &group]).status());
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        self.signal("-TERM");
        drop(self.child.wait());
        self.signal("-KILL");
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(30).collect();
            println!("{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
}

pub(crate) fn close(own: &[f32], reference: &[f32], place: &str) {
    assert_eq!(own.len(), reference.len());
    let worst = own.iter().zip(reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{place}: largest difference {worst:.1e} over {} tokens", own.len());
    assert!(worst < TOLERANCE, "{place}: {own:?} instead of {reference:?}");
}

fn greedy_tokens_are_those_of_transformers(pool: &ReplicaPool, trainer: &Transformers) {
    let sampling = SamplingSettings::greedy(40);
    let requests: Vec<_> =
        (0..8).map(|n| GenerateRequest { sampling: sampling.clone(), ..request(n, 0, 40) }).collect();
    let made = run(generate_all(pool, requests.iter().cloned())).unwrap();
    for (request, made) in requests.iter().zip(&made) {
        let folder = trainer.folder(1);
        let expected = trainer
            .ask(&json!({ "op": "greedy", "folder": folder, "tokens": &request.prompt[..], "count": 40 }));
        assert_eq!(json!(made.tokens), expected);
        close(&made.logprobs, &trainer.logprobs(PolicyVersion(1), request, made), "greedy");
    }
}

/// Filters and the minimum length change which tokens are sampled, never the distribution that is reported.
fn logprobs_are_those_of_the_full_softmax(pool: &ReplicaPool, trainer: &Transformers) {
    let plain = SamplingSettings { max_new_tokens: 40, ..SamplingSettings::default() };
    let samplings = [
        plain.clone(),
        SamplingSettings { temperature: 0.7, ..plain.clone() },
        SamplingSettings { temperature: 1.3, top_k: 5, ..plain.clone() },
        SamplingSettings { temperature: 0.7, top_p: 0.6, min_p: 0.05, ..plain.clone() },
        SamplingSettings { min_new_tokens: 40, ..plain.clone() },
        SamplingSettings { temperature: 0.0, ..plain },
    ];
    let requests: Vec<_> = (0..)
        .zip(&samplings)
        .map(|(n, sampling)| GenerateRequest {
            sampling: sampling.clone(),
            stop_tokens: (0..if n == 4 { 300 } else { 0 }).collect(),
            ..request(n, 1, 40)
        })
        .collect();
    // All in one batch, where greedy and random requests are mixed.
    let made = run(generate_all(pool, requests.iter().cloned())).unwrap();
    for (request, made) in requests.iter().zip(&made) {
        assert_eq!(made.tokens.len(), 40);
        close(
            &made.logprobs,
            &trainer.logprobs(PolicyVersion(1), request, made),
            &format!("{:?}", request.sampling),
        );
    }
}

/// An update in flight: each token's version is right, which its log-probability by both weights shows.
fn versions_change_where_the_weights_do(pool: &ReplicaPool, trainer: &Transformers) {
    let requests: Vec<_> = (0..6).map(|sample| request(20, sample, 200)).collect();
    let newer = trainer.publish(PolicyId::MAIN, PolicyVersion(2));
    let made = run(async {
        let futures: Vec<_> = requests.iter().map(|request| pool.generate(request.clone())).collect();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let start = Instant::now();
        pool.load(&newer, OnUpdate::Keep).await.unwrap();
        println!("an update in flight took {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
        let mut made = Vec::new();
        for future in futures {
            made.push(future.await.unwrap());
        }
        made
    });
    let mixed = requests.iter().zip(&made).filter(|(_, made)| made.versions.len() == 2);
    assert!(mixed.clone().count() > 0, "no completion met the update");
    for (request, made) in mixed {
        let old = made.versions[0].range.end;
        let [by_old, by_new] = [1, 2].map(|version| trainer.logprobs(PolicyVersion(version), request, made));
        close(&made.logprobs[..old], &by_old[..old], "old tokens");
        // vLLM 0.32 computes the keys and values of frozen requests again.
        close(&made.logprobs[old..], &by_new[old..], "new tokens");
        let differs = |at: usize, other: &[f32]| (made.logprobs[at] - other[at]).abs() > TOLERANCE;
        assert!(differs(old - 1, &by_new) && differs(old, &by_old), "the boundary is somewhere else");
    }
}

fn a_killed_server_loses_nothing(pool: &ReplicaPool, trainer: &Transformers, victim: &Vllm) {
    let requests: Vec<_> = (0..16).map(|sample| request(30 + u64::from(sample / 4), sample, 150)).collect();
    let made = run(async {
        let futures: Vec<_> = requests.iter().map(|request| pool.generate(request.clone())).collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        victim.signal("-KILL");
        let mut made = Vec::new();
        for future in futures {
            made.push(future.await.unwrap());
        }
        made
    });
    for (request, made) in requests.iter().zip(&made) {
        assert_eq!((made.tokens.len(), made.stop), (150, StopReason::Length));
        assert!(made.versions.iter().all(|span| span.version == PolicyVersion(3)));
        close(&made.logprobs, &trainer.logprobs(PolicyVersion(3), request, made), "after a kill");
    }
    assert!(pool.failures().iter().any(|(replica, _)| *replica == 0), "{:?}", pool.failures());
}

/// Loads a version into every server, also those that are still starting.
pub(crate) async fn load_everywhere(pool: &ReplicaPool, policy: &PublishedPolicy, servers: &mut [Vllm]) {
    let mut loading = std::pin::pin!(pool.load(policy, OnUpdate::Finish));
    let mut is_loaded = false;
    while !is_loaded || pool.workers().iter().any(|worker| worker.loaded.is_empty()) {
        let has_ended = |server: &mut Vllm| server.child.try_wait().unwrap().is_some();
        assert!(!servers.iter_mut().any(has_ended), "a server ended");
        tokio::select! {
            result = &mut loading, if !is_loaded => is_loaded = result.map(|()| true).unwrap(),
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    }
}

#[test]
fn vllm_agrees_with_transformers() {
    let Ok(python) = std::env::var("RLOOM_TEST_VLLM") else {
        println!("skipped: set RLOOM_TEST_VLLM to the Python interpreter of an environment with vLLM");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let trainer = Transformers::start(&python, folder.path(), Size(2, 128));
    let settings = ServerSettings {
        python: PathBuf::from(&python),
        replicas: 2,
        max_requests: 16,
        replace_seconds: 3600.0,
        memory: Some(0.12),
        args: ["--dtype", "float32", "--enforce-eager"].map(str::to_owned).into(),
        ..ServerSettings::default()
    };
    let mut servers: Vec<_> = (0..2)
        .map(|core| Vllm::start(&settings, &Slot::Cores(core, core), trainer.folder(0), folder.path()))
        .collect();
    let pool = ReplicaPool::new(LIMITS, &settings, None).unwrap();
    for server in &servers {
        pool.join(Server::vllm(&server.url).unwrap());
    }
    let first = trainer.publish(PolicyId::MAIN, PolicyVersion(1));
    run(load_everywhere(&pool, &first, &mut servers));
    greedy_tokens_are_those_of_transformers(&pool, &trainer);
    logprobs_are_those_of_the_full_softmax(&pool, &trainer);
    versions_change_where_the_weights_do(&pool, &trainer);
    run(pool.load(&trainer.publish(PolicyId::MAIN, PolicyVersion(3)), OnUpdate::Recompute)).unwrap();
    a_killed_server_loses_nothing(&pool, &trainer, &servers[0]);
    drop(pool);
    // The whole contract, on the server that is left, with short sequences.
    let limits = ModelLimits { context: 64, ..LIMITS };
    let pool = ReplicaPool::new(limits, &ServerSettings { replicas: 1, ..settings }, None).unwrap();
    pool.join(Server::vllm(&servers[1].url).unwrap());
    let suite = RolloutSuite::new(&pool, &trainer, TOLERANCE).with_patience(Duration::from_mins(4));
    assert_eq!(run(suite.run()), Ok(()));
}
