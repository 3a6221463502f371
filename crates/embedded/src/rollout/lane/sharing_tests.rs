//! A lane that has run dry gets sequences out of another one's batch, and nothing else changes.

use std::ops::Range;
use std::sync::Arc;

use rloom_core::{Purpose, RandomKey};
use rloom_model::Model;
use rloom_ops::Ctx;

use super::bench::{Answer, Bench, config, label};
use crate::rollout::batch::Limits;
use crate::rollout::decoder::ModelDecoder;
use crate::rollout::weights::LoadedWeights;
use rloom_engine::{Abort, GenerateRequest, Generation, OnUpdate, SamplingSettings, Speculation};

const LONG: usize = 100;

fn bench(lanes: usize) -> Bench<ModelDecoder> {
    let config = config(23, 128);
    let decoders = (0..lanes).map(|_| ModelDecoder::new(Ctx::serial(), config.clone(), 100, true)).collect();
    let limits = Limits { max_batch: 8, prefill_chunk: 64, blocks: 100, speculation: Speculation::Off };
    let mut bench = Bench::new(decoders, limits);
    drop(bench.load(Some(&weights(1)), OnUpdate::Finish));
    (0..lanes).for_each(|lane| assert!(!bench.step(lane)));
    bench
}

fn weights(version: u64) -> LoadedWeights {
    LoadedWeights { label: label(version), model: Arc::new(Model::init(&config(23, 128), version)) }
}

/// Eight requests; every other one, which are those of the second lane, is short.
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

fn steps(bench: &mut Bench<ModelDecoder>, times: usize, lanes: Range<usize>) {
    for _ in 0..times {
        lanes.clone().for_each(|lane| {
            bench.step(lane);
        });
    }
}

fn finish(bench: &mut Bench<ModelDecoder>, answers: &mut [Answer]) -> Vec<Generation> {
    steps(bench, 10 * LONG, 0..bench.lanes.len());
    assert!(bench.shared.dispatcher().is_idle());
    answers.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap()).collect()
}

/// Steps until the second lane has nothing left and the first has handed it two of four.
fn migrate(bench: &mut Bench<ModelDecoder>) -> Vec<Answer> {
    let answers: Vec<_> = requests().into_iter().map(|request| bench.submit(request)).collect();
    steps(bench, 3, 0..2);
    assert_eq!(bench.lanes[0].batch.statistics().migrated, 0, "the second lane has not noticed yet");
    assert!(!bench.step(1));
    assert!(bench.step(0));
    assert_eq!(bench.lanes[0].batch.statistics().migrated, 2);
    assert_eq!(bench.lanes[0].batch.running(), 2);
    answers
}

fn alone() -> Vec<Generation> {
    let mut bench = bench(1);
    let mut answers: Vec<_> = requests().into_iter().map(|request| bench.submit(request)).collect();
    finish(&mut bench, &mut answers)
}

#[test]
fn a_lane_that_has_run_dry_gets_half_of_the_others() {
    let mut bench = bench(2);
    let mut answers = migrate(&mut bench);
    assert_eq!(finish(&mut bench, &mut answers), alone());
    // Nothing was computed twice.
    let computed = bench.lanes.iter().map(|lane| lane.batch.statistics().computed_tokens).sum::<u64>();
    assert_eq!(computed as usize, 6 * 3 + 4 * (LONG - 1) + 4);
    let chosen = bench.lanes[1].batch.statistics().sampled_tokens as usize;
    assert!(chosen > 4 * 2 + LONG, "{chosen} tokens");
}

/// With `Finish`, what was begun with the old weights is finished with them, wherever it is when the new ones come.
#[test]
fn what_is_on_its_way_keeps_its_weights() {
    let mut bench = bench(2);
    let mut answers = migrate(&mut bench);
    drop(bench.load(Some(&weights(2)), OnUpdate::Finish));
    let generations = finish(&mut bench, &mut answers);
    assert_eq!(generations, alone());
    assert!(bench.lanes.iter().all(|lane| lane.loaded() == Some(label(2))));
}

#[test]
fn what_is_on_its_way_can_be_aborted() {
    let mut bench = bench(2);
    let mut answers = migrate(&mut bench);
    drop(bench.abort(Abort::All));
    let generations = finish(&mut bench, &mut answers);
    assert!(generations.iter().all(|g| g.tokens.len() < 8));
}

/// With `Recompute`, keys and values of the old weights that are on their way are not used.
#[test]
fn what_is_on_its_way_is_computed_again_by_new_weights() {
    let mut bench = bench(2);
    let mut answers = migrate(&mut bench);
    drop(bench.load(Some(&weights(2)), OnUpdate::Recompute));
    let generations = finish(&mut bench, &mut answers);
    let mut fresh = self::bench(1);
    drop(fresh.load(Some(&weights(2)), OnUpdate::Finish));
    for (request, whole) in requests().into_iter().zip(generations).step_by(2) {
        let old = whole.versions[0].range.end;
        let prefix = whole.tokens[..old].to_vec();
        let mut answer = [fresh.submit(GenerateRequest { prefix, ..request })];
        let rest = &finish(&mut fresh, &mut answer)[0];
        assert_eq!((&rest.tokens[..], &rest.logprobs[..]), (&whole.tokens[old..], &whole.logprobs[old..]));
    }
}
