//! Workload `train`: a training step: forward, cross-entropy, backward, AdamW.

use std::ops::Range;

use rloom_algo::{Algorithm, GlobalCounts, LossBatch, Method, TokenScores, policy_loss};
use rloom_model::{Gradients, Optimizer, PackedTokens, ScoreGrads, ScoreRows};

use super::count::{self, Operations};
use super::measure::{PhaseTimer, rounds};
use super::report::Measurement;
use super::shape::TrainBatch;
use super::{Bench, random_tokens};
use crate::failure::Failure;

const LEARNING_RATE: f64 = 1e-4;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Measurement, Failure> {
    let TrainBatch { sequences, length } = bench.shape.train;
    let (ctx, config) = (&bench.ctx, &bench.shape.config);
    let mut model = bench.model();
    let mut optimizer = Optimizer::new(&model, bench.optimizer.clone());
    let mut gradients = Gradients::zeros(&model);
    let algorithm = Algorithm::preset(Method::Sft).map_err(Failure::failed)?;

    let tokens: Vec<u32> =
        (0..sequences).flat_map(|s| random_tokens(s as u64, length, config.vocab_size)).collect();
    let seq_starts: Vec<usize> = (0..=sequences).map(|s| s * length).collect();
    let scored: Vec<u32> =
        (0..tokens.len() as u32).filter(|t| !(*t as usize).is_multiple_of(length)).collect();
    let of_sequence: Vec<Range<usize>> =
        (0..sequences).map(|s| s * (length - 1)..(s + 1) * (length - 1)).collect();
    let batch = PackedTokens { tokens: &tokens, seq_starts: &seq_starts, parents: &[] };
    let ones = vec![1.0; scored.len()];
    let rows = ScoreRows { rows: &scored, inv_temperature: &ones };
    let counts = GlobalCounts::of_lengths(of_sequence.iter().map(Range::len), length as u64);

    let measured = rounds(bench.rounds, &|text| bench.progress("train", text), || {
        let mut timer = PhaseTimer::start();
        let forward =
            model.forward(ctx, &batch, &rows, bench.checkpointing.into()).map_err(Failure::failed)?;
        timer.lap("forward");
        let s = forward.scores();
        let scores =
            TokenScores { logprob: s.logprob.clone(), entropy: s.entropy.clone(), ..TokenScores::default() };
        let inputs = LossBatch { rows: &of_sequence, ..LossBatch::default() };
        let loss = policy_loss(&algorithm.loss, &inputs, &scores, &counts).map_err(Failure::failed)?;
        timer.lap("loss");
        let by =
            ScoreGrads { d_logprob: &loss.d_logprob, d_entropy: &loss.d_entropy, ..ScoreGrads::default() };
        model.backward(ctx, forward, &by, &mut gradients).map_err(Failure::failed)?;
        timer.lap("backward");
        optimizer.step(ctx, &mut model, &gradients, LEARNING_RATE).map_err(Failure::failed)?;
        gradients.clear();
        timer.lap("optimizer");
        Ok(timer.end())
    })?;
    Ok(Measurement {
        workload: "train",
        batch: format!("{sequences} x {length} tokens"),
        tokens: tokens.len(),
        operations: Operations::train(config, bench.shape.train),
        traffic: bench.training_traffic(count::training_traffic(config, bench.shape.train)),
        rounds: measured,
    })
}
