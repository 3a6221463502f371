//! Weight updates with completions in flight, and releases.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey, StopReason, VersionSpan};
use rloom_embedded::EmbeddedRolloutEngine;
use rloom_engine::{
    Abort, GenerateRequest, Generation, OnUpdate, RolloutEngine, RolloutSettings, SamplingSettings,
};
use rloom_model::Model;
use rloom_ops::Ctx;

use crate::rollout::support::{config_of, mismatch, rescore, run, weights};

/// Long enough for an update to meet running completions.
const LENGTH: usize = 1000;

fn model(seed: u64) -> Arc<Model> {
    Arc::new(Model::init(&config_of(1024), seed))
}

fn engine() -> EmbeddedRolloutEngine {
    EmbeddedRolloutEngine::new(&config_of(1024), &Ctx::new(2).unwrap(), &RolloutSettings::default(), None)
        .unwrap()
}

fn requests() -> Vec<GenerateRequest> {
    let sampling = SamplingSettings { max_new_tokens: LENGTH, ..SamplingSettings::default() };
    let prompt: Arc<[u32]> = Arc::from([4, 8, 15]);
    (0..6)
        .map(|sample| {
            let key = RandomKey { sample, ..RandomKey::new(2, 0, Purpose::Rollout, 1) };
            GenerateRequest {
                group: (sample < 3).then_some(1),
                ..GenerateRequest::new(key, Arc::clone(&prompt), sampling.clone())
            }
        })
        .collect()
}

/// Waits until the engine has sampled this number of tokens in total and no request waits.
async fn until_sampled(engine: &EmbeddedRolloutEngine, tokens: u64) {
    while engine.statistics().sampled_tokens < tokens
        || engine.health(Duration::from_mins(1)).await.unwrap().waiting > 0
    {}
}

/// Starts completions with version 1, loads version 2 while they run, and submits another request.
fn update_in_flight(on_update: OnUpdate) -> (Vec<(GenerateRequest, Generation)>, Generation) {
    let (old, new) = (model(1), model(2));
    let engine = engine();
    run(async {
        engine.load(&weights(1, &old), OnUpdate::Finish).await.unwrap();
        let requests = requests();
        let futures: Vec<_> = requests.iter().map(|r| engine.generate(r.clone())).collect();
        until_sampled(&engine, 24).await;
        let weights = weights(2, &new);
        let loaded = engine.load(&weights, on_update);
        let late = engine.generate(requests[0].clone());
        loaded.await.unwrap();
        assert_eq!(
            engine.health(Duration::from_mins(1)).await.unwrap().version(PolicyId::MAIN),
            Some(PolicyVersion(2))
        );
        assert_eq!(Arc::strong_count(&old), 1, "no handle on the old weights is left");
        let mut pairs = Vec::new();
        for (request, future) in requests.into_iter().zip(futures) {
            pairs.push((request, future.await.unwrap()));
        }
        (pairs, late.await.unwrap())
    })
}

/// Repeats that until the update meets a running completion.
fn interrupted(
    on_update: OnUpdate,
    is_interrupted: impl Fn(&Generation) -> bool,
) -> (Vec<(GenerateRequest, Generation)>, Generation) {
    for _ in 0..30 {
        let (pairs, late) = update_in_flight(on_update);
        if pairs.iter().any(|(_, generation)| is_interrupted(generation)) {
            return (pairs, late);
        }
    }
    panic!("all completions were over before thirty updates");
}

fn spans(generation: &Generation) -> Vec<(u64, usize)> {
    let mut at = 0;
    let spans = generation.versions.iter().map(|VersionSpan { version, range, .. }| {
        assert_eq!(range.start, at, "no gaps");
        at = range.end;
        (version.0, range.len())
    });
    let spans = spans.collect();
    assert_eq!(at, generation.tokens.len());
    spans
}

#[test]
fn finish_lets_completions_end_with_their_weights() {
    let (pairs, late) = update_in_flight(OnUpdate::Finish);
    let ctx = Ctx::new(2).unwrap();
    for (_, generation) in &pairs {
        assert_eq!(spans(generation), [(1, LENGTH)]);
    }
    assert_eq!(mismatch(&model(1), &ctx, &pairs), 0.0);
    assert_eq!(spans(&late), [(2, LENGTH)]);
    assert_eq!(mismatch(&model(2), &ctx, &[(pairs[0].0.clone(), late)]), 0.0);
}

#[test]
fn recompute_gives_the_new_weights_log_probabilities_from_then_on() {
    let (pairs, late) = interrupted(OnUpdate::Recompute, |g| g.versions.len() == 2);
    let ctx = Ctx::new(2).unwrap();
    let (old, new) = (rescore(&model(1), &ctx, &pairs), rescore(&model(2), &ctx, &pairs));
    for (i, (_, generation)) in pairs.iter().enumerate() {
        let spans = spans(generation);
        let cut = match spans[..] {
            [(1, before), (2, after)] => {
                assert_eq!(before + after, LENGTH);
                before
            }
            // It had finished before the update.
            [(1, LENGTH)] => LENGTH,
            _ => panic!("{spans:?}"),
        };
        assert_eq!(generation.logprobs[..cut], old[i][..cut]);
        assert_eq!(generation.logprobs[cut..], new[i][cut..]);
    }
    assert_eq!(spans(&late), [(2, LENGTH)]);
}

#[test]
fn keep_continues_with_the_old_keys_and_values() {
    let (pairs, late) = interrupted(OnUpdate::Keep, |g| g.versions.len() == 2);
    let ctx = Ctx::new(2).unwrap();
    let (old, new) = (rescore(&model(1), &ctx, &pairs), rescore(&model(2), &ctx, &pairs));
    for (i, (_, generation)) in pairs.iter().enumerate() {
        if let [(1, cut), (2, _)] = spans(generation)[..] {
            assert_eq!(generation.logprobs[..cut], old[i][..cut]);
            assert_ne!(generation.logprobs[cut..], new[i][cut..]);
        }
    }
    assert_eq!(
        mismatch(&model(2), &ctx, &[(pairs[0].0.clone(), late)]),
        0.0,
        "later requests use the new weights only"
    );
}

#[test]
fn abort_ends_completions_with_what_they_have() {
    let (pairs, late) = interrupted(OnUpdate::Abort, |g| g.stop == StopReason::Aborted);
    let ctx = Ctx::new(2).unwrap();
    assert!(pairs.iter().all(|(_, g)| g.stop == StopReason::Length || g.tokens.len() < LENGTH));
    assert_eq!(mismatch(&model(1), &ctx, &pairs), 0.0);
    assert_eq!(spans(&late), [(2, LENGTH)]);
}

#[test]
fn released_weights_can_be_written_in_place() {
    let mut model = model(1);
    let engine = engine();
    run(async {
        for version in 1..4 {
            engine.load(&weights(version, &model), OnUpdate::Finish).await.unwrap();
            assert!(Arc::get_mut(&mut model).is_none(), "the lanes hold a handle");
            let begun = engine.statistics().sampled_tokens;
            let running = engine.generate(requests().remove(0));
            until_sampled(&engine, begun + 4).await;
            engine.release().await.unwrap();
            assert!(Arc::get_mut(&mut model).is_some(), "there is no other handle");
            assert_eq!(
                spans(&running.await.unwrap()),
                [(version, LENGTH)],
                "release waits for running completions"
            );
        }
    });
}

#[test]
fn aborting_a_group_leaves_the_others() {
    let model = model(1);
    let engine = engine();
    run(async {
        // Waiting requests are answered as well as running ones.
        let waiting = engine.generate(requests().remove(0));
        engine.abort(Abort::Group(1)).await.unwrap();
        assert_eq!(waiting.await.unwrap().stop, StopReason::Aborted);
        engine.load(&weights(1, &model), OnUpdate::Finish).await.unwrap();
        for round in 0..30 {
            let futures: Vec<_> = requests().into_iter().map(|r| engine.generate(r)).collect();
            until_sampled(&engine, engine.statistics().sampled_tokens + 24).await;
            engine.abort(Abort::Group(1)).await.unwrap();
            let mut stops = Vec::new();
            for future in futures {
                stops.push(future.await.unwrap().stop);
            }
            assert_eq!(stops[3..], [StopReason::Length; 3]);
            if stops[..3] == [StopReason::Aborted; 3] {
                return;
            }
            assert!(round < 29, "thirty times the completions were over before they could be aborted");
        }
    });
}
