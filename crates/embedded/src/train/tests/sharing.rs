//! Shared prompts: bitwise the same scores, and the same gradient up to the order of sums.

use crate::EmbeddedTrainEngine;
use rloom_algo::{PolicyLoss, TokenScores};
use rloom_core::{SampleKey, Trajectory};
use rloom_engine::{OptimStep, PackedBatch, TrainEngine, Which, pack, pack_unshared};
use rloom_model::GenerationConfig;
use rloom_ops::Ctx;

use super::groups::{GroupLoss, bits, contrast, distance, gradient_of, groups, losses};
use super::support::{engine, model, settings};

fn with_values(threads: usize) -> EmbeddedTrainEngine {
    let ctx = Ctx::new(threads).unwrap();
    EmbeddedTrainEngine::with_value_head(ctx, model(), None, settings(), GenerationConfig::default())
}

fn engine_for(loss: &PolicyLoss, threads: usize) -> EmbeddedTrainEngine {
    if loss.value.is_some() { with_values(threads) } else { engine(threads) }
}

/// Bits of all scores of each sample, with the value after its last token at the end.
fn by_sample(batches: &[PackedBatch], scores: &[TokenScores]) -> Vec<(SampleKey, [Vec<u32>; 4])> {
    let mut out = Vec::new();
    for (batch, scores) in batches.iter().zip(scores) {
        for (sequence, (key, rows)) in batch.keys.iter().zip(&batch.sequences).enumerate() {
            let own = |list: &[f32]| bits(list.get(rows.clone()).unwrap_or_default());
            let last = scores.last_value.get(sequence).map(|x| x.to_bits());
            let lists = [&scores.logprob, &scores.entropy, &scores.value].map(|list| own(list));
            let [logprob, entropy, value] = lists;
            out.push((*key, [logprob, entropy, value, last.into_iter().collect()]));
        }
    }
    out
}

/// An engine with a trained value head; a new one gives 0.
fn with_trained_values() -> EmbeddedTrainEngine {
    let mut engine = with_values(3);
    let all = groups();
    let batches = pack(&all, 10_000).unwrap();
    let (_, spec) = losses().pop().unwrap();
    engine.accumulate_loss(&batches, &GroupLoss::new(spec, &all, &batches, contrast)).unwrap();
    engine.step(&OptimStep { learning_rate: 1e-2 }).unwrap();
    engine
}

/// For any number of prompts in a micro-batch and any division of families.
#[test]
fn scores_are_bitwise_those_of_single_sequences() {
    let all = groups();
    for (mut engine, values) in [(engine(2), false), (with_trained_values(), true)] {
        let apart = pack_unshared(&all, 1).unwrap();
        assert_eq!(apart.len(), all.len());
        let scores = engine.score(Which::Policy, &apart).unwrap();
        let ends = scores.iter().flat_map(|s| &s.last_value).filter(|&&value| value != 0.0).count();
        assert_eq!(ends, if values { all.len() } else { 0 });
        let expected = by_sample(&apart, &scores);
        for budget in [24, 50, 10_000] {
            let packed = pack(&all, budget).unwrap();
            let scores = engine.score(Which::Policy, &packed).unwrap();
            assert_eq!(by_sample(&packed, &scores), expected, "budget {budget}");
        }
    }
}

/// For every method; each packing gives the same bytes with any number of threads.
#[test]
fn gradients_are_those_of_single_sequences() {
    let all: Vec<Trajectory> = groups();
    let shared = pack(&all, 60).unwrap();
    let apart = pack_unshared(&all, 60).unwrap();
    assert!(shared.len() > 1 && shared.len() < apart.len());
    for (name, spec) in losses() {
        let of = |batches: &[PackedBatch], threads| {
            let loss = GroupLoss::new(spec, &all, batches, contrast);
            gradient_of(engine_for(&spec, threads), &loss)
        };
        let (together, alone) = (of(&shared, 2), of(&apart, 2));
        let far = distance(&alone, &together);
        assert!(far <= 1e-5, "{name}: {far:e}");
        assert_eq!(bits(&together), bits(&of(&shared, 3)), "{name}");
        assert_eq!(bits(&alone), bits(&of(&apart, 1)), "{name}");
    }
}

/// Prompt tokens are counted where they were computed.
#[test]
fn shared_tokens_are_counted_once() {
    let all = groups();
    let spec = losses()[0].1;
    let batches = pack(&all, 10_000).unwrap();
    let loss = GroupLoss::new(spec, &all, &batches, contrast);
    let report = engine(1).accumulate_loss(&batches, &loss).unwrap();
    let prompts: usize = all[..20].chunks(5).map(|group| 4 * group[0].prompt_tokens()).sum();
    let tokens: usize = all.iter().map(|t| t.tokens.len()).sum();
    assert_eq!((report.shared, report.skipped), (prompts as u64, 0));
    assert_eq!(report.tokens, (tokens - prompts) as u64);
}
