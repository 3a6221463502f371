//! Groups of samples with a common prompt, and the losses of all methods over them.

use super::super::loss::StepLoss;
use crate::EmbeddedTrainEngine;
use rloom_algo::{
    AlgoError, Algorithm, GlobalCounts, LossBatch, LossGrad, Method, PolicyLoss, Scope, TokenScores,
    ValueLoss, policy_loss, step_loss,
};
use rloom_core::{Author, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory};
use rloom_engine::PackedBatch;

use super::support::VOCABULARY;

/// Samples of one task with the same prompt: mostly one turn, some with an observation in between.
pub(super) fn group(ticket: u64, samples: u32) -> Vec<Trajectory> {
    let of_prompt = RandomKey::new(9, 0, Purpose::Generator, ticket).stream();
    let prompt: Vec<u32> =
        (0..2 + of_prompt.below(500, 9)).map(|i| of_prompt.below(i, VOCABULARY.into()) as u32).collect();
    (0..samples)
        .map(|sample| {
            let stream = RandomKey::new(10, sample, Purpose::Generator, ticket).stream();
            let (p, n) = (prompt.len(), 1 + stream.below(501, 12) as usize);
            let mut tokens = prompt.clone();
            tokens.extend((0..n as u64).map(|i| stream.below(i, VOCABULARY.into()) as u32));
            let mut spans = vec![
                Span::new(Author::Prompt, 0..p),
                Span::new(Author::Policy, p..p + n).with_temperature(0.8),
            ];
            if n > 4 && sample % 3 == 1 {
                spans[1].range.end = p + 2;
                spans.push(Span::new(Author::Environment, p + 2..p + 4));
                spans.push(Span::new(Author::Policy, p + 4..p + n).with_temperature(0.8));
            }
            let scored = spans.iter().filter(|s| s.author == Author::Policy).map(|s| s.range.len()).sum();
            Trajectory {
                key: SampleKey { ticket: Ticket(ticket), sample, segment: 0 },
                agent: None,
                tokens,
                spans,
                logprobs: (0..scored)
                    .map(|i: usize| -3.5 - 0.4 * stream.uniform(1000 + i as u64) as f32)
                    .collect(),
                versions: vec![],
                stop: StopReason::Length,
                attachments: Vec::new(),
            }
        })
        .collect()
}

/// Four groups of five and a single sample.
pub(super) fn groups() -> Vec<Trajectory> {
    let mut all: Vec<Trajectory> = (0..4).flat_map(|ticket| group(ticket, 5)).collect();
    all.extend(group(4, 1));
    all
}

/// A method's loss over packed groups, with an advantage per sample.
pub(super) struct GroupLoss<'a> {
    pub(super) spec: PolicyLoss,
    pub(super) batches: &'a [PackedBatch],
    pub(super) counts: GlobalCounts,
    pub(super) advantage: fn(SampleKey) -> f32,
    /// Declares sequences without coefficients as inert.
    pub(super) declares_inert: bool,
}

/// Positive and negative advantages.
pub(super) fn contrast(key: SampleKey) -> f32 {
    0.7 * ((key.ticket.0 as f32 * 1.3 + key.sample as f32) % 3.0) - 0.8
}

/// No advantage for every other group.
pub(super) fn zero_for_odd(key: SampleKey) -> f32 {
    if key.ticket.0 % 2 == 1 { 0.0 } else { contrast(key) }
}

struct Numbers {
    advantage: Vec<f32>,
    reference: Vec<f32>,
    returns: Vec<f32>,
    old_value: Vec<f32>,
    outcome: Vec<f32>,
}

impl<'a> GroupLoss<'a> {
    pub(super) fn new(
        spec: PolicyLoss,
        trajectories: &[Trajectory],
        batches: &'a [PackedBatch],
        advantage: fn(SampleKey) -> f32,
    ) -> Self {
        let counts = GlobalCounts::of_lengths(trajectories.iter().map(Trajectory::policy_tokens), 16);
        Self { spec, batches, counts, advantage, declares_inert: true }
    }

    fn numbers(&self, micro_batch: usize) -> Numbers {
        let packed = &self.batches[micro_batch];
        let mut advantage = vec![0.0; packed.rows.len()];
        for (key, rows) in packed.keys.iter().zip(&packed.sequences) {
            advantage[rows.clone()].fill((self.advantage)(*key));
        }
        let of = |scale: f32| packed.behavior_logprob.iter().map(|lp| scale * lp).collect();
        Numbers {
            advantage,
            reference: of(0.9),
            returns: of(-0.3),
            old_value: of(-0.2),
            outcome: packed.keys.iter().map(|key| f32::from(u8::from(key.sample % 2 == 0))).collect(),
        }
    }

    fn batch<'b>(&'b self, micro_batch: usize, numbers: &'b Numbers) -> LossBatch<'b> {
        let packed = &self.batches[micro_batch];
        LossBatch {
            rows: &packed.sequences,
            advantage: Some(&numbers.advantage),
            old_logprob: Some(&packed.behavior_logprob),
            behavior_logprob: Some(&packed.behavior_logprob),
            reference_logprob: Some(&numbers.reference),
            returns: Some(&numbers.returns),
            old_value: Some(&numbers.old_value),
            outcome: Some(&numbers.outcome),
            ..LossBatch::default()
        }
    }
}

impl StepLoss for GroupLoss<'_> {
    fn scope(&self) -> Scope {
        self.spec.scope()
    }

    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        let numbers = self.numbers(micro_batch);
        policy_loss(&self.spec, &self.batch(micro_batch, &numbers), scores, &self.counts)
    }

    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        let numbers: Vec<Numbers> = (0..self.batches.len()).map(|i| self.numbers(i)).collect();
        let batches: Vec<_> = numbers.iter().enumerate().map(|(i, n)| self.batch(i, n)).collect();
        let draws = RandomKey::new(1, 0, Purpose::Algorithm, 0).stream();
        step_loss(&self.spec, &batches, scores, &self.counts, &|i| draws.bits(i))
    }

    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        let numbers = self.numbers(micro_batch);
        let inert = self.spec.inert(&self.batch(micro_batch, &numbers));
        if self.declares_inert { inert } else { Vec::new() }
    }
}

/// Preset losses of all methods that learn from groups, and PPO's loss with a shared value head.
pub(super) fn losses() -> Vec<(String, PolicyLoss)> {
    let sampled = Method::ALL.iter().filter(|m| !m.is_supervised());
    let mut losses: Vec<_> =
        sampled.map(|&m| (m.name().to_owned(), Algorithm::preset(m).unwrap().loss)).collect();
    let value = Some(ValueLoss { coef: 0.5, clip: Some(0.2) });
    losses.push(("shared values".into(), PolicyLoss { value, ..losses[0].1 }));
    losses
}

/// Gradient of all weights, in order.
pub(super) fn gradient(engine: &EmbeddedTrainEngine) -> Vec<f32> {
    engine.gradients().named().flat_map(|(_, values)| values.iter().copied()).collect()
}

/// Gradient of one accumulation.
pub(super) fn gradient_of(mut engine: EmbeddedTrainEngine, loss: &GroupLoss<'_>) -> Vec<f32> {
    engine.accumulate_loss(loss.batches, loss).unwrap();
    gradient(&engine)
}

/// Distance of two gradients relative to the norm of the first.
pub(super) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let size = norm(&mut a.iter().copied());
    assert!(size > 0.0);
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / size
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
