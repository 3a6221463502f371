//! Gradients that are cleared without being written.

use rloom_model::{
    ActivationCheckpointing, Gradients, Model, Optimizer, OptimizerSettings, ScoreGrads, ScoreRows,
};
use rloom_ops::Ctx;

use crate::lora::{self, ADAPTERS};
use crate::reference::{
    Batch, CRITICS, FORMATS, Golden, NAMES, VALUED, by, differing, forward_backward, model, valued,
};

/// Gradients of other derivatives are zero once they are cleared; those of `d_scores` then take their place.
fn check(model: &Model, batch: &Batch, d_scores: &ScoreGrads<'_>, what: &str) {
    let ctx = Ctx::new(2).unwrap();
    let (tokens, rows) = (batch.tokens(), batch.rows());
    let gradients = |d_scores: &ScoreGrads<'_>| {
        forward_backward(model, &ctx, &tokens, &rows, d_scores, ActivationCheckpointing::None).1
    };
    let add = |rows: &ScoreRows<'_>, d_scores: &ScoreGrads<'_>, to: &mut Gradients| {
        let forward = model.forward(&ctx, &tokens, rows, ActivationCheckpointing::None).unwrap();
        model.backward(&ctx, forward, d_scores, to).unwrap();
    };
    let ones = |like: &[f32]| vec![1.0; like.len()];
    let (d_logprob, d_entropy, d_value) =
        (ones(d_scores.d_logprob), ones(d_scores.d_entropy), ones(d_scores.d_value));
    let others = ScoreGrads {
        d_logprob: &d_logprob,
        d_entropy: &d_entropy,
        d_value: &d_value,
        ..ScoreGrads::default()
    };

    let (wanted, mut got, zeros) = (gradients(d_scores), gradients(&others), Gradients::zeros(model));
    assert_ne!(differing(&got, &wanted), None, "{what}");
    got.clear();
    assert_eq!(differing(&got, &zeros), None, "{what}: cleared");
    assert_eq!((got.norm(&ctx), got.all_finite(&ctx)), (0.0, true), "{what}");
    let stepped = |gradients: &Gradients| {
        let mut model = model.clone();
        let mut optimizer = Optimizer::new(&model, OptimizerSettings::default());
        optimizer.step(&ctx, &mut model, gradients, 0.1).unwrap();
        model.named_tensors().map(|(_, values)| values.to_vec()).collect::<Vec<_>>()
    };
    assert!(stepped(&got) == stepped(&zeros), "{what}: a step without a backward pass");

    // A pass without scored tokens adds nothing.
    let nothing = ScoreRows { rows: &[], inv_temperature: &[] };
    add(&nothing, &ScoreGrads::default(), &mut got);
    assert_eq!(differing(&got, &zeros), None, "{what}");
    add(&rows, d_scores, &mut got);
    assert_eq!(differing(&got, &wanted), None, "{what}");
    add(&rows, d_scores, &mut got);
    assert_ne!(differing(&got, &wanted), None, "{what}: the second pass adds");
}

#[test]
fn cleared_gradients_are_those_from_zeros() {
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let [d_logprob, d_entropy] = ["d_logprob", "d_entropy"].map(|name| golden.floats(name));
        let model = model(name).with_dtype(dtype);
        check(&model, &Batch::of(&golden), &by(&d_logprob, &d_entropy), &format!("{name} {dtype:?}"));
    }
}

#[test]
fn cleared_gradients_of_value_heads_are_those_from_zeros() {
    for name in CRITICS.into_iter().chain(VALUED) {
        let (model, golden) = valued(name);
        let batch = Batch::of(&golden);
        let some = |scored: bool, value: f32| vec![value; if scored { batch.rows.len() } else { 0 }];
        let is_policy = VALUED.contains(&name);
        let (d_logprob, d_entropy, d_value) = (some(is_policy, 0.5), some(is_policy, -0.1), some(true, 0.25));
        let d_scores = ScoreGrads {
            d_logprob: &d_logprob,
            d_entropy: &d_entropy,
            d_value: &d_value,
            ..ScoreGrads::default()
        };
        check(&model, &batch, &d_scores, name);
    }
}

#[test]
fn cleared_gradients_of_adapters_are_those_from_zeros() {
    for name in ADAPTERS {
        let (golden, model) = (lora::golden(name), Model::load(&lora::stored(name)).unwrap());
        let [d_logprob, d_entropy] = ["d_logprob", "d_entropy"].map(|name| golden.floats(name));
        check(&model, &Batch::of(&golden), &by(&d_logprob, &d_entropy), name);
    }
}
