//! Compared with transformers' logits and PyTorch's gradients (`tests/golden/reference.py`), and packed with separate
//! sequences.

use rloom_model::{
    ActivationCheckpointing, BatchError, Dtype, Gradients, Model, ModelConfig, NewModel, PackedTokens,
    ScoreRows,
};
use rloom_ops::Ctx;

use crate::reference::{
    Batch, FORMATS, Golden, NAMES, by, differing, forward_backward, max_abs, model, relative,
};

#[test]
fn logits_agree_with_transformers() {
    let ctx = Ctx::serial();
    for name in NAMES {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let batch = Batch::of(&golden);
        let rows: Vec<u32> = (0..batch.tokens.len() as u32).collect();
        let logits = model(name).logits(&ctx, &batch.tokens(), &rows).unwrap();
        let difference = max_abs(&logits, &golden.floats("logits"));
        assert!(difference <= 1e-4, "{name}: {difference}");
    }
}

#[test]
fn scores_agree_with_pytorch() {
    let ctx = Ctx::serial();
    for name in NAMES {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let batch = Batch::of(&golden);
        let scores = model(name).score(&ctx, &batch.tokens(), &batch.rows()).unwrap();
        for (what, ours) in [("logprob", &scores.logprob), ("entropy", &scores.entropy)] {
            let difference = max_abs(ours, &golden.floats(what));
            assert!(difference <= 3e-5, "{name} {what}: {difference}");
        }
    }
}

#[test]
fn gradients_agree_with_pytorch() {
    let ctx = Ctx::new(2).unwrap();
    for name in NAMES {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let (batch, model) = (Batch::of(&golden), model(name));
        let mut gradients = Gradients::zeros(&model);
        let forward =
            model.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::None).unwrap();
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        model.backward(&ctx, forward, &by(&d_logprob, &d_entropy), &mut gradients).unwrap();
        for (spec, values) in gradients.named() {
            let difference = relative(values, &golden.floats(&format!("grad.{}", spec.name)));
            assert!(difference <= 1e-5, "{name} {}: {difference}", spec.name);
        }
    }
}

/// In bf16, averaged over many batches, the gradients are at least as close to the exact ones as those of PyTorch's
/// bf16 autocast: the root mean square over the tensors, and the median tensor. For these deliberately difficult
/// weights, PyTorch's errors are 5 %, 5 % and 2 %. The exact gradients are those in f32, which are within 1e-5 of
/// PyTorch's f64.
#[test]
fn bf16_gradients_are_as_accurate_as_autocast() {
    let ctx = Ctx::new(2).unwrap();
    for name in NAMES {
        let golden = Golden::open(&format!("{name}-bf16.safetensors"));
        let (mut batch, single) = (Batch::of(&Golden::open(&format!("{name}.safetensors"))), model(name));
        let close = model(name).with_dtype(Dtype::Bf16);
        let (tokens, scored) = (golden.ids("tokens"), batch.rows.len());
        let [d_logprob, d_entropy] = ["d_logprob", "d_entropy"].map(|name| golden.floats(name));
        let coefficients = d_logprob.chunks_exact(scored).zip(d_entropy.chunks_exact(scored));
        let (mut ours, share) = ([0.0; 2], scored as f64 / d_logprob.len() as f64);
        for (tokens, (d_logprob, d_entropy)) in tokens.chunks_exact(batch.tokens.len()).zip(coefficients) {
            batch.tokens = tokens.to_vec();
            let by = by(d_logprob, d_entropy);
            let gradients = |model: &Model| {
                forward_backward(
                    model,
                    &ctx,
                    &batch.tokens(),
                    &batch.rows(),
                    &by,
                    ActivationCheckpointing::None,
                )
                .1
            };
            let (exact, close) = (gradients(&single), gradients(&close));
            let mut errors: Vec<f64> = close
                .named()
                .zip(exact.named())
                .map(|((_, close), (_, exact))| relative(close, exact))
                .collect();
            errors.sort_by(f64::total_cmp);
            let mean_square = errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64;
            ours[0] += share * mean_square.sqrt();
            ours[1] += share * errors[errors.len() / 2];
        }
        for (ours, theirs) in ours.into_iter().zip(golden.floats("autocast_error")) {
            assert!(ours <= f64::from(theirs), "{name}: {ours} against {theirs}");
        }
    }
}

/// For weights as at the start of training, bf16 gives every gradient within 2 % of f32's.
#[test]
fn bf16_gradients_of_new_models_are_close() {
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "family": "qwen2", "layers": 3, "hidden_size": 96, "heads": 6, "kv_heads": 2, "intermediate_size": 160,
        "max_positions": 64,
    }))
    .unwrap();
    let model = Model::init(&new.config(200).unwrap(), 5);
    let ctx = Ctx::new(2).unwrap();
    let stream = rloom_core::RandomKey::new(4, 0, rloom_core::Purpose::Algorithm, 0).stream();
    let tokens: Vec<u32> = (0..256).map(|i| stream.below(i, 200) as u32).collect();
    let tokens = PackedTokens { tokens: &tokens, seq_starts: &[0, 64, 128, 192, 256], parents: &[] };
    let scored: Vec<u32> = (0..256).filter(|row| row % 64 != 0).collect();
    let rows = ScoreRows { rows: &scored, inv_temperature: &vec![1.0; scored.len()] };
    let (coefficient, none) = (vec![-1.0 / scored.len() as f32; scored.len()], vec![0.0; scored.len()]);
    let by = by(&coefficient, &none);
    let gradients =
        |model: &Model| forward_backward(model, &ctx, &tokens, &rows, &by, ActivationCheckpointing::None);
    let (scores, exact) = gradients(&model);
    let (scores_bf16, close) = gradients(&model.with_dtype(Dtype::Bf16));
    let difference = max_abs(&scores.logprob, &scores_bf16.logprob);
    assert!(difference > 0.0 && difference <= 0.01, "log-probabilities: {difference}");
    for ((spec, a), (_, b)) in close.named().zip(exact.named()) {
        let difference = relative(a, b);
        assert!(difference <= 0.02, "{}: {difference}", spec.name);
    }
}

/// A sequence's scores do not depend on the rest of the batch, on the threads, or on whether activations are saved;
/// gradients do not depend on the threads or on recomputation.
#[test]
fn scores_and_gradients_do_not_depend_on_packing_threads_or_checkpointing() {
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let (batch, model) = (Batch::of(&golden), model(name).with_dtype(dtype));
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        let by = by(&d_logprob, &d_entropy);
        let packed = model.score(&Ctx::serial(), &batch.tokens(), &batch.rows()).unwrap();
        let mut gradients = Vec::new();
        let all = [
            ActivationCheckpointing::None,
            ActivationCheckpointing::Attention,
            ActivationCheckpointing::Block,
        ];
        for (threads, checkpointing) in
            [1, 2, 3].into_iter().zip(all).chain([(2, ActivationCheckpointing::None)])
        {
            let case = format!("{name} {dtype:?}, {threads} threads, {checkpointing:?}");
            let ctx = Ctx::new(threads).unwrap();
            let mut alone = (Vec::new(), Vec::new());
            for sequence in 0..batch.starts.len() - 1 {
                let one = batch.alone(sequence);
                let scores = model.score(&ctx, &one.tokens(), &one.rows()).unwrap();
                alone.0.extend(scores.logprob);
                alone.1.extend(scores.entropy);
            }
            assert_eq!(alone.0, packed.logprob, "{case}");
            assert_eq!(alone.1, packed.entropy, "{case}");
            let (scores, sum) =
                forward_backward(&model, &ctx, &batch.tokens(), &batch.rows(), &by, checkpointing);
            assert_eq!(scores, packed, "{case}");
            gradients.push((case, sum));
        }
        for (case, other) in &gradients[1..] {
            assert_eq!(differing(&gradients[0].1, other), None, "{case}");
        }
    }
}

#[test]
fn backward_rejects_a_forward_pass_of_another_dtype() {
    let (ctx, model) = (Ctx::serial(), model("tiny-llama"));
    let batch = Batch::of(&Golden::open("tiny-llama.safetensors"));
    let forward =
        model.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::Block).unwrap();
    let model = model.with_dtype(Dtype::Bf16);
    let zeros = vec![0.0; batch.rows.len()];
    let error =
        model.backward(&ctx, forward, &by(&zeros, &zeros), &mut Gradients::zeros(&model)).unwrap_err();
    assert_eq!(error, BatchError::Dtype { forward: "f32", model: "bf16" });
}

/// The gradients of several micro-batches add up to that of the whole batch.
#[test]
fn gradients_accumulate_over_micro_batches() {
    let ctx = Ctx::serial();
    for name in NAMES {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let (batch, model) = (Batch::of(&golden), model(name));
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        let mut sum = Gradients::zeros(&model);
        let mut done = 0;
        for sequence in 0..batch.starts.len() - 1 {
            let one = batch.alone(sequence);
            let scored = done..done + one.rows.len();
            done = scored.end;
            let forward =
                model.forward(&ctx, &one.tokens(), &one.rows(), ActivationCheckpointing::None).unwrap();
            model
                .backward(&ctx, forward, &by(&d_logprob[scored.clone()], &d_entropy[scored]), &mut sum)
                .unwrap();
        }
        for (spec, values) in sum.named() {
            let difference = relative(values, &golden.floats(&format!("grad.{}", spec.name)));
            assert!(difference <= 1e-5, "{name} {}: {difference}", spec.name);
        }
    }
}

#[test]
fn invalid_batches_are_errors() {
    let (ctx, model) = (Ctx::serial(), model("tiny-llama"));
    let score = |tokens: &[u32], seq_starts: &[usize]| {
        let rows = ScoreRows { rows: &[], inv_temperature: &[] };
        model
            .score(&ctx, &PackedTokens { tokens, seq_starts, parents: &[] }, &rows)
            .map_err(|error| error.to_string())
    };
    assert!(score(&[1, 96], &[0, 2]).unwrap_err().contains("token 96 at packed index 1"));
    assert!(score(&[1, 2], &[0, 1]).unwrap_err().contains("ascend from 0 to the 2 tokens"));
    assert!(score(&[1, 2], &[0, 0, 2]).unwrap_err().contains("entry 1"));
    assert!(score(&[1; 257], &[0, 257]).unwrap_err().contains("has 257 tokens, the model's limit is 256"));
    assert_eq!(score(&[1; 256], &[0, 256]).unwrap().logprob.len(), 0);
    assert_eq!(score(&[], &[0]).unwrap().logprob.len(), 0);
}

#[test]
fn parameters_are_counted() {
    for name in NAMES {
        let model = model(name);
        let by_tensor: usize = model.named_tensors().map(|(_, values)| values.len()).sum();
        assert_eq!(model.parameter_count(), by_tensor as u64);
        let config: &ModelConfig = model.config();
        assert_eq!(config.parameter_count(), model.parameter_count());
    }
}
