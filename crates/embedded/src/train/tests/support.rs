//! A small policy, trajectories and a loss.

use super::super::loss::StepLoss;
pub(super) use super::model::{VOCABULARY, model};
use crate::EmbeddedTrainEngine;
use rloom_algo::{
    Aggregation, AlgoError, Algorithm, GlobalCounts, LossBatch, LossGrad, Method, PolicyLoss, Scope,
    TokenScores, policy_loss,
};
use rloom_core::{Author, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory};
use rloom_engine::{OptimStep, PackedBatch, TrainEngine, pack};
use rloom_model::{GenerationConfig, OptimizerSettings};
use rloom_ops::Ctx;

pub(super) fn trajectory(ticket: u64) -> Trajectory {
    let stream = RandomKey::new(5, 0, Purpose::Generator, ticket).stream();
    let prompt = 1 + stream.below(1000, 6) as usize;
    let n = prompt + 1 + stream.below(1001, 12) as usize;
    Trajectory {
        key: SampleKey { ticket: Ticket(ticket), sample: 0, segment: 0 },
        agent: None,
        tokens: (0..n as u64).map(|i| stream.below(i, VOCABULARY.into()) as u32).collect(),
        spans: vec![
            Span::new(Author::Prompt, 0..prompt),
            Span::new(Author::Policy, prompt..n).with_temperature(0.8),
        ],
        logprobs: (0..n - prompt).map(|i| -3.5 - 0.1 * stream.uniform(2000 + i as u64) as f32).collect(),
        versions: vec![],
        stop: StopReason::Length,
        attachments: Vec::new(),
    }
}

/// A policy loss whose advantages are a function of the ticket.
pub(super) struct Loss {
    pub(super) spec: PolicyLoss,
    pub(super) batches: Vec<PackedBatch>,
    pub(super) counts: GlobalCounts,
    pub(super) spoil: bool,
}

impl Loss {
    pub(super) fn new(spec: PolicyLoss, trajectories: &[Trajectory], budget: usize) -> Self {
        let lengths = trajectories.iter().map(Trajectory::policy_tokens);
        let counts = GlobalCounts::of_lengths(lengths, 16);
        Self { spec, batches: pack(trajectories, budget).unwrap(), counts, spoil: false }
    }
}

impl StepLoss for Loss {
    fn scope(&self) -> Scope {
        self.spec.scope()
    }

    fn evaluate(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        let packed = &self.batches[micro_batch];
        let mut advantage = vec![0.0; scores.logprob.len()];
        for (key, rows) in packed.keys.iter().zip(&packed.sequences) {
            advantage[rows.clone()].fill(key.ticket.0 as f32 * 0.3 - 1.0);
        }
        let batch = LossBatch {
            rows: &packed.sequences,
            advantage: Some(&advantage),
            old_logprob: Some(&packed.behavior_logprob),
            behavior_logprob: Some(&packed.behavior_logprob),
            ..LossBatch::default()
        };
        let mut grad = policy_loss(&self.spec, &batch, scores, &self.counts)?;
        if self.spoil {
            grad.d_logprob[0] = f32::INFINITY;
        }
        Ok(grad)
    }

    fn evaluate_step(&self, scores: &[TokenScores]) -> Result<Vec<LossGrad>, AlgoError> {
        scores.iter().enumerate().map(|(micro_batch, scores)| self.evaluate(micro_batch, scores)).collect()
    }
}

pub(super) fn settings() -> OptimizerSettings {
    OptimizerSettings { learning_rate: 1e-2, ..OptimizerSettings::default() }
}

pub(super) fn engine(threads: usize) -> EmbeddedTrainEngine {
    EmbeddedTrainEngine::new(
        Ctx::new(threads).unwrap(),
        model(),
        None,
        settings(),
        GenerationConfig::default(),
    )
}

pub(super) fn spec(aggregation: Aggregation) -> PolicyLoss {
    let mut loss = Algorithm::preset(Method::Grpo).unwrap().loss;
    loss.aggregation = aggregation;
    loss.entropy_coef = 0.02;
    loss
}

pub(super) fn weights(engine: &EmbeddedTrainEngine) -> Vec<u32> {
    engine.policy().named_tensors().flat_map(|(_, v)| v.iter().map(|x| x.to_bits())).collect()
}

pub(super) fn train(engine: &mut EmbeddedTrainEngine, steps: std::ops::Range<u64>) {
    for step in steps {
        let trajectories: Vec<Trajectory> = (step * 4..step * 4 + 4).map(trajectory).collect();
        let loss = Loss::new(spec(Aggregation::TokenMean), &trajectories, 30);
        engine.accumulate_loss(&loss.batches, &loss).unwrap();
        engine.step(&OptimStep { learning_rate: 1e-2 }).unwrap();
    }
}
