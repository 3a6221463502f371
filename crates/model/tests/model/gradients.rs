//! Gradients that start again.

use rloom_model::{ActivationCheckpointing, Gradients, Model, ScoreGrads, ScoreRows};
use rloom_ops::Ctx;

use crate::lora::{self, ADAPTERS};
use crate::reference::{
    Batch, CRITICS, FORMATS, Golden, NAMES, VALUED, by, differing, forward_backward, model, valued,
};

/// Replaces gradients of other derivatives by those of `d_scores`, which must be those that are added to zeros.
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

    let (wanted, mut got) = (gradients(d_scores), gradients(&others));
    assert_ne!(differing(&got, &wanted), None, "{what}");
    got.restart();
    add(&rows, d_scores, &mut got);
    assert_eq!(differing(&got, &wanted), None, "{what}");
    add(&rows, d_scores, &mut got);
    assert_ne!(differing(&got, &wanted), None, "{what}: the second pass adds");

    // A pass without scored tokens replaces them by zeros.
    let nothing = ScoreRows { rows: &[], inv_temperature: &[] };
    got.restart();
    add(&nothing, &ScoreGrads::default(), &mut got);
    assert_eq!(differing(&got, &Gradients::zeros(model)), None, "{what}");
    add(&rows, d_scores, &mut got);
    assert_eq!(differing(&got, &wanted), None, "{what}: added to zeros");
}

#[test]
fn restarted_gradients_are_those_from_zeros() {
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let [d_logprob, d_entropy] = ["d_logprob", "d_entropy"].map(|name| golden.floats(name));
        let model = model(name).with_dtype(dtype);
        check(&model, &Batch::of(&golden), &by(&d_logprob, &d_entropy), &format!("{name} {dtype:?}"));
    }
}

#[test]
fn restarted_gradients_of_value_heads_are_those_from_zeros() {
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
fn restarted_gradients_of_adapters_are_those_from_zeros() {
    for name in ADAPTERS {
        let (golden, model) = (lora::golden(name), Model::load(&lora::stored(name)).unwrap());
        let [d_logprob, d_entropy] = ["d_logprob", "d_entropy"].map(|name| golden.floats(name));
        check(&model, &Batch::of(&golden), &by(&d_logprob, &d_entropy), name);
    }
}
