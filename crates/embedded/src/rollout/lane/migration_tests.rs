//! Migration of sequences from a busy lane to an idle one, which does not affect results.

use std::ops::Range;
use std::sync::Arc;

use rloom_core::{Purpose, RandomKey};
use rloom_model::Model;
use rloom_ops::Ctx;

use super::harness::{Answer, Harness, config, label};
use crate::rollout::batch::Limits;
use crate::rollout::decoder::ModelDecoder;
use crate::rollout::weights::LoadedWeights;
use rloom_engine::{Abort, GenerateRequest, Generation, OnUpdate, SamplingSettings, Speculation};

const LONG: usize = 100;

fn harness(lanes: usize) -> Harness<ModelDecoder> {
    let config = config(23, 128);
    let decoders = (0..lanes).map(|_| ModelDecoder::new(Ctx::serial(), config.clone(), 100, true)).collect();
    let limits = Limits { max_batch: 8, prefill_chunk: 64, blocks: 100, speculation: Speculation::Off };
    let mut harness = Harness::new(decoders, limits);
    drop(harness.load(Some(&weights(1)), OnUpdate::Finish));
    (0..lanes).for_each(|lane| assert!(!harness.step(lane)));
    harness
}

fn weights(version: u64) -> LoadedWeights {
    LoadedWeights { label: label(version), model: Arc::new(Model::init(&config(23, 128), version)) }
}

/// Eight requests; those of the second lane are short.
fn requests() -> Vec<GenerateRequest> {
    let one = |ticket: u64| {
        let max_new_tokens = if ticket.is_multiple_of(2) { LONG } else { 2 };
        let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
        let key = RandomKey::new(3, 0, Purpose::Rollout, ticket);
        let group = (ticket < 4).then_some(ticket % 2);
        GenerateRequest { group, ..GenerateRequest::new(key, [1, 2, ticket as u32 % 2], sampling) }
    };
    (0..8).map(one).collect()
}

fn steps(harness: &mut Harness<ModelDecoder>, times: usize, lanes: Range<usize>) {
    for _ in 0..times {
        lanes.clone().for_each(|lane| {
            harness.step(lane);
        });
    }
}

fn finish(harness: &mut Harness<ModelDecoder>, answers: &mut [Answer]) -> Vec<Generation> {
    steps(harness, 10 * LONG, 0..harness.lanes.len());
    assert!(harness.shared.dispatcher().is_idle());
    answers.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap()).collect()
}

/// Steps until the second lane is idle and the first has moved two of its four sequences to it.
fn migrate(harness: &mut Harness<ModelDecoder>) -> Vec<Answer> {
    let answers: Vec<_> = requests().into_iter().map(|request| harness.submit(request)).collect();
    steps(harness, 3, 0..2);
    assert_eq!(harness.lanes[0].batch.statistics().migrated, 0, "the second lane is not idle yet");
    assert!(!harness.step(1));
    assert!(harness.step(0));
    assert_eq!(harness.lanes[0].batch.statistics().migrated, 2);
    assert_eq!(harness.lanes[0].batch.running(), 2);
    answers
}

fn alone() -> Vec<Generation> {
    let mut harness = harness(1);
    let mut answers: Vec<_> = requests().into_iter().map(|request| harness.submit(request)).collect();
    finish(&mut harness, &mut answers)
}

#[test]
fn an_idle_lane_receives_half_of_a_batch() {
    let mut harness = harness(2);
    let mut answers = migrate(&mut harness);
    assert_eq!(finish(&mut harness, &mut answers), alone());
    // Nothing was computed twice, but for the last token of a prompt that is in the cache.
    let computed = harness.lanes.iter().map(|lane| lane.batch.statistics().computed_tokens).sum::<u64>();
    assert_eq!(computed as usize, 2 * (3 + 3) + 4 * (LONG - 1) + 4);
    let sampled = harness.lanes[1].batch.statistics().sampled_tokens as usize;
    assert!(sampled > 4 * 2 + LONG, "{sampled} tokens");
}

/// With `Finish`, sequences are finished with the weights they started with, also if they are between lanes.
#[test]
fn migrating_sequences_keep_their_weights() {
    let mut harness = harness(2);
    let mut answers = migrate(&mut harness);
    drop(harness.load(Some(&weights(2)), OnUpdate::Finish));
    let generations = finish(&mut harness, &mut answers);
    assert_eq!(generations, alone());
    assert!(harness.lanes.iter().all(|lane| lane.loaded() == Some(label(2))));
}

#[test]
fn migrating_sequences_can_be_aborted() {
    let mut harness = harness(2);
    let mut answers = migrate(&mut harness);
    drop(harness.abort(Abort::All));
    let generations = finish(&mut harness, &mut answers);
    assert!(generations.iter().all(|g| g.tokens.len() < 8));
}

/// With `Recompute`, migrating keys and values of the old weights are discarded.
#[test]
fn migrating_sequences_are_recomputed_by_new_weights() {
    let mut harness = harness(2);
    let mut answers = migrate(&mut harness);
    drop(harness.load(Some(&weights(2)), OnUpdate::Recompute));
    let generations = finish(&mut harness, &mut answers);
    let mut fresh = self::harness(1);
    drop(fresh.load(Some(&weights(2)), OnUpdate::Finish));
    for (request, whole) in requests().into_iter().zip(generations).step_by(2) {
        let old = whole.versions[0].range.end;
        let prefix = whole.tokens[..old].to_vec();
        let mut answer = [fresh.submit(GenerateRequest { prefix, ..request })];
        let rest = &finish(&mut fresh, &mut answer)[0];
        assert_eq!((&rest.tokens[..], &rest.logprobs[..]), (&whole.tokens[old..], &whole.logprobs[old..]));
    }
}
