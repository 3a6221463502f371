//! The trained trajectories of a batch, and their numbers as micro-batches have them.

use std::ops::Range;

use rloom_algo::{Advantages, LossInputs, Mismatch, TokenScores};
use rloom_core::{Group, PolicyVersion, Role, Trajectory};
use rloom_engine::PackedBatch;

/// A trained trajectory with its place in the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) trajectory: &'a Trajectory,
    pub(super) group: usize,
    pub(super) episode: usize,
    /// Policy tokens of the episode before this segment.
    pub(super) offset: usize,
    /// Its place among all trained trajectories of the batch.
    pub(super) place: usize,
}

/// The trained trajectories of a batch, in order.
pub(super) fn members(groups: &[Group]) -> Vec<Member<'_>> {
    let mut out = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        for (e, episode) in group.episodes.iter().enumerate().filter(|(_, e)| e.role == Role::Train) {
            let mut offset = 0;
            for trajectory in &episode.segments {
                out.push(Member { trajectory, group: g, episode: e, offset, place: out.len() });
                offset += trajectory.policy_tokens();
            }
        }
    }
    out
}

/// Whether one version sampled every policy token of a trajectory, and it is known that it did.
pub(super) fn is_of_version(trajectory: &Trajectory, version: PolicyVersion) -> bool {
    let sampled: usize = trajectory.versions.iter().map(|span| span.range.len()).sum();
    trajectory.versions.iter().all(|span| span.version == version) && sampled == trajectory.policy_tokens()
}

/// `n` groups in `parts` contiguous ranges whose lengths differ by at most one; none is empty.
pub(super) fn split(n: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.clamp(1, n.max(1));
    (0..parts).map(|i| i * n / parts..(i + 1) * n / parts).collect()
}

/// Numbers of each trained trajectory, by its place in the batch. What nothing reads is empty.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The reference's log-probabilities.
    pub(super) reference: Vec<Vec<f32>>,
    /// The policy's before the first optimiser step; empty where the sampler's are those.
    pub(super) old: Vec<Vec<f32>>,
    /// α of [`LossInputs::interpolation`].
    pub(super) interpolation: Vec<Vec<f32>>,
    /// Values before the first optimiser step, and after the last token.
    pub(super) values: Vec<Vec<f32>>,
    pub(super) last_values: Vec<f32>,
    /// What the values should have been.
    pub(super) returns: Vec<Vec<f32>>,
    /// The process-reward model's log-probabilities, and those of what it started from.
    pub(super) prm: Vec<Vec<f32>>,
    pub(super) prm_reference: Vec<Vec<f32>>,
    /// Whether each is trained on by none of its tokens.
    pub(super) masked: Vec<bool>,
}

/// Scores of packed micro-batches, taken apart by trajectory.
pub(super) struct Apart {
    pub(super) logprob: Vec<Vec<f32>>,
    pub(super) value: Vec<Vec<f32>>,
    pub(super) last_value: Vec<f32>,
}

/// Takes the scores of a whole batch apart, in the order in which it was packed.
pub(super) fn apart(packed: &[PackedBatch], scores: &[TokenScores]) -> Apart {
    let mut out = Apart { logprob: Vec::new(), value: Vec::new(), last_value: Vec::new() };
    for (batch, scores) in packed.iter().zip(scores) {
        for rows in &batch.sequences {
            out.logprob.extend(scores.logprob.get(rows.clone()).map(<[f32]>::to_vec));
            out.value.extend(scores.value.get(rows.clone()).map(<[f32]>::to_vec));
        }
        out.last_value.extend_from_slice(&scores.last_value);
    }
    out
}

/// Numbers of all trajectories, gathered in the order of some of them.
fn gathered(all: &[Vec<f32>], members: &[Member<'_>]) -> Option<Vec<f32>> {
    let own = |m: &Member<'_>| all.get(m.place).into_iter().flatten().copied();
    (!all.is_empty()).then(|| members.iter().flat_map(own).collect())
}

/// Each micro-batch with its own members, where they were packed in their order.
fn with_members<'a>(
    packed: &'a [PackedBatch],
    members: &'a [Member<'a>],
) -> impl Iterator<Item = (&'a PackedBatch, &'a [Member<'a>])> {
    let mut start = 0;
    packed.iter().map(move |batch| {
        let own = &members[start..start + batch.sequences.len()];
        start += own.len();
        (batch, own)
    })
}

/// The inputs of packed micro-batches that hold `members` in their order.
pub(super) fn inputs(
    packed: &[PackedBatch],
    members: &[Member<'_>],
    known: &Known,
    advantages: Option<&Advantages>,
    mismatch: Mismatch,
) -> Vec<LossInputs> {
    with_members(packed, members)
        .map(|(batch, own)| {
            let advantage = advantages.map(|advantages| {
                let mut flat = Vec::with_capacity(batch.rows.len());
                for (rows, m) in batch.sequences.iter().zip(own) {
                    let range = m.offset..m.offset + rows.len();
                    advantages.episodes[m.group][m.episode].extend_into(range, &mut flat);
                }
                flat
            });
            LossInputs {
                rows: batch.sequences.clone(),
                masked: own.iter().filter_map(|m| known.masked.get(m.place).copied()).collect(),
                behavior: advantage.is_some().then(|| batch.behavior_logprob.clone()),
                advantage,
                old: gathered(&known.old, own),
                interpolation: gathered(&known.interpolation, own),
                reference: gathered(&known.reference, own),
                returns: gathered(&known.returns, own),
                old_value: gathered(&known.values, own),
                outcome: None,
                mismatch,
            }
        })
        .collect()
}

/// The inputs of the process-reward model's loss, with `outcomes` by the trajectories' places; without one, a trajectory
/// is masked.
pub(super) fn outcome_inputs(
    packed: &[PackedBatch],
    members: &[Member<'_>],
    known: &Known,
    outcomes: &[Option<f64>],
) -> Vec<LossInputs> {
    with_members(packed, members)
        .map(|(batch, own)| {
            let outcome = |m: &Member<'_>| outcomes.get(m.place).copied().flatten();
            LossInputs {
                rows: batch.sequences.clone(),
                masked: own.iter().map(|m| outcome(m).is_none()).collect(),
                reference: gathered(&known.prm_reference, own),
                outcome: Some(own.iter().map(|m| outcome(m).unwrap_or(0.0) as f32).collect()),
                ..LossInputs::default()
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
