//! Against transformers' logits and PyTorch's gradients (`tests/golden/reference.py`), and packed against alone.

use rloom_model::{Gradients, ModelConfig};
use rloom_ops::Ctx;

use crate::reference::{Batch, Golden, NAMES, by, max_abs, model, relative};

#[test]
fn logits_equal_transformers() {
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
fn scores_equal_pytorch() {
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
fn gradients_equal_pytorch() {
    let ctx = Ctx::new(2).unwrap();
    for name in NAMES {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let (batch, model) = (Batch::of(&golden), model(name));
        let mut gradients = Gradients::zeros(&model);
        let forward = model.forward(&ctx, &batch.tokens(), &batch.rows()).unwrap();
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        model.backward(&ctx, forward, &by(&d_logprob, &d_entropy), &mut gradients).unwrap();
        for (spec, values) in gradients.named() {
            let difference = relative(values, &golden.floats(&format!("grad.{}", spec.name)));
            assert!(difference <= 1e-5, "{name} {}: {difference}", spec.name);
        }
    }
}

/// A sequence's scores do not depend on what is packed beside it, nor on the threads, nor on whether activations are
/// kept; gradients do not depend on the threads.
#[test]
fn packing_and_threads_change_no_bit() {
    for name in NAMES {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let (batch, model) = (Batch::of(&golden), model(name));
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        let packed = model.score(&Ctx::serial(), &batch.tokens(), &batch.rows()).unwrap();
        let mut gradients = Vec::new();
        for threads in [1, 2, 3] {
            let ctx = Ctx::new(threads).unwrap();
            let mut alone = (Vec::new(), Vec::new());
            for sequence in 0..batch.starts.len() - 1 {
                let one = batch.alone(sequence);
                let scores = model.score(&ctx, &one.tokens(), &one.rows()).unwrap();
                alone.0.extend(scores.logprob);
                alone.1.extend(scores.entropy);
            }
            assert_eq!(alone.0, packed.logprob, "{name} alone, {threads} threads");
            assert_eq!(alone.1, packed.entropy, "{name} alone, {threads} threads");
            let forward = model.forward(&ctx, &batch.tokens(), &batch.rows()).unwrap();
            assert_eq!(*forward.scores(), packed, "{name} kept, {threads} threads");
            let mut sum = Gradients::zeros(&model);
            model.backward(&ctx, forward, &by(&d_logprob, &d_entropy), &mut sum).unwrap();
            gradients.push(sum);
        }
        for other in &gradients[1..] {
            for ((spec, a), (_, b)) in gradients[0].named().zip(other.named()) {
                assert_eq!(a, b, "{name} {}", spec.name);
            }
        }
    }
}

/// Several micro-batches add up to the gradient of one.
#[test]
fn micro_batches_add_up() {
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
            let forward = model.forward(&ctx, &one.tokens(), &one.rows()).unwrap();
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
fn bad_batches_are_errors() {
    use rloom_model::{PackedTokens, ScoreRows};
    let (ctx, model) = (Ctx::serial(), model("tiny-llama"));
    let score = |tokens: &[u32], seq_starts: &[usize]| {
        let rows = ScoreRows { rows: &[], inv_temperature: &[] };
        model.score(&ctx, &PackedTokens { tokens, seq_starts }, &rows).map_err(|error| error.to_string())
    };
    assert!(score(&[1, 96], &[0, 2]).unwrap_err().contains("token 96 at packed index 1"));
    assert!(score(&[1, 2], &[0, 1]).unwrap_err().contains("ascend from 0 to the 2 tokens"));
    assert!(score(&[1, 2], &[0, 0, 2]).unwrap_err().contains("entry 1"));
    assert!(score(&[1; 257], &[0, 257]).unwrap_err().contains("has 257 tokens, the model takes 256"));
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
