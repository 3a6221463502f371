//! vLLM servers and PyTorch ranks that take turns. Needs `RLOOM_TEST_VLLM` and `RLOOM_TEST_PYTHON`, the interpreters of the two.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_core::PolicyVersion;
use rloom_engine::{
    Form, Probe, PublishedPolicy, PublishedWeights, RolloutEngine, ServerSettings, TrainEngine, generate_all,
};
use rloom_remote::{Gang, GangSettings, ReplicaPool, Server, Slot};

use crate::gang::{support, train};
use crate::real_vllm::{LIMITS, Size, Transformers, Vllm, close, load_everywhere};
use crate::support::{request, run};

/// Stand-in of vLLM's sleep on processors.
const SLEEP: &str = include_str!("../real/sleeping_vllm.py");

/// Two ranks, and scores of what they publish by transformers.
struct Trainer {
    gang: Gang,
    transformers: Transformers,
    events: PathBuf,
}

impl Trainer {
    fn note(&self, event: &str) {
        let mut all = self.events();
        all.push(event.to_owned());
        std::fs::write(&self.events, all.join("\n") + "\n").unwrap();
    }

    fn events(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.events).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Publishes a version as a folder, and leaves the devices.
    fn publish(&mut self, version: u64) -> PublishedPolicy {
        let published = self.gang.publish(PolicyVersion(version), Form::Folder).unwrap();
        let tokens: Vec<u32> = (0..64).map(|at| at * 7 % 500).collect();
        let probe = Probe { logprobs: self.score(&published, &tokens), tokens };
        self.gang.park().unwrap();
        self.note("park");
        PublishedPolicy { probe: Some(Arc::new(probe)), ..published }
    }

    fn score(&self, published: &PublishedPolicy, tokens: &[u32]) -> Vec<f32> {
        let PublishedWeights::Folder(folder) = &published.weights else { panic!("{published:?}") };
        self.transformers.score_folder(folder.path(), tokens, 1.0)
    }
}

/// Log-probabilities of completions are those of the published weights.
fn complete(pool: &ReplicaPool, trainer: &Trainer, published: &PublishedPolicy) {
    let requests: Vec<_> = (0..8).map(|sample| request(published.version.0, sample, 24)).collect();
    let made = run(generate_all(pool, requests.iter().cloned())).unwrap();
    for (request, made) in requests.iter().zip(&made) {
        assert!(made.versions.iter().all(|span| span.version == published.version), "{:?}", made.versions);
        let tokens = [&request.prompt[..], &made.tokens].concat();
        let all = trainer.score(published, &tokens);
        close(&made.logprobs, &all[tokens.len() - made.tokens.len() - 1..], "after waking up");
    }
}

fn sleeping_servers(python: &str, model: &Path, folder: &Path, settings: &ServerSettings) -> Vec<Vllm> {
    let modules = folder.join("modules");
    std::fs::create_dir_all(&modules).unwrap();
    std::fs::write(modules.join("sleeping_vllm.py"), SLEEP).unwrap();
    let settings = ServerSettings { python: PathBuf::from(python), ..settings.clone() };
    let events = [("RLOOM_TEST_EVENTS", folder.join("events").into_os_string())];
    (0..2).map(|core| Vllm::start_with(&settings, &Slot::Cores(core, core), model, folder, &events)).collect()
}

/// Weights of servers that sleep are lost, and come back only from what the ranks publish.
#[test]
fn vllm_servers_and_ranks_take_turns() {
    let Ok(python) = std::env::var("RLOOM_TEST_VLLM") else {
        println!("skipped: set RLOOM_TEST_VLLM to the Python interpreter of an environment with vLLM");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let transformers = Transformers::start(&python, folder.path(), Size(2, 128));
    let model = transformers.folder(0).to_owned();
    let options = ["--dtype=float32", "--enforce-eager", "--no-enable-sleep-mode"];
    let settings = ServerSettings {
        replicas: 2,
        max_requests: 16,
        replace_seconds: 3600.0,
        memory: Some(0.12),
        sleep: true,
        args: [&options[..], &["--worker-extension-cls=sleeping_vllm.Extension"]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect(),
        ..ServerSettings::default()
    };
    let mut servers = sleeping_servers(&python, &model, folder.path(), &settings);
    let gang = support::start(GangSettings {
        ranks: 2,
        optimizer: support::optimizer(),
        device: rloom_remote::RankDevice::Cpu,
        threads: 1,
        ..GangSettings::new(model, folder.path().join("published"))
    });
    let mut trainer = Trainer { gang, transformers, events: folder.path().join("events") };
    let pool = ReplicaPool::new(LIMITS, &settings, None).unwrap();
    for server in &servers {
        pool.join(Server::vllm(&server.url).unwrap());
    }
    let first = trainer.publish(1);
    run(load_everywhere(&pool, &first, &mut servers));
    complete(&pool, &trainer, &first);
    let mut before = trainer.events().len();
    // Connections that were refused while the servers started.
    let of_start = pool.failures();
    for version in [2, 3] {
        run(pool.release()).unwrap();
        trainer.note("train");
        train(&mut trainer.gang, version..version + 1);
        let published = trainer.publish(version);
        run(load_everywhere(&pool, &published, &mut servers));
        complete(&pool, &trainer, &published);
        let events = trainer.events();
        let of_turn: Vec<&str> = events[before..].iter().map(String::as_str).collect();
        assert_eq!(of_turn[..4], ["sleep 2", "sleep 2", "train", "park"], "{of_turn:?}");
        let mut woken = of_turn[4..].to_vec();
        woken.sort_unstable();
        assert_eq!(woken, ["wake kv_cache", "wake kv_cache", "wake weights", "wake weights"], "{of_turn:?}");
        before = events.len();
    }
    assert_eq!(pool.failures(), of_start);
}
