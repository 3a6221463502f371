//! vLLM itself with adapters, compared with transformers and the adapters added to the base. Needs `RLOOM_TEST_VLLM`, as
//! `real_vllm`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{OnUpdate, PolicyId, PolicyVersion, StopReason};
use rloom_engine::conformance::{ReferenceTrainer, RolloutSuite};
use rloom_engine::{
    GenerateRequest, Generation, Probe, PublishedPolicy, PublishedWeights, RolloutEngine, SamplingSettings,
    ServerSettings, WeightFolder, generate_all,
};
use rloom_remote::{AdapterSlots, ModelLimits, ReplicaPool, Server, Slot};
use serde_json::json;

use crate::real_vllm::{LIMITS, Size, TOLERANCE, Transformers, Vllm, close, load_everywhere};
use crate::support::{request, run};

/// vLLM pads adapters of this rank.
const RANK: usize = 4;

/// Two adapters over one base.
struct Adapters {
    transformers: Transformers,
    folders: [PathBuf; 2],
}

impl Adapters {
    fn new(python: &str, folder: &std::path::Path) -> Self {
        let transformers = Transformers::start(python, folder, Size(2, 128));
        let folders = ["first", "second"].map(|name| folder.join(name));
        for (seed, folder) in folders.iter().enumerate() {
            let base = transformers.folder(0);
            let question =
                json!({ "op": "adapt", "base": base, "folder": folder, "seed": 70 + seed, "rank": RANK });
            transformers.ask(&question);
        }
        Self { transformers, folders }
    }

    /// Log-probability of each token but the first by the base with an adapter added.
    fn score(&self, version: u64, tokens: &[u32], temperature: f32) -> Vec<f32> {
        let mut merged = self.folders[version as usize % 2].clone().into_os_string();
        merged.push("-merged");
        self.transformers.score_folder(merged.as_ref(), tokens, temperature)
    }

    fn main(&self, version: u64) -> PublishedPolicy {
        self.publish(PolicyId::MAIN, PolicyVersion(version))
    }
}

impl ReferenceTrainer for Adapters {
    fn publish(&self, policy: PolicyId, version: PolicyVersion) -> PublishedPolicy {
        let tokens: Vec<u32> = (0..64).map(|at| at * 7 % 500).collect();
        let probe = Probe { logprobs: self.score(version.0, &tokens, 1.0), tokens };
        let folder = WeightFolder::kept(&self.folders[version.0 as usize % 2]);
        PublishedPolicy {
            policy,
            version,
            digest: version.0 % 2,
            weights: PublishedWeights::Adapter(Arc::new(folder)),
            probe: Some(Arc::new(probe)),
        }
    }

    fn logprobs(&self, version: PolicyVersion, request: &GenerateRequest, made: &Generation) -> Vec<f32> {
        let tokens = [&request.prompt[..], &request.prefix, &made.tokens].concat();
        let all = self.score(version.0, &tokens, request.sampling.reported_temperature());
        all[tokens.len() - made.tokens.len() - 1..].to_vec()
    }
}

/// Completions of two adapters in one batch, of which the older ones end under their own.
fn completions_in_flight_keep_their_adapter(pool: &ReplicaPool, adapters: &Adapters) {
    let [old, new]: [Vec<_>; 2] = [40, 50].map(|ticket| (0..4).map(|n| request(ticket, n, 150)).collect());
    let newer = adapters.main(2);
    let (made_old, made_new) = run(async {
        let running: Vec<_> = old.iter().map(|request| pool.generate(request.clone())).collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let start = std::time::Instant::now();
        pool.load(&newer, OnUpdate::Keep).await.unwrap();
        println!("an adapter was loaded in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
        let health = pool.health(Duration::from_mins(1)).await.unwrap();
        assert!(health.running > 0, "no completion met the update");
        let made_new = generate_all(pool, new.iter().cloned()).await.unwrap();
        let mut made_old = Vec::new();
        for future in running {
            made_old.push(future.await.unwrap());
        }
        (made_old, made_new)
    });
    for (version, requests, made) in [(1, &old, &made_old), (2, &new, &made_new)] {
        for (request, made) in requests.iter().zip(made) {
            assert_eq!((made.tokens.len(), made.stop), (150, StopReason::Length));
            assert!(made.versions.iter().all(|span| span.version == PolicyVersion(version)), "{made:?}");
            let expected = adapters.logprobs(PolicyVersion(version), request, made);
            close(&made.logprobs, &expected, &format!("version {version}"));
            let other = adapters.logprobs(PolicyVersion(version + 1), request, made);
            let worst = made.logprobs.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst > 0.1, "the adapters do not differ: {worst}");
        }
    }
}

#[test]
fn vllm_serves_adapters_that_requests_name() {
    let Ok(python) = std::env::var("RLOOM_TEST_VLLM") else {
        println!("skipped: set RLOOM_TEST_VLLM to the Python interpreter of an environment with vLLM");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let adapters = Adapters::new(&python, folder.path());
    let settings = ServerSettings {
        python: PathBuf::from(&python),
        max_requests: 16,
        replace_seconds: 3600.0,
        memory: Some(0.1),
        args: ["--dtype", "float32", "--enforce-eager"].map(str::to_owned).into(),
        ..ServerSettings::default()
    };
    let slots = AdapterSlots { rank: RANK, versions: 3 };
    let base = adapters.transformers.folder(0);
    let mut servers = [Vllm::of_adapters(&settings, &Slot::Cores(0, 0), base, folder.path(), slots)];
    let pool = ReplicaPool::of_adapters(LIMITS, &settings, None, RANK).unwrap();
    pool.join(Server::vllm(&servers[0].url).unwrap());
    run(load_everywhere(&pool, &adapters.main(1), &mut servers));
    let sampling =
        SamplingSettings { temperature: 0.7, top_k: 20, max_new_tokens: 40, ..SamplingSettings::default() };
    let requests: Vec<_> =
        (0..8).map(|n| GenerateRequest { sampling: sampling.clone(), ..request(n, 0, 40) }).collect();
    let made = run(generate_all(&pool, requests.iter().cloned())).unwrap();
    for (request, made) in requests.iter().zip(&made) {
        close(&made.logprobs, &adapters.logprobs(PolicyVersion(1), request, made), "one adapter");
    }
    // It was joined before it answered.
    let before = pool.failures();
    completions_in_flight_keep_their_adapter(&pool, &adapters);
    assert_eq!(pool.failures(), before);
    drop(pool);
    // The whole contract, with short sequences.
    let limits = ModelLimits { context: 64, ..LIMITS };
    let pool = ReplicaPool::of_adapters(limits, &settings, None, RANK).unwrap();
    pool.join(Server::vllm(&servers[0].url).unwrap());
    let suite = RolloutSuite::new(&pool, &adapters, TOLERANCE).with_patience(Duration::from_mins(4));
    assert_eq!(run(suite.run()), Ok(()));
}
