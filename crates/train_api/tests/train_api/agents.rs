//! Loops written with the real SDK: run by `.ci/agents`, which installs it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rloom_model::Dtype;
use rloom_train_api::{TrainApiSettings, TrainedWeights};

use crate::server::TestServer;

#[test]
#[ignore = "needs the packages of .ci/agents-tinker.txt: run by .ci/agents"]
fn agents_tinker() {
    let server = run(TrainedWeights::All, "loops.py");
    // The model of the client that was killed is freed.
    let began = Instant::now();
    while server.api.models() > 0 {
        assert!(began.elapsed() < Duration::from_mins(3), "the model of a dead client was not freed");
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = server.log.lock().unwrap();
    assert!(!log.iter().any(|line| line.contains(" 500 ")), "{log:#?}");
}

#[test]
#[ignore = "needs the packages of .ci/agents-tinker.txt: run by .ci/agents"]
fn agents_tinker_adapters() {
    let server = run(TrainedWeights::Adapters, "adapters.py");
    let log = server.log.lock().unwrap();
    assert!(!log.iter().any(|line| line.contains(" 500 ")), "{log:#?}");
}

/// Runs a program of the SDK against a server, which it returns.
fn run(weights: TrainedWeights, script: &str) -> TestServer {
    let python = std::env::var("RLOOM_TEST_TINKER")
        .unwrap_or_else(|_| panic!("RLOOM_TEST_TINKER names an interpreter"));
    // The SDK sends a sign of life every ten seconds.
    let session_timeout = Duration::from_secs(30);
    let settings = TrainApiSettings { session_timeout, max_models: 16, ..TrainApiSettings::default() };
    let server = TestServer::training(weights, Dtype::F32, settings);
    let base = tempfile::tempdir().unwrap();
    server.save_base(base.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let status = Command::new(python)
        .arg(script)
        .env("TINKER_BASE_URL", format!("http://{}", server.address))
        .env("TINKER_API_KEY", "tml-unused")
        .env("RLOOM_TEST_BASE", base.path())
        .env("RLOOM_TEST_CHECKPOINTS", server.checkpoints())
        .status()
        .unwrap();
    assert!(status.success(), "the client failed: {status}");
    server
}
