//! Measurements with vLLM itself, printed:
//!
//!     RLOOM_TEST_VLLM=… cargo test --release --test remote vllm_measures -- --ignored --nocapture --test-threads=1

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rloom_core::{OnUpdate, PolicyId, PolicyVersion};
use rloom_engine::conformance::ReferenceTrainer;
use rloom_engine::{GenerateRequest, RolloutEngine, SamplingSettings, ServerSettings, generate_all};
use rloom_remote::{ModelLimits, ReplicaPool, Server, Slot};

use crate::real_vllm::{Size, Transformers, Vllm, load_everywhere};
use crate::support::{request, run};

const LIMITS: ModelLimits = ModelLimits { context: 256, vocabulary: 512 };
/// 3.1 million parameters: 12 MB in f32.
const SIZE: Size = Size(4, 256);
const CONCURRENT: usize = 64;
const REQUESTS: u32 = 512;
const PROMPT: usize = 32;
const NEW: usize = 64;

fn python() -> String {
    std::env::var("RLOOM_TEST_VLLM")
        .expect("set RLOOM_TEST_VLLM to the Python interpreter of vLLM's environment")
}

fn settings(replicas: usize, max_requests: usize) -> ServerSettings {
    ServerSettings {
        python: PathBuf::from(python()),
        replicas,
        max_requests,
        memory: Some(0.12),
        args: ["--dtype", "float32", "--enforce-eager"].map(str::to_owned).into(),
        ..ServerSettings::default()
    }
}

/// A pool over servers on these cores, with the first version loaded.
fn start(
    trainer: &Transformers,
    folder: &Path,
    cores: &[Slot],
    max_requests: usize,
) -> (ReplicaPool, Vec<Vllm>) {
    let settings = settings(cores.len(), max_requests);
    let mut servers: Vec<_> =
        cores.iter().map(|slot| Vllm::start(&settings, slot, trainer.folder(0), folder)).collect();
    let pool = ReplicaPool::new(LIMITS, &settings, None).unwrap();
    for server in &servers {
        pool.join(Server::vllm(&server.url).unwrap());
    }
    run(load_everywhere(&pool, &trainer.publish(PolicyId::MAIN, PolicyVersion(1)), &mut servers));
    (pool, servers)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn an_update_in_flight_of_two_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Transformers::start(&python(), folder.path(), SIZE);
    let (pool, _servers) = start(&trainer, folder.path(), &[Slot::Cores(0, 0), Slot::Cores(1, 1)], 16);
    let mut seconds = Vec::new();
    for version in 2..12 {
        let policy = trainer.publish(PolicyId::MAIN, PolicyVersion(version));
        seconds.push(run(async {
            let futures: Vec<_> = (0..16)
                .map(|sample| pool.generate(request(version * 8 + u64::from(sample / 8), sample, 200)))
                .collect();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let start = Instant::now();
            pool.load(&policy, OnUpdate::Keep).await.unwrap();
            let seconds = start.elapsed().as_secs_f64();
            let mut mixed = 0;
            for future in futures {
                mixed += usize::from(future.await.unwrap().versions.len() == 2);
            }
            println!("update in flight: {:.0} ms, {mixed} completions with both versions", seconds * 1e3);
            seconds
        }));
    }
    println!("median {:.0} ms", median(seconds) * 1e3);
}

/// Generated tokens per second through the pool, with as many requests under way as it admits.
fn through_the_pool(pool: &ReplicaPool, round: u32) -> f64 {
    let requests = (0..REQUESTS).map(|n| {
        let group = u64::from(round * REQUESTS + n);
        let prompt: Vec<u32> =
            (0..PROMPT as u64).map(|at| ((group + 1) * (2 * at + 7919) % 500) as u32).collect();
        let sampling = SamplingSettings { max_new_tokens: NEW, ..SamplingSettings::default() };
        GenerateRequest { prompt: prompt.into(), sampling, ..request(group, 0, NEW) }
    });
    let start = Instant::now();
    let made = run(generate_all(pool, requests)).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    assert!(made.iter().all(|made| made.tokens.len() == NEW && made.logprobs.len() == NEW));
    f64::from(REQUESTS) * NEW as f64 / seconds
}

/// Generated tokens per second that vLLM's own benchmark client reports for the same lengths.
fn through_the_bench_client(server: &Vllm, model: &Path, folder: &Path, round: u32) -> f64 {
    let file = format!("bench-{round}.json");
    let numbers = [
        ("--random-input-len", PROMPT),
        ("--random-output-len", NEW),
        ("--num-prompts", REQUESTS as usize),
        ("--max-concurrency", CONCURRENT),
        ("--seed", round as usize),
    ];
    let status = Command::new(python())
        .args([
            "-m",
            "vllm.entrypoints.cli.main",
            "bench",
            "serve",
            "--backend",
            "vllm",
            "--dataset-name",
            "random",
        ])
        .args(["--base-url", &server.url, "--ignore-eos", "--disable-tqdm", "--save-result"])
        .args(["--result-filename", &file, "--result-dir"])
        .arg(folder)
        .arg("--model")
        .arg(model)
        .args(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join(file)).unwrap()).unwrap();
    assert_eq!(report["total_output_tokens"], NEW as u64 * u64::from(REQUESTS), "{report}");
    report["output_throughput"].as_f64().unwrap()
}

#[test]
#[ignore = "a measurement"]
fn the_pool_against_the_bench_client_of_vllm() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Transformers::start(&python(), folder.path(), SIZE);
    let (pool, servers) = start(&trainer, folder.path(), &[Slot::Cores(0, 1)], CONCURRENT);
    let mut ratios = Vec::new();
    for round in 0..5 {
        let bench = || through_the_bench_client(&servers[0], trainer.folder(0), folder.path(), round);
        let (own, theirs) = if round % 2 == 0 {
            let own = through_the_pool(&pool, round);
            (own, bench())
        } else {
            let theirs = bench();
            (through_the_pool(&pool, round), theirs)
        };
        println!("pool {own:.0} tokens/s, bench client {theirs:.0}: {:.2}", own / theirs);
        ratios.push(own / theirs);
    }
    println!("median {:.2}", median(ratios));
}
