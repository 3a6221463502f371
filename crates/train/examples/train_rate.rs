//! Training steps of shape S, timed: 4 layers, width 256, 8 heads, 4 key-value heads, FFN 704, vocabulary 512;
//! forward, cross-entropy, backward and AdamW on 32 × 128 tokens with two threads.
//!
//! `train_rate STEPS` prints one JSON line: seconds of each step, peak memory. `bench/compare.py` runs it.

#![expect(clippy::print_stdout, reason = "the line is what this program is for")]

use std::sync::Arc;
use std::time::Instant;

use rloom_algo::{AlgoError, GlobalCounts, LossBatch, LossGrad, Scope, TokenScores, policy_loss};
use rloom_core::{Author, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory};
use rloom_model::{Family, GenerationConfig, Model, NewModel, OptimizerSettings};
use rloom_ops::Ctx;
use rloom_train::{EmbeddedTrainEngine, LossFn, OptimStep, PackedBatch, TrainEngine, pack};

struct Supervised<'a> {
    batches: &'a [PackedBatch],
    counts: GlobalCounts,
}

impl LossFn for Supervised<'_> {
    fn scope(&self) -> Scope {
        Scope::Token
    }

    fn loss(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        let algorithm = rloom_algo::Algorithm::preset(rloom_algo::Method::Sft)?;
        let batch = LossBatch { rows: &self.batches[micro_batch].sequences, ..LossBatch::default() };
        policy_loss(&algorithm.loss, &batch, scores, &self.counts)
    }

    fn step_loss(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        scores.iter().enumerate().map(|(micro_batch, scores)| self.loss(micro_batch, scores)).collect()
    }
}

fn sequence(index: u64) -> Trajectory {
    let stream = RandomKey::new(0, 0, Purpose::Generator, index).stream();
    Trajectory {
        key: SampleKey { ticket: Ticket(index), sample: 0, segment: 0 },
        tokens: (0..128).map(|i| stream.below(i, 512) as u32).collect(),
        spans: vec![Span::new(Author::Prompt, 0..1), Span::new(Author::Policy, 1..128)],
        logprobs: vec![0.0; 127],
        versions: vec![],
        stop: StopReason::Length,
    }
}

/// Peak resident memory in MiB, where the system tells.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps: usize = std::env::args().nth(1).map_or(Ok(8), |n| n.parse())?;
    let threads: usize = std::env::args().nth(2).map_or(Ok(2), |n| n.parse())?;
    let shape = NewModel {
        family: Family::Qwen2,
        layers: 4,
        hidden_size: 256,
        heads: 8,
        kv_heads: Some(4),
        head_dim: None,
        intermediate_size: 704,
        max_positions: 512,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.02,
    };
    let model = Arc::new(Model::init(&shape.config(512)?, 0));
    let ctx = Ctx::new(threads)?;
    let mut engine =
        EmbeddedTrainEngine::new(ctx, model, None, OptimizerSettings::default(), GenerationConfig::default());
    let sequences: Vec<Trajectory> = (0..32).map(sequence).collect();
    let batches = pack(&sequences, 32 * 128)?;
    let counts = GlobalCounts::of_lengths(sequences.iter().map(Trajectory::policy_tokens), 127);
    let mut seconds = Vec::new();
    for _ in 0..steps {
        let start = Instant::now();
        engine.accumulate(&batches, &Supervised { batches: &batches, counts })?;
        engine.step(&OptimStep { learning_rate: 1e-4 })?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    println!("{{\"seconds\": {seconds:?}, \"peak_mib\": {:.1}}}", peak_mib());
    Ok(())
}
