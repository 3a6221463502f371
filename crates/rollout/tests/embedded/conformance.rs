//! What every engine must do, in one suite that is run over each of them.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Purpose, RandomKey, StopReason};
use rloom_model::{Model, Weights};
use rloom_ops::Ctx;
use rloom_rollout::{
    Abort, EmbeddedEngine, GenerateRequest, Generation, InFlight, RolloutEngine, RolloutError,
    RolloutSettings, SamplingSettings, generate_all,
};

use crate::support::{mismatch, model, run, weights};

/// Runs the suite over an engine without weights. `first` and `second` must differ and know the tokens 1 to 9.
///
/// `tolerance` bounds |reported − trainer's| log-probability; engines that claim to be exact are held to 0.
pub(crate) async fn conformance<E: RolloutEngine>(
    engine: &E,
    first: &Weights,
    second: &Weights,
    tolerance: f32,
) {
    let capabilities = engine.capabilities();
    let ctx = Ctx::new(2).unwrap();
    let tolerance = if capabilities.exact_logprobs { 0.0 } else { tolerance };
    let patience = Duration::from_secs(20);

    // Requests wait for weights, and a dropped one is forgotten.
    let early = engine.generate(request(0, 0, 6));
    drop(engine.generate(request(0, 1, 6)));
    engine.load(first, InFlight::Finish).await.unwrap();
    let early = early.await.unwrap();
    assert_eq!(engine.health(patience).await.unwrap().version, Some(first.version));

    // Shape of the answer, and the same again from the same key.
    let requests: Vec<_> = (0..8).map(|sample| request(1, sample, 12)).collect();
    let generations = generate_all(engine, requests.clone()).await.unwrap();
    for generation in generations.iter().chain([&early]) {
        well_formed(generation, first);
        assert_eq!(generation.stop, StopReason::Length);
        assert_eq!(generation.temperature, 1.0);
    }
    assert!(generations.windows(2).any(|pair| pair[0].tokens != pair[1].tokens), "samples differ");
    if capabilities.batch_invariant {
        let again = engine.generate(requests[3].clone()).await.unwrap();
        assert_eq!(again, generations[3], "the same request alone");
    }
    let pairs: Vec<_> = requests.iter().cloned().zip(generations.clone()).collect();
    assert!(mismatch(&first.model, &ctx, &pairs) <= tolerance);

    // Log-probabilities are of the full softmax at the temperature, whatever is filtered; greedy reports 1.
    let mut warm = request(2, 0, 12);
    warm.sampling = SamplingSettings { temperature: 0.7, top_k: 3, top_p: 0.8, ..warm.sampling };
    let mut greedy = request(2, 1, 12);
    greedy.sampling.temperature = 0.0;
    for request in [warm, greedy] {
        let generation = engine.generate(request.clone()).await.unwrap();
        assert_eq!(generation.temperature, if request.sampling.is_greedy() { 1.0 } else { 0.7 });
        assert!(mismatch(&first.model, &ctx, &[(request, generation)]) <= tolerance);
    }

    // The stop token is the last one.
    let stop = generations[0].tokens[5];
    let at = generations[0].tokens.iter().position(|&t| t == stop).unwrap();
    let stopping = GenerateRequest { stop_tokens: Arc::from([stop]), ..requests[0].clone() };
    let stopped = engine.generate(stopping).await.unwrap();
    assert_eq!(stopped.stop, StopReason::StopToken);
    assert_eq!(stopped.tokens.last(), Some(&stop));
    if capabilities.batch_invariant {
        assert_eq!(stopped.tokens, generations[0].tokens[..=at]);
        // And a prefix goes on as if it had never been interrupted.
        let resumed = GenerateRequest { prefix: generations[0].tokens[..4].to_vec(), ..requests[0].clone() };
        assert_eq!(engine.generate(resumed).await.unwrap().tokens, generations[0].tokens[4..]);
    }

    // Refusals.
    let empty = GenerateRequest { prompt: Arc::from([]), ..request(3, 0, 4) };
    assert!(matches!(engine.generate(empty).await, Err(RolloutError::InvalidRequest { .. })));
    let long = request(3, 1, capabilities.context);
    assert!(matches!(engine.generate(long).await, Err(RolloutError::TooLong { .. })));

    // Aborted requests give what they have.
    let long: Vec<_> = (0..4).map(|s| engine.generate(request(4, s, capabilities.context - 3))).collect();
    engine.abort(Abort::All).await.unwrap();
    for future in long {
        let generation = future.await.unwrap();
        well_formed(&generation, first);
        assert!(matches!(generation.stop, StopReason::Aborted | StopReason::Length));
    }

    // Other weights, other tokens; and released ones are free.
    engine.load(second, InFlight::Finish).await.unwrap();
    let others = generate_all(engine, requests).await.unwrap();
    for generation in &others {
        well_formed(generation, second);
    }
    assert_ne!(others, generations);
    engine.release().await.unwrap();
    assert_eq!(engine.health(patience).await.unwrap().version, None);
    let impatient = GenerateRequest { deadline: Some(Duration::from_millis(20)), ..request(5, 0, 2) };
    assert!(matches!(engine.generate(impatient).await, Err(RolloutError::Deadline { .. })));
}

fn request(ticket: u64, sample: u32, max_new_tokens: usize) -> GenerateRequest {
    let key = RandomKey { sample, ..RandomKey::new(9, 0, Purpose::Rollout, ticket) };
    let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
    let prompt: Arc<[u32]> = Arc::from([1, 5, 9]);
    GenerateRequest { group: Some(ticket), ..GenerateRequest::new(key, prompt, sampling) }
}

/// As many log-probabilities as tokens, all of them possible, all of one version.
fn well_formed(generation: &Generation, weights: &Weights) {
    assert_eq!(generation.tokens.len(), generation.logprobs.len());
    assert!(generation.logprobs.iter().all(|&l| l.is_finite() && l <= 0.0));
    let spans: Vec<_> = generation.versions.iter().map(|s| (s.version, s.range.clone())).collect();
    if generation.tokens.is_empty() {
        assert_eq!(spans, []);
    } else {
        assert_eq!(spans, [(weights.version, 0..generation.tokens.len())]);
    }
}

#[test]
fn the_embedded_engine_conforms() {
    let (first, second): (Arc<Model>, Arc<Model>) = (model(1), model(2));
    for settings in [
        RolloutSettings::default(),
        RolloutSettings { lanes: 3, max_batch: 1, prefill_chunk: 2, ..RolloutSettings::default() },
    ] {
        let engine = EmbeddedEngine::new(first.config(), &Ctx::new(2).unwrap(), &settings, None).unwrap();
        run(conformance(&engine, &weights(3, &first), &weights(4, &second), 0.0));
    }
}
