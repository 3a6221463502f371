//! Small models, gangs over them, and trajectories.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Author, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory};
use rloom_model::{GenerationConfig, Model, NewModel, OptimizerSettings};
use rloom_remote::{Gang, GangSettings, RankBackend, RankDevice};

use super::local_ranks::LocalRanks;

pub(crate) const VOCABULARY: u32 = 64;

/// A model with biases, grouped queries and tied embeddings.
pub(crate) fn model() -> Arc<Model> {
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "family": "qwen2", "layers": 3, "hidden_size": 32, "heads": 4, "kv_heads": 2, "head_dim": 8,
        "intermediate_size": 48, "max_positions": 64, "tie_embeddings": true,
    }))
    .unwrap();
    let mut config = new.config(VOCABULARY as usize).unwrap();
    // Large weights: with small ones all gradients but the head's are close to zero.
    config.initializer_range = 0.2;
    Arc::new(Model::init(&config, 3))
}

/// Writes the model's folder.
pub(crate) fn folder(parent: &Path) -> PathBuf {
    let folder = parent.join("model");
    std::fs::create_dir_all(&folder).unwrap();
    model().save(&folder, &GenerationConfig::default()).unwrap();
    folder
}

pub(crate) fn optimizer() -> OptimizerSettings {
    OptimizerSettings { weight_decay: 0.1, ..OptimizerSettings::default() }
}

/// Library that divides the models of all tests, that of `RLOOM_TEST_BACKEND` or PyTorch, and ranks that divide matrices.
fn backend(ranks: usize) -> (RankBackend, usize) {
    match std::env::var("RLOOM_TEST_BACKEND").as_deref() {
        Ok("deepspeed") => (RankBackend::Deepspeed, 1),
        Ok("deepspeed-matrices") => (RankBackend::Deepspeed, if ranks.is_multiple_of(2) { 2 } else { 1 }),
        Ok(other) => {
            panic!("RLOOM_TEST_BACKEND is `deepspeed`, `deepspeed-matrices` or not set, not {other}")
        }
        Err(_) => (RankBackend::Torch, 1),
    }
}

/// Settings of a gang over the model, whose files go to `parent`.
pub(crate) fn settings(parent: &Path, ranks: usize) -> GangSettings {
    let (backend, tensor_parallel) = backend(ranks);
    GangSettings {
        ranks,
        backend,
        tensor_parallel,
        optimizer: optimizer(),
        device: RankDevice::Cpu,
        threads: 1,
        ..GangSettings::new(folder(parent), parent.join("published"))
    }
}

pub(crate) fn launcher() -> LocalRanks {
    let python = std::env::var_os("RLOOM_TEST_PYTHON");
    let python = python.expect("RLOOM_TEST_PYTHON names an interpreter with torch, transformers and rloom");
    let environment = [("OMP_NUM_THREADS", "1"), ("PYTHONUNBUFFERED", "1")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    LocalRanks { python: python.into(), environment }
}

pub(crate) fn start(settings: GangSettings) -> Gang {
    let minutes = Duration::from_mins(5);
    let settings = GangSettings { start_deadline: minutes, ..settings };
    Gang::start(settings, &launcher(), 1).unwrap_or_else(|error| panic!("{error}"))
}

/// Groups of three samples; the last group has one.
pub(crate) fn trajectories(step: u64) -> Vec<Trajectory> {
    let mut all = Vec::new();
    for ticket in 4 * step..4 * step + 4 {
        let of_prompt = RandomKey::new(9, 0, Purpose::Generator, ticket).stream();
        let prompt = 2 + of_prompt.below(500, 6) as usize;
        let samples = if ticket % 4 == 3 { 1 } else { 3 };
        for sample in 0..samples {
            let stream = RandomKey::new(10, sample, Purpose::Generator, ticket).stream();
            let n = prompt + 1 + stream.below(501, 12) as usize;
            let token = |i: usize| {
                let stream = if i < prompt { &of_prompt } else { &stream };
                stream.below(i as u64, VOCABULARY.into()) as u32
            };
            all.push(Trajectory {
                key: SampleKey { ticket: Ticket(ticket), sample, segment: 0 },
                agent: None,
                tokens: (0..n).map(token).collect(),
                spans: vec![
                    Span::new(Author::Prompt, 0..prompt),
                    Span::new(Author::Policy, prompt..n).with_temperature(0.8),
                ],
                logprobs: (prompt..n).map(|i| -4.0 - 0.4 * stream.uniform(1000 + i as u64) as f32).collect(),
                versions: vec![],
                stop: StopReason::Length,
                attachments: Vec::new(),
            });
        }
    }
    all
}
