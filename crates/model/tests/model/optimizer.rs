//! AdamW, clipping and schedule compared with PyTorch (`tests/golden/adamw.py`), and the optimizer's state in files.

use rloom_model::{
    ActivationCheckpointing, Gradients, Model, MomentFormat, Optimizer, OptimizerError, OptimizerSettings,
    PackedTokens, Schedule, ScoreRows,
};
use rloom_ops::Ctx;

use crate::reference::{Golden, by, max_abs, model, relative};

const STEPS: u64 = 8;

fn settings() -> OptimizerSettings {
    OptimizerSettings {
        learning_rate: 3e-3,
        betas: [0.9, 0.95],
        weight_decay: 0.1,
        max_grad_norm: 2.0,
        warmup_steps: 2,
        schedule: Schedule::Cosine,
        min_lr_ratio: 0.1,
        ..OptimizerSettings::default()
    }
}

/// Mean negative log-likelihood of all sequences of 20 tokens, and its gradient.
fn likelihood(model: &Model, tokens: &[u32], gradients: &mut Gradients) -> f64 {
    let ctx = Ctx::serial();
    let starts: Vec<usize> = (0..=tokens.len() / 20).map(|i| i * 20).collect();
    let rows: Vec<u32> = (0..tokens.len() as u32).filter(|i| i % 20 > 0).collect();
    let ones = vec![1.0; rows.len()];
    let batch = PackedTokens { tokens, seq_starts: &starts, parents: &[] };
    let rows = ScoreRows { rows: &rows, inv_temperature: &ones };
    let forward = model.forward(&ctx, &batch, &rows, ActivationCheckpointing::None).unwrap();
    let n = ones.len() as f32;
    let loss = -forward.scores().logprob.iter().map(|&l| f64::from(l)).sum::<f64>() / f64::from(n);
    gradients.clear();
    let (d_logprob, d_entropy) = (vec![-1.0 / n; ones.len()], vec![0.0; ones.len()]);
    model.backward(&ctx, forward, &by(&d_logprob, &d_entropy), gradients).unwrap();
    loss
}

#[test]
fn optimizer_trajectory_agrees_with_torch() {
    let golden = Golden::open("adamw.safetensors");
    let tokens = golden.ids("tokens");
    let mut model = model("tiny-qwen2");
    let start = model.clone();
    let mut gradients = Gradients::zeros(&model);
    let mut optimizer = Optimizer::new(&model, settings());
    let (mut losses, mut norms, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..STEPS {
        losses.push(likelihood(&model, &tokens, &mut gradients) as f32);
        let rate = optimizer.settings().learning_rate_at(step, STEPS);
        let stats = optimizer.step(&Ctx::serial(), &mut model, &gradients, rate).unwrap();
        assert_eq!(stats.clipped, stats.grad_norm > 2.0);
        norms.push(stats.grad_norm as f32);
        rates.push(rate as f32);
    }
    assert_eq!(optimizer.steps(), STEPS);
    assert!(max_abs(&rates, &golden.floats("rates")) < 1e-9);
    assert!(max_abs(&losses, &golden.floats("losses")) < 2e-5, "{losses:?}");
    assert!(max_abs(&norms, &golden.floats("norms")) < 2e-4, "{norms:?}");
    for ((spec, after), (_, before)) in model.named_tensors().zip(start.named_tensors()) {
        let torch = golden.floats(&format!("weight.{}", spec.name));
        let change =
            |weights: &[f32]| -> Vec<f32> { weights.iter().zip(before).map(|(w, b)| w - b).collect() };
        let difference = relative(&change(after), &change(&torch));
        // A bias of the keys barely affects the softmax: its gradient is mostly rounding, which Adam amplifies.
        let tolerance = if spec.name.ends_with("k_proj.bias") { 2e-2 } else { 2e-5 };
        assert!(difference < tolerance, "{}: {difference}", spec.name);
    }
}

#[test]
fn a_restored_state_continues_bitwise_identically() {
    let tokens = Golden::open("adamw.safetensors").ids("tokens");
    let (ctx, folder) = (Ctx::serial(), tempfile::tempdir().unwrap());
    let path = folder.path().join("optimizer.safetensors");
    let mut model = model("tiny-qwen3");
    let mut gradients = Gradients::zeros(&model);
    let mut optimizer = Optimizer::new(&model, settings());
    for _ in 0..2 {
        likelihood(&model, &tokens, &mut gradients);
        optimizer.step(&ctx, &mut model, &gradients, 1e-3).unwrap();
    }
    optimizer.save(&path).unwrap();
    let first = std::fs::read(&path).unwrap();
    let mut again = Optimizer::load(&path, &model, settings()).unwrap();
    again.save(&path).unwrap();
    assert!(first == std::fs::read(&path).unwrap(), "reading and writing must round-trip");
    assert_eq!(again.steps(), 2);

    let mut copy = model.clone();
    likelihood(&model, &tokens, &mut gradients);
    optimizer.step(&ctx, &mut model, &gradients, 1e-3).unwrap();
    again.step(&ctx, &mut copy, &gradients, 1e-3).unwrap();
    for ((spec, a), (_, b)) in model.named_tensors().zip(copy.named_tensors()) {
        assert_eq!(a, b, "{}", spec.name);
    }

    let other = crate::reference::model("tiny-qwen2");
    assert!(Optimizer::load(&path, &other, settings()).is_err());
    let weights = crate::reference::fixture("tiny-llama").join("model.safetensors");
    let error = Optimizer::load(&weights, &other, settings()).unwrap_err().to_string();
    assert!(error.contains("no step count"), "{error}");
}

/// Non-finite numbers never reach the weights.
#[test]
fn a_non_finite_gradient_changes_nothing() {
    let tokens = Golden::open("adamw.safetensors").ids("tokens");
    let mut model = model("tiny-qwen2");
    let before = model.clone();
    let mut gradients = Gradients::zeros(&model);
    let mut optimizer = Optimizer::new(&model, settings());
    let ctx = Ctx::serial();
    let batch = PackedTokens { tokens: &tokens[..20], seq_starts: &[0, 20], parents: &[] };
    let rows = ScoreRows { rows: &[3], inv_temperature: &[1.0] };
    let forward = model.forward(&ctx, &batch, &rows, ActivationCheckpointing::None).unwrap();
    model.backward(&ctx, forward, &by(&[f32::NAN], &[0.0]), &mut gradients).unwrap();
    assert!(!gradients.all_finite(&ctx));
    let error = optimizer.step(&ctx, &mut model, &gradients, 1e-3).unwrap_err();
    assert!(matches!(error, OptimizerError::NotFinite { step: 1, .. }));
    assert!(error.to_string().contains("model.embed_tokens.weight"), "{error}");
    assert_eq!(optimizer.steps(), 0);
    assert!(model.named_tensors().zip(before.named_tensors()).all(|((_, a), (_, b))| a == b));
}

#[test]
fn settings_are_checked() {
    assert!(settings().validate().is_ok());
    let bad = OptimizerSettings { betas: [0.9, 1.0], ..settings() };
    assert_eq!(
        bad.validate().unwrap_err().to_string(),
        "betas = 1: must be two numbers from 0 to less than 1"
    );
    let bad = OptimizerSettings { learning_rate: f64::NAN, ..settings() };
    assert!(bad.validate().is_err());
}

fn int8() -> OptimizerSettings {
    OptimizerSettings { moments: MomentFormat::Int8, ..settings() }
}

/// Training with moments of 8 bits learns as with those of 32, and its state continues as if it had never been in a file.
#[test]
fn moments_of_8_bits_learn_as_those_of_32() {
    let tokens = Golden::open("adamw.safetensors").ids("tokens");
    let (ctx, folder) = (Ctx::new(2).unwrap(), tempfile::tempdir().unwrap());
    let start = model("tiny-qwen3");
    let train = |settings: OptimizerSettings, restarts: bool| {
        let (mut model, mut losses) = (start.clone(), Vec::new());
        let mut gradients = Gradients::zeros(&model);
        let mut optimizer = Optimizer::new(&model, settings.clone());
        for step in 0..60 {
            losses.push(likelihood(&model, &tokens, &mut gradients));
            optimizer.step(&ctx, &mut model, &gradients, 3e-3).unwrap();
            if restarts && step == 20 {
                let path = folder.path().join("optimizer.safetensors");
                optimizer.save(&path).unwrap();
                optimizer = Optimizer::load(&path, &model, settings.clone()).unwrap();
            }
        }
        (model, losses)
    };
    let (_, exact) = train(settings(), false);
    let (model, losses) = train(int8(), false);
    let fall = |losses: &[f64]| losses[0] - losses[59];
    println!("loss {:.4}: {:.4} with 32 bits, {:.4} with 8", exact[0], exact[59], losses[59]);
    assert!(fall(&exact) > 0.5, "{exact:?}");
    assert!((fall(&losses) / fall(&exact) - 1.0).abs() < 0.02, "{} {}", losses[59], exact[59]);
    assert_ne!(losses, exact);
    let (again, _) = train(int8(), true);
    assert!(again.named_tensors().eq(model.named_tensors()), "a restart changes the weights");
    // The state of another format is an error.
    let path = folder.path().join("optimizer.safetensors");
    assert!(Optimizer::load(&path, &model, settings()).is_err());
}
