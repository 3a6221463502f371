//! Options of requests, and requests that the engine refuses.

use std::sync::Arc;
use std::time::Duration;

use miette::Diagnostic;
use rloom_core::{PolicyId, Purpose, RandomKey, StopReason};
use rloom_embedded::EmbeddedRolloutEngine;
use rloom_engine::{
    GenerateRequest, Generation, OnUpdate, RolloutEngine, RolloutError, RolloutSettings, SampledToken,
    SamplingSettings, Speculation, TokenSink, generate_all,
};
use rloom_model::Model;
use rloom_ops::Ctx;
use rloom_text::{CharacterSettings, Tokenizer};

use crate::rollout::exactness::truncated;
use crate::rollout::support::{complete, config, engine, model, run, weights};

fn request(prompt: &[u32], max_new_tokens: usize) -> GenerateRequest {
    let key = RandomKey::new(3, 0, Purpose::Rollout, 8);
    GenerateRequest::new(key, prompt, SamplingSettings { max_new_tokens, ..SamplingSettings::default() })
}

/// Error of an invalid request; refusing needs no weights.
/// Message and hint of the error: `message [hint]`.
fn refusal(settings: &RolloutSettings, request: GenerateRequest) -> String {
    let engine = engine(settings, 1);
    let error = run(engine.generate(request)).unwrap_err();
    let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
    format!("{error}{hint}")
}

#[test]
fn invalid_requests_are_refused_at_once() {
    let default = RolloutSettings::default();
    let mut stopping = request(&[1], 4);
    stopping.sampling.stop = vec!["x".into()];
    let cases = [
        (request(&[], 4), "rollout request 8/0: the prompt is empty"),
        (request(&[1, 67], 4), "token 67 is outside of the model's vocabulary of 67"),
        (GenerateRequest { prefix: vec![1; 5], ..request(&[1], 4) }, "a prefix of 5 tokens exceeds"),
        (request(&[1], 0), "`max_new_tokens`: must be at least 1, but is 0"),
        (stopping, "stop strings need a tokenizer"),
    ];
    for (request, expected) in cases {
        let message = refusal(&default, request);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn requests_beyond_context_or_memory_are_refused_with_sizes() {
    let default = RolloutSettings::default();
    assert_eq!(
        refusal(&default, request(&[1; 100], 61)),
        "rollout request 8/0: a prompt of 100 tokens and up to 61 new ones exceed the context of 160 tokens \
         [lower max_new_tokens, or leave out prompts this long]"
    );
    // 1 MiB over 40 lanes are 4 blocks of 6 KiB each.
    let tiny = RolloutSettings { lanes: 40, kv_memory_mib: 1, ..RolloutSettings::default() };
    assert_eq!(
        refusal(&tiny, request(&[1; 30], 36)),
        "rollout request 8/0: up to 66 tokens need 5 key-value blocks of 16 tokens, but a lane has only 4 \
         [raise kv_memory_mib, lower max_new_tokens, or set lanes = 1]"
    );
    // The last token is sampled and never computed: 65 tokens need 4 blocks.
    let (generations, _) = complete(&model(1), &tiny, 1, &[request(&[1; 30], 35)]);
    assert_eq!(generations[0].tokens.len(), 35);

    let none = RolloutSettings { lanes: 200, kv_memory_mib: 1, ..RolloutSettings::default() };
    let error = EmbeddedRolloutEngine::new(&config(), &Ctx::serial(), &none, None).unwrap_err();
    assert!(error.to_string().contains("200 lane(s) need at least 2 MiB"), "{error}");
}

#[test]
fn weights_of_another_shape_are_refused() {
    let engine = engine(&RolloutSettings::default(), 1);
    let other = Arc::new(Model::load(&crate::rollout::support::fixture("tiny-llama")).unwrap());
    let error = run(engine.load(&weights(4, &other), OnUpdate::Finish)).unwrap_err();
    assert!(matches!(error, RolloutError::OtherModel { .. }), "{error}");
}

#[test]
fn stop_tokens_are_kept_and_wait_for_the_minimum_length() {
    let model = model(1);
    let (free, _) = complete(&model, &RolloutSettings::default(), 2, &[request(&[5, 6], 60)]);
    let tokens = &free[0].tokens;
    let stop = tokens[20];
    let at = tokens.iter().position(|&t| t == stop).unwrap();
    let stopping = GenerateRequest { stop_tokens: Arc::from([stop]), ..request(&[5, 6], 60) };
    let mut later = stopping.clone();
    later.sampling.min_new_tokens = at + 1;
    let (generations, _) = complete(&model, &RolloutSettings::default(), 2, &[stopping, later]);
    assert_eq!(generations[0].tokens, tokens[..=at]);
    assert_eq!(generations[0].logprobs, free[0].logprobs[..=at]);
    assert_eq!(generations[0].stop, StopReason::StopToken);
    assert!(!generations[1].tokens[..=at].contains(&stop), "it cannot be drawn so soon");
    assert!(generations[1].tokens.len() > at + 1);
}

/// Limits count the tokens of the prefix: a completion in three parts equals the whole one.
#[test]
fn token_limits_span_the_parts_of_a_completion() {
    let model = model(1);
    let (free, _) = complete(&model, &RolloutSettings::default(), 2, &[request(&[5, 6], 60)]);
    let stop = free[0].tokens[8];
    for temperature in [1.0, 0.7, 0.0] {
        let mut request = GenerateRequest { stop_tokens: Arc::from([stop]), ..request(&[5, 6], 40) };
        request.sampling = SamplingSettings { temperature, min_new_tokens: 25, ..request.sampling };
        let (whole, _) = complete(&model, &RolloutSettings::default(), 2, &[request.clone()]);
        let whole = &whole[0];
        assert!(whole.tokens.len() >= 25);
        for cuts in [[3, 20], [10, 25], [0, 24], [24, whole.tokens.len()]] {
            let prefix =
                |cut: usize| GenerateRequest { prefix: whole.tokens[..cut].to_vec(), ..request.clone() };
            let parts = [prefix(cuts[0]), prefix(cuts[1])];
            let (mut parts, _) = complete(&model, &RolloutSettings::default(), 2, &parts);
            let last = parts.remove(1);
            let middle = truncated(&parts.remove(0), cuts[1] - cuts[0]);
            assert_eq!(&truncated(whole, cuts[0]).then(middle).then(last), whole, "{cuts:?}");
        }
    }
}

/// A sink receives what the completion consists of, without the prefix, also with speculation.
#[test]
fn sinks_receive_the_sampled_tokens() {
    let model = model(1);
    for speculation in [Speculation::Off, Speculation::Ngram] {
        let settings = RolloutSettings { speculation, ..RolloutSettings::default() };
        for prefix in [vec![], vec![4, 4, 4]] {
            let (sink, mut tokens) = TokenSink::channel();
            let streamed = GenerateRequest { sink: Some(sink), prefix, ..request(&[5, 6], 40) };
            let silent = GenerateRequest { sink: None, ..streamed.clone() };
            let (generations, _) = complete(&model, &settings, 2, &[streamed, silent]);
            assert_eq!(generations[0], generations[1]);
            let received: Vec<SampledToken> = std::iter::from_fn(|| tokens.try_recv().ok()).collect();
            let sampled = generations[0].tokens.iter().zip(&generations[0].logprobs);
            let sampled: Vec<_> = sampled.map(|(&token, &logprob)| SampledToken { token, logprob }).collect();
            assert_eq!(received, sampled);
        }
    }
}

fn lettered() -> (Tokenizer, Arc<Model>) {
    let alphabet: String = ('!'..='~').take(65).collect();
    let tokenizer = Tokenizer::characters(&CharacterSettings::new(alphabet)).unwrap();
    assert_eq!(tokenizer.vocab_size(), 67);
    (tokenizer, model(1))
}

fn generate_with(
    tokenizer: &Tokenizer,
    model: &Arc<Model>,
    requests: Vec<GenerateRequest>,
) -> Vec<Generation> {
    let settings = RolloutSettings::default();
    let engine =
        EmbeddedRolloutEngine::new(model.config(), &Ctx::new(2).unwrap(), &settings, Some(tokenizer.clone()))
            .unwrap();
    assert!(engine.capabilities().stop_strings);
    run(async {
        engine.load(&weights(1, model), OnUpdate::Finish).await?;
        generate_all(&engine, requests).await
    })
    .unwrap()
}

#[test]
fn stop_strings_span_tokens_and_prefixes() {
    let (tokenizer, model) = lettered();
    let free = generate_with(&tokenizer, &model, vec![request(&[5, 6], 60)]).remove(0);
    let text = |tokens: &[u32]| tokenizer.decode(tokens, false).unwrap();
    let stop = text(&free.tokens[17..20]);
    let end = (1..=60).find(|&n| text(&free.tokens[..n]).contains(&stop)).unwrap();
    let stopping = |prefix: &[u32]| {
        let mut request = GenerateRequest { prefix: prefix.to_vec(), ..request(&[5, 6], 60) };
        request.sampling.stop = vec!["no such text".into(), stop.clone()];
        request
    };
    let requests = vec![
        stopping(&[]),
        // The match starts in the prefix.
        stopping(&free.tokens[..end - 2]),
        // The prefix contains the match.
        stopping(&free.tokens[..end]),
    ];
    let generations = generate_with(&tokenizer, &model, requests);
    assert_eq!(generations[0].tokens, free.tokens[..end], "whole tokens up to the one that completed it");
    assert!(generations.iter().all(|g| g.stop == StopReason::StopString));
    assert!(generations[2].tokens.is_empty());
    let whole = &generations[0];
    assert_eq!(&truncated(whole, end - 2).then(generations[1].clone()), whole);
    assert_eq!(&truncated(whole, end).then(generations[2].clone()), whole);
}

#[test]
fn an_engine_may_have_its_own_threads() {
    for (threads, expected) in [(0, 2), (1, 1), (5, 5)] {
        let engine = engine(&RolloutSettings { threads, ..RolloutSettings::default() }, 2);
        assert_eq!(engine.workers().len(), expected, "a small model has a lane per thread");
    }
    let settings = RolloutSettings { threads: 5000, ..RolloutSettings::default() };
    let error = EmbeddedRolloutEngine::new(&config(), &Ctx::serial(), &settings, None).unwrap_err();
    assert!(error.to_string().starts_with("`threads`: must be at most 1024"), "{error}");
}

#[test]
fn requests_wait_for_weights() {
    let engine = engine(&RolloutSettings::default(), 2);
    let model = model(1);
    run(async {
        let early = engine.generate(request(&[1, 2], 5));
        let health = engine.health(Duration::from_mins(1)).await.unwrap();
        assert_eq!((health.version(PolicyId::MAIN), health.running, health.waiting), (None, 0, 1));
        engine.load(&weights(1, &model), OnUpdate::Finish).await.unwrap();
        assert_eq!(early.await.unwrap().tokens.len(), 5);
    });
}
