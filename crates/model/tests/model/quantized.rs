//! Models with matrices of 8 bits: a step is bitwise identical to the forward pass, and differs little from that of the
//! weights in full precision.

use rloom_model::{ActivationCheckpointing, Model, Optimizer, OptimizerSettings};
use rloom_ops::Ctx;

use crate::decode::{decoded, expected, sequences};
use crate::lora::{ADAPTERS, stored};
use crate::reference::{Batch, FORMATS, Golden, NAMES, by, forward_backward, model};

fn models() -> impl Iterator<Item = (String, Model)> {
    let plain = NAMES.into_iter().map(|name| (name, model(name)));
    let adapted = ADAPTERS.into_iter().map(|name| (name, Model::load(&stored(name)).unwrap()));
    let all: Vec<_> = plain.chain(adapted).collect();
    all.into_iter().flat_map(|(name, model)| {
        FORMATS.map(|dtype| (format!("{name} {dtype:?}"), model.clone().with_dtype(dtype)))
    })
}

#[test]
fn steps_are_bitwise_identical_to_the_packed_forward() {
    let sequences = sequences();
    for (name, model) in models() {
        let exact = expected(&model, &Ctx::serial(), &sequences);
        let quantized = model.quantized(&Ctx::serial());
        let want = expected(&quantized, &Ctx::serial(), &sequences);
        for threads in [1, 2, 3] {
            let ctx = Ctx::new(threads).unwrap();
            for chunk in [1, 64] {
                assert!(
                    decoded(&quantized, &ctx, &sequences, |_| chunk) == want,
                    "{name}, {threads} threads"
                );
            }
        }
        // Each product is off by a hundredth at most; the products of all layers add up.
        let differences = exact.iter().flatten().zip(want.iter().flatten()).map(|(a, b)| (a - b).abs());
        let (mut sum, mut count) = (0.0, 0);
        for difference in differences {
            (sum, count) = (sum + difference, count + 1);
        }
        let mean = sum / count as f32;
        let spread = exact.iter().flatten().map(|x| x.abs()).sum::<f32>() / count as f32;
        assert!(mean > 1e-4 * spread && mean < 0.05 * spread, "{name}: {mean} of {spread}");
    }
}

/// The quantized weights are those of a version: they stay when the weights change, and follow in the next version.
#[test]
fn a_quantized_model_is_a_copy() {
    let (ctx, golden) = (Ctx::serial(), Golden::open(&format!("{}.safetensors", NAMES[0])));
    let batch = Batch::of(&golden);
    let logprobs = |model: &Model| model.score(&ctx, &batch.tokens(), &batch.rows()).unwrap().logprob;
    for dtype in FORMATS {
        let mut trained = model(NAMES[0]).with_dtype(dtype);
        let first = trained.quantized(&ctx);
        let before = logprobs(&first);
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        let coefficients = by(&d_logprob, &d_entropy);
        let none = ActivationCheckpointing::None;
        let (_, gradients) =
            forward_backward(&trained, &ctx, &batch.tokens(), &batch.rows(), &coefficients, none);
        let settings = OptimizerSettings { learning_rate: 0.01, ..OptimizerSettings::default() };
        Optimizer::new(&trained, settings).step(&ctx, &mut trained, &gradients, 0.01).unwrap();
        assert_eq!(logprobs(&first), before);
        let second = trained.quantized(&ctx);
        assert_ne!(logprobs(&second), before, "{dtype:?}");
        // What is published is what the trainer has.
        assert_eq!(logprobs(&trained.packed_only(&ctx).quantized(&ctx)), logprobs(&second));
    }
}

/// Adapters over one base share its quantized form.
#[test]
fn the_base_of_adapters_is_quantized_once() {
    let ctx = Ctx::serial();
    for dtype in FORMATS {
        let model = Model::load_frozen(&stored(ADAPTERS[0]), dtype).unwrap();
        let other = model.without_adapter();
        assert!(model.shares_base(&other));
        assert!(model.quantized(&ctx).shares_base(&other.quantized(&ctx)));
        assert!(!model.quantized(&ctx).shares_base(&model));
    }
}
