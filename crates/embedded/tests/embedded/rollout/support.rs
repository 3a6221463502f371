//! Small models, engines and requests.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey};
use rloom_embedded::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::{
    GenerateRequest, Generation, OnUpdate, PublishedPolicy, RolloutEngine, RolloutError, RolloutSettings,
    SamplingSettings, generate_all, inverse_temperature,
};
use rloom_model::{Family, Model, ModelConfig, NewModel, PackedTokens, ScoreRows};
use rloom_ops::Ctx;

/// The tiny checkpoints of the model's tests.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

/// Configuration of a model with odd sizes and peaked distributions.
pub(crate) fn config() -> ModelConfig {
    config_of(160)
}

/// The same with another context length.
pub(crate) fn config_of(max_positions: usize) -> ModelConfig {
    let new = NewModel {
        family: Family::Qwen3,
        layers: 2,
        hidden_size: 40,
        heads: 4,
        kv_heads: Some(2),
        head_dim: Some(12),
        intermediate_size: 72,
        max_positions,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.25,
    };
    new.config(67).unwrap()
}

pub(crate) fn model(seed: u64) -> Arc<Model> {
    Arc::new(Model::init(&config(), seed))
}

pub(crate) fn weights(version: u64, model: &Arc<Model>) -> PublishedPolicy {
    publish_model(PolicyId::MAIN, PolicyVersion(version), model)
}

/// Runs the future on a small runtime with a timeout.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_mins(10), future).await.expect("timed out") })
}

pub(crate) fn engine(settings: &RolloutSettings, threads: usize) -> EmbeddedRolloutEngine {
    EmbeddedRolloutEngine::new(&config(), &Ctx::new(threads).unwrap(), settings, None).unwrap()
}

/// Completes all requests on a new engine with this model.
pub(crate) fn complete(
    model: &Arc<Model>,
    settings: &RolloutSettings,
    threads: usize,
    requests: &[GenerateRequest],
) -> (Vec<Generation>, EmbeddedRolloutEngine) {
    let engine =
        EmbeddedRolloutEngine::new(model.config(), &Ctx::new(threads).unwrap(), settings, None).unwrap();
    let generations = run(async {
        engine.load(&weights(1, model), OnUpdate::Finish).await?;
        let generations = generate_all(&engine, requests.to_vec()).await?;
        // Lanes update their statistics between steps.
        engine.release().await?;
        Ok::<_, RolloutError>(generations)
    });
    (generations.unwrap(), engine)
}

/// Requests as in training and evaluation: groups, single requests, temperatures, greedy decoding, filters.
pub(crate) fn mixed_requests(vocabulary: u32) -> Vec<GenerateRequest> {
    let mut requests = Vec::new();
    for ticket in 0..9u64 {
        let length = [1, 7, 16, 17, 31, 32, 48, 5, 60][ticket as usize];
        let prompt: Arc<[u32]> = (0..length).map(|i| (i * 13 + ticket as u32 * 7) % vocabulary).collect();
        let sampling = match ticket % 5 {
            0 => SamplingSettings::default(),
            1 => SamplingSettings { temperature: 0.6, ..SamplingSettings::default() },
            2 => SamplingSettings { temperature: 1.3, top_p: 0.9, ..SamplingSettings::default() },
            3 => SamplingSettings { top_k: 20, min_p: 0.02, ..SamplingSettings::default() },
            _ => SamplingSettings::greedy(40),
        };
        for sample in 0..if ticket % 3 == 0 { 4 } else { 1 } {
            let key = RandomKey { sample, ..RandomKey::new(11, 1, Purpose::Rollout, ticket) };
            let max_new_tokens = 20 + ((ticket as usize * 17 + sample as usize * 29) % 50);
            let sampling = SamplingSettings { max_new_tokens, ..sampling.clone() };
            requests.push(GenerateRequest {
                stop_tokens: Arc::from([3]),
                group: (ticket % 3 == 0).then_some(ticket),
                ..GenerateRequest::new(key, Arc::clone(&prompt), sampling)
            });
        }
    }
    requests
}

/// Log-probabilities of the completions by a packed forward pass over the token ids, as in training.
pub(crate) fn rescore(model: &Model, ctx: &Ctx, pairs: &[(GenerateRequest, Generation)]) -> Vec<Vec<f32>> {
    let (mut tokens, mut starts, mut rows, mut inverse) = (Vec::new(), vec![0], Vec::new(), Vec::new());
    for (request, generation) in pairs {
        tokens.extend_from_slice(&request.prompt);
        tokens.extend_from_slice(&request.prefix);
        rows.extend((tokens.len()..tokens.len() + generation.tokens.len()).map(|row| row as u32));
        tokens.extend_from_slice(&generation.tokens);
        starts.push(tokens.len());
        let scale = inverse_temperature(generation.temperature);
        inverse.extend(generation.tokens.iter().map(|_| scale));
    }
    let packed = PackedTokens { tokens: &tokens, seq_starts: &starts, parents: &[] };
    let scores = model.score(ctx, &packed, &ScoreRows { rows: &rows, inv_temperature: &inverse }).unwrap();
    let mut logprobs = scores.logprob.into_iter();
    pairs.iter().map(|(_, generation)| logprobs.by_ref().take(generation.tokens.len()).collect()).collect()
}

/// Largest |sampling − training| difference of a log-probability.
pub(crate) fn mismatch(model: &Model, ctx: &Ctx, pairs: &[(GenerateRequest, Generation)]) -> f32 {
    let rescored = rescore(model, ctx, pairs);
    let differences = pairs.iter().zip(&rescored).flat_map(|((_, generation), rescored)| {
        generation.logprobs.iter().zip(rescored).map(|(sampled, trained)| (sampled - trained).abs())
    });
    differences.fold(0.0, f32::max)
}
