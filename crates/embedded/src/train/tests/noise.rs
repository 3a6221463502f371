use rloom_algo::{Algorithm, EmbeddingNoise, LossInputs, LossStep, Method, Objective, PolicyObjective};
use rloom_core::{Purpose, RandomKey, Trajectory};
use rloom_engine::{Feature, PackedBatch, TrainEngine, TrainError, Which, pack, pack_unshared};

use super::support::{engine, trajectory};
use crate::EmbeddedTrainEngine;

const NOISE: EmbeddingNoise = EmbeddingNoise { alpha: 5.0, seed: 1, stage: 0, step: 0 };

fn trajectories() -> Vec<Trajectory> {
    (0..6).map(trajectory).collect()
}

fn inputs(batches: &[PackedBatch]) -> Vec<LossInputs> {
    batches.iter().map(|b| LossInputs { rows: b.sequences.clone(), ..LossInputs::default() }).collect()
}

/// Loss and gradient of SFT on packed trajectories.
fn accumulate(
    engine: &mut EmbeddedTrainEngine,
    batches: &[PackedBatch],
    noise: Option<EmbeddingNoise>,
) -> Result<(f64, Vec<f32>), TrainError> {
    let inputs = inputs(batches);
    let draws = RandomKey::new(0, 0, Purpose::Algorithm, 0);
    let loss = Algorithm::preset(Method::Sft).unwrap().loss;
    let lengths = batches.iter().flat_map(|b| &b.sequences).map(ExactSizeIterator::len);
    let counts = rloom_algo::GlobalCounts::of_lengths(lengths, 16);
    let objective = Objective::Policy(PolicyObjective { loss, draws });
    let step = LossStep { noise, ..LossStep::new(objective, counts, &inputs) };
    let value = engine.accumulate(batches, &step)?.terms.loss();
    let gradient = engine.gradients().named().flat_map(|(_, values)| values.to_vec()).collect();
    engine.discard_gradient();
    Ok((value, gradient))
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: f64| x.sqrt();
    let off = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    norm(off) / norm(a.iter().map(|a| f64::from(*a).powi(2)).sum())
}

/// The split into micro-batches, their order and the number of threads do not change the noise of a sequence.
#[test]
fn noise_depends_on_the_sequence_alone() {
    let all = trajectories();
    let whole = pack_unshared(&all, usize::MAX).unwrap();
    let (loss, gradient) = accumulate(&mut engine(1), &whole, Some(NOISE)).unwrap();
    let again = accumulate(&mut engine(3), &whole, Some(NOISE)).unwrap();
    assert_eq!((loss, &gradient), (again.0, &again.1), "other threads");
    let each = pack_unshared(&all, 1).unwrap();
    assert_eq!(each.len(), all.len());
    let (of_each, split) = accumulate(&mut engine(1), &each, Some(NOISE)).unwrap();
    assert_eq!(of_each, loss, "the terms are summed exactly");
    assert!(distance(&gradient, &split) < 1e-6, "{}", distance(&gradient, &split));
    let mut reversed = all.clone();
    reversed.reverse();
    let (backwards, _) =
        accumulate(&mut engine(1), &pack_unshared(&reversed, 40).unwrap(), Some(NOISE)).unwrap();
    assert_eq!(backwards, loss, "another order");
}

#[test]
fn noise_changes_the_training_alone() {
    let all = trajectories();
    let batches = pack_unshared(&all, 40).unwrap();
    let mut engine = engine(1);
    let scores = engine.score(Which::Policy, &batches).unwrap();
    let (plain, gradient) = accumulate(&mut engine, &batches, None).unwrap();
    let (noisy, other) = accumulate(&mut engine, &batches, Some(NOISE)).unwrap();
    assert!(noisy != plain && distance(&gradient, &other) > 1e-3);
    let step = EmbeddingNoise { step: 1, ..NOISE };
    assert_ne!(accumulate(&mut engine, &batches, Some(step)).unwrap().0, noisy, "another step");
    assert_eq!(engine.score(Which::Policy, &batches).unwrap(), scores, "scores have no noise");
    assert_eq!(accumulate(&mut engine, &batches, None).unwrap().0, plain);
    let weak = EmbeddingNoise { alpha: 1e-6, ..NOISE };
    assert!((accumulate(&mut engine, &batches, Some(weak)).unwrap().0 - plain).abs() < 1e-5);
}

#[test]
fn recomputed_activations_have_the_same_noise() {
    let all = trajectories();
    let batches = pack_unshared(&all, 40).unwrap();
    let mut engine = engine(1);
    let strong = EmbeddingNoise { alpha: 30.0, ..NOISE };
    for checkpointing in [
        rloom_engine::ActivationCheckpointing::None,
        rloom_engine::ActivationCheckpointing::Attention,
        rloom_engine::ActivationCheckpointing::Block,
    ] {
        engine = engine.with_activation_checkpointing(checkpointing);
        let (_, gradient) = accumulate(&mut engine, &batches, Some(strong)).unwrap();
        let (_, plain) = accumulate(&mut engine, &batches, None).unwrap();
        assert!(distance(&gradient, &plain) > 0.1);
        let (_, again) = accumulate(&mut super::support::engine(1), &batches, Some(strong)).unwrap();
        assert_eq!(gradient, again, "{checkpointing:?}");
    }
}

#[test]
fn shared_prompts_have_no_noise() {
    let mut pair = [trajectory(1), trajectory(1)];
    pair[1].key.sample = 1;
    let shared = pack(&pair, usize::MAX).unwrap();
    assert!(shared[0].parents.iter().any(Option::is_some));
    let error = accumulate(&mut engine(1), &shared, Some(NOISE)).unwrap_err();
    assert!(matches!(error, TrainError::Unsupported { feature: Feature::SharedNoise }), "{error}");
    accumulate(&mut engine(1), &shared, None).unwrap();
}
