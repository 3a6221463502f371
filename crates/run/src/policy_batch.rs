//! From scored groups to optimiser steps: advantages, minibatches, and the loss as the engine calls it.

use std::ops::Range;

use rloom_algo::{
    Advantages, AlgoError, Algorithm, EpisodeRewards, GlobalCounts, GroupRewards, LossBatch, LossGrad,
    LossMetrics, Mismatch, PolicyLoss, TokenScores, advantages, policy_loss,
};
use rloom_core::{Group, Role, Trajectory};
use rloom_train::{LossFn, OptimStep, PackedBatch, TrainEngine, TrainError, Which, pack};

/// What training on a batch did.
#[derive(Debug, Clone, Default)]
pub(crate) struct BatchReport {
    /// Means over the optimiser steps.
    pub(crate) metrics: Option<LossMetrics>,
    /// Norm of the gradient before clipping, mean over the optimiser steps.
    pub(crate) grad_norm: f64,
    /// Learning rate of the last optimiser step.
    pub(crate) learning_rate: f64,
    /// Optimiser steps.
    pub(crate) optimizer_steps: u64,
    /// Tokens through forward and backward.
    pub(crate) tokens: u64,
    /// The advantage of each episode's first token, `[group][episode]`; empty for supervised methods.
    pub(crate) advantages: Vec<Vec<f64>>,
}

/// How a stage trains on batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchTraining {
    pub(crate) algorithm: Algorithm,
    /// Most policy tokens of a completion.
    pub(crate) completion_limit: u64,
    /// Most tokens of a micro-batch.
    pub(crate) micro_batch_tokens: usize,
}

/// Per-token numbers of a packed micro-batch that the loss reads beside the scores.
#[derive(Debug, Default)]
struct Inputs {
    rows: Vec<Range<usize>>,
    advantage: Option<Vec<f32>>,
    behavior: Option<Vec<f32>>,
    reference: Option<Vec<f32>>,
}

struct StepLoss<'a> {
    loss: &'a PolicyLoss,
    inputs: &'a [Inputs],
    counts: GlobalCounts,
    mismatch: Mismatch,
}

impl LossFn for StepLoss<'_> {
    fn loss(&self, micro_batch: usize, scores: &TokenScores) -> Result<LossGrad, AlgoError> {
        let inputs = &self.inputs[micro_batch];
        let batch = LossBatch {
            rows: &inputs.rows,
            advantage: inputs.advantage.as_deref(),
            // The sampler's numbers are the trainer's, bit for bit, so no pass is spent on computing them again.
            old_logprob: inputs.behavior.as_deref(),
            behavior_logprob: inputs.behavior.as_deref(),
            reference_logprob: inputs.reference.as_deref(),
            mismatch: self.mismatch,
        };
        policy_loss(self.loss, &batch, scores, &self.counts)
    }
}

impl BatchTraining {
    /// Trains on a batch: `epochs` passes of `minibatches` optimiser steps each. `learning_rate` gives the rate of
    /// the n-th optimiser step of this batch; `progress` is told of sequences trained on and their total.
    pub(crate) fn train(
        &self,
        engine: &mut dyn TrainEngine,
        groups: &[Group],
        learning_rate: &dyn Fn(u64) -> f64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BatchReport, TrainError> {
        let reference = self.reference_scores(engine, groups)?;
        let advantages = self.advantages(groups, &reference)?;
        let parts = split(groups.len(), self.algorithm.minibatches as usize);
        let mut report = BatchReport::default();
        if let Some(advantages) = &advantages {
            let first =
                |row: &Vec<rloom_algo::EpisodeAdvantage>| row.iter().map(|a| f64::from(a.at(0))).collect();
            report.advantages = advantages.episodes.iter().map(first).collect();
        }
        let steps = u64::from(self.algorithm.epochs) * parts.len() as u64;
        let mut measured = Vec::new();
        let mut norms = 0.0;
        for _ in 0..self.algorithm.epochs {
            for part in &parts {
                let members = members(groups, part.clone());
                let packed = pack(members.iter().map(|m| m.trajectory), self.micro_batch_tokens)?;
                let inputs = inputs(&packed, &members, advantages.as_ref(), &reference);
                let loss = StepLoss {
                    loss: &self.algorithm.loss,
                    inputs: &inputs,
                    counts: GlobalCounts::of_lengths(
                        members.iter().map(|m| m.trajectory.policy_tokens()),
                        self.completion_limit,
                    ),
                    // Later steps have other weights than the sampler had.
                    mismatch: if report.optimizer_steps == 0 && advantages.is_some() {
                        Mismatch::Scores
                    } else {
                        Mismatch::Unmeasured
                    },
                };
                let accumulated = engine.accumulate(&packed, &loss)?;
                measured.push(accumulated.terms.finish(&loss.counts)?);
                report.tokens += accumulated.tokens;
                report.learning_rate = learning_rate(report.optimizer_steps);
                norms += engine.step(&OptimStep { learning_rate: report.learning_rate })?.grad_norm;
                report.optimizer_steps += 1;
                progress(report.optimizer_steps, steps);
            }
        }
        report.metrics = LossMetrics::over_steps(&measured);
        report.grad_norm = norms / steps.max(1) as f64;
        Ok(report)
    }

    /// The reference's log-probabilities of each trained trajectory, in batch order; empty where nothing reads them.
    fn reference_scores(
        &self,
        engine: &mut dyn TrainEngine,
        groups: &[Group],
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        if !self.algorithm.needs_reference() {
            return Ok(Vec::new());
        }
        let members = members(groups, 0..groups.len());
        let packed = pack(members.iter().map(|m| m.trajectory), self.micro_batch_tokens)?;
        let scores = engine.score(Which::Reference, &packed)?;
        let mut out = Vec::with_capacity(members.len());
        for (batch, scores) in packed.iter().zip(&scores) {
            out.extend(batch.sequences.iter().map(|rows| scores.logprob[rows.clone()].to_vec()));
        }
        Ok(out)
    }

    fn advantages(&self, groups: &[Group], reference: &[Vec<f32>]) -> Result<Option<Advantages>, TrainError> {
        let Some(spec) = &self.algorithm.advantage else {
            return Ok(None);
        };
        // Log-probabilities of an episode, segment after segment.
        let old: Vec<Vec<f32>> = groups
            .iter()
            .flat_map(|g| &g.episodes)
            .map(|e| e.segments.iter().flat_map(|s| s.logprobs.iter().copied()).collect())
            .collect();
        let mut references = reference.iter();
        let per_episode: Vec<Vec<f32>> = groups
            .iter()
            .flat_map(|g| &g.episodes)
            .map(|e| {
                let trained = if e.role == Role::Train { e.segments.len() } else { 0 };
                references.by_ref().take(trained).flatten().copied().collect()
            })
            .collect();
        let mut numbers = old.iter().zip(&per_episode);
        let rewards: Vec<GroupRewards<'_>> = groups
            .iter()
            .map(|group| GroupRewards {
                episodes: group
                    .episodes
                    .iter()
                    .zip(numbers.by_ref())
                    .map(|(episode, (old, reference))| EpisodeRewards {
                        role: episode.role,
                        reward: episode.rewards.total(),
                        tokens: episode.policy_tokens(),
                        old_logprob: old,
                        reference_logprob: reference,
                    })
                    .collect(),
            })
            .collect();
        Ok(Some(advantages(spec, &rewards)?))
    }
}

/// A trajectory with its place in the batch.
struct Member<'a> {
    trajectory: &'a Trajectory,
    group: usize,
    episode: usize,
    /// Policy tokens of the episode before this segment.
    offset: usize,
    /// Its place among all trained trajectories of the batch.
    place: usize,
}

/// The trained trajectories of some groups, in order.
fn members(groups: &[Group], part: Range<usize>) -> Vec<Member<'_>> {
    let mut out = Vec::new();
    let mut place = 0;
    for (g, group) in groups.iter().enumerate() {
        for (e, episode) in group.episodes.iter().enumerate() {
            if episode.role != Role::Train {
                continue;
            }
            let mut offset = 0;
            for trajectory in &episode.segments {
                if part.contains(&g) {
                    out.push(Member { trajectory, group: g, episode: e, offset, place });
                }
                offset += trajectory.policy_tokens();
                place += 1;
            }
        }
    }
    out
}

/// `n` groups in `parts` contiguous ranges whose lengths differ by at most one; none is empty.
fn split(n: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.clamp(1, n.max(1));
    (0..parts).map(|i| i * n / parts..(i + 1) * n / parts).collect()
}

fn inputs(
    packed: &[PackedBatch],
    members: &[Member<'_>],
    advantages: Option<&Advantages>,
    reference: &[Vec<f32>],
) -> Vec<Inputs> {
    let mut members = members.iter();
    packed
        .iter()
        .map(|batch| {
            let mut advantage = Vec::new();
            let mut references = Vec::new();
            for (rows, member) in batch.sequences.iter().zip(members.by_ref()) {
                if let Some(advantages) = advantages {
                    advantages.episodes[member.group][member.episode]
                        .extend_into(member.offset..member.offset + rows.len(), &mut advantage);
                }
                if let Some(values) = reference.get(member.place) {
                    references.extend_from_slice(values);
                }
            }
            Inputs {
                rows: batch.sequences.clone(),
                behavior: advantages.is_some().then(|| batch.behavior_logprob.clone()),
                advantage: advantages.is_some().then_some(advantage),
                reference: (!reference.is_empty()).then_some(references),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_in_one_minibatch() {
        for n in 1..20 {
            for parts in 1..8 {
                let ranges = split(n, parts);
                assert_eq!(
                    ranges.iter().flat_map(Clone::clone).collect::<Vec<_>>(),
                    (0..n).collect::<Vec<_>>()
                );
                assert!(ranges.iter().all(|r| !r.is_empty()));
                let lengths: Vec<usize> = ranges.iter().map(Range::len).collect();
                assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
            }
        }
    }
}
