//! The gradient of every tensor against central differences of the scores, along random directions.

use rloom_core::{Purpose, RandomKey};
use rloom_model::{Gradients, Model, NewModel, PackedTokens, ScoreRows};
use rloom_ops::Ctx;

const TOKENS: [u32; 14] = [3, 7, 1, 9, 4, 4, 11, 2, 5, 8, 0, 6, 10, 3];
const STARTS: [usize; 4] = [0, 6, 7, 14];
const ROWS: [u32; 8] = [1, 2, 4, 5, 8, 9, 12, 13];
const INV_TEMPERATURE: [f32; 8] = [1.0, 0.7, 1.3, 1.0, 1.0, 0.5, 1.0, 2.0];
const D_LOGPROB: [f32; 8] = [1.0, -0.5, 0.3, 0.8, -1.2, 0.4, 0.0, 0.6];
const D_ENTROPY: [f32; 8] = [0.0, 0.3, -0.2, 0.0, 0.5, 0.1, 0.7, -0.4];

fn loss(model: &Model) -> f64 {
    let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS };
    let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
    let scores = model.score(&Ctx::serial(), &tokens, &rows).unwrap();
    let logprob = D_LOGPROB.iter().zip(&scores.logprob);
    let entropy = D_ENTROPY.iter().zip(&scores.entropy);
    logprob.chain(entropy).map(|(d, score)| f64::from(*d) * f64::from(*score)).sum()
}

/// Moves one tensor, by writing the model out, changing the file and reading it again: the public way in.
fn moved(folder: &std::path::Path, tensor: &str, direction: &[f32], by: f32) -> Model {
    let path = folder.join("model.safetensors");
    let before = std::fs::read(&path).unwrap();
    let mut bytes = before.clone();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let value: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = 8 + header + value[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    for (i, d) in direction.iter().enumerate() {
        let at = &mut bytes[start + 4 * i..][..4];
        let weight = f32::from_le_bytes(at.try_into().unwrap()) + by * d;
        at.copy_from_slice(&weight.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let model = Model::load(folder).unwrap();
    std::fs::write(&path, before).unwrap();
    model
}

#[test]
fn every_tensor_of_every_family() {
    for (family, tie) in [("llama", false), ("qwen2", true), ("qwen3", false)] {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": family, "layers": 2, "hidden_size": 12, "heads": 4, "kv_heads": 2, "head_dim": 6,
            "intermediate_size": 10, "max_positions": 16, "tie_embeddings": tie, "initializer_range": 0.4,
        }))
        .unwrap();
        let model = Model::init(&new.config(12).unwrap(), 5);
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path(), &rloom_model::GenerationConfig::default()).unwrap();

        let ctx = Ctx::serial();
        let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS };
        let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
        let mut gradients = Gradients::zeros(&model);
        let forward = model.forward(&ctx, &tokens, &rows).unwrap();
        model.backward(&ctx, forward, &D_LOGPROB, &D_ENTROPY, &mut gradients).unwrap();

        for (index, (spec, gradient)) in gradients.named().enumerate() {
            let stream = RandomKey::new(1, 0, Purpose::Algorithm, index as u64).stream();
            // Half along the gradient, half at random: a direction in which the loss surely changes.
            let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
            assert!(norm > 1e-3, "{family} {}: no gradient", spec.name);
            let scale = 1.0 / (gradient.len() as f32).sqrt();
            let direction: Vec<f32> =
                (0..).zip(gradient).map(|(i, g)| g / norm + scale * stream.normal(i) as f32).collect();
            let expected: f64 =
                gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let step = 4e-3;
            let there = loss(&moved(folder.path(), &spec.name, &direction, step));
            let back = loss(&moved(folder.path(), &spec.name, &direction, -step));
            let measured = (there - back) / (2.0 * f64::from(step));
            let error = (measured - expected).abs() / expected.abs().max(0.05);
            assert!(error < 5e-3, "{family} {}: measured {measured}, expected {expected}", spec.name);
        }
    }
}
