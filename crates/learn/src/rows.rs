//! Trained trajectories of a batch, and the inputs of the loss in the order of packed micro-batches.

use std::ops::Range;

use rloom_algo::{Advantages, GlobalCounts, LossInputs, Mismatch, TokenScores};
use rloom_core::{Group, PolicyId, PolicyVersion, Role, Trajectory};
use rloom_engine::PackedBatch;

use crate::BatchScores;

/// A trained trajectory and its position in the batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) trajectory: &'a Trajectory,
    pub(crate) group: usize,
    pub(crate) episode: usize,
    /// Policy tokens of the episode that precede this segment.
    pub(crate) offset: usize,
    /// Those among them that were sampled by the policies whose segments are trained together.
    pub(crate) before: usize,
    /// Policy tokens of the whole episode, of the same policies.
    pub(crate) episode_tokens: usize,
    /// Index among all trained trajectories of the batch.
    pub(crate) place: usize,
}

/// Returns the trained trajectories of a batch, in order.
pub(crate) fn members(groups: &[Group]) -> Vec<Member<'_>> {
    let mut out = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        for (e, episode) in group.episodes.iter().enumerate().filter(|(_, e)| e.role == Role::Train) {
            let (mut offset, episode_tokens) = (0, episode.policy_tokens());
            for trajectory in &episode.segments {
                let (place, before) = (out.len(), offset);
                out.push(Member { trajectory, group: g, episode: e, offset, before, episode_tokens, place });
                offset += trajectory.policy_tokens();
            }
        }
    }
    out
}

/// The policy that sampled a trajectory.
fn sampled_by(trajectory: &Trajectory) -> PolicyId {
    trajectory.versions.first().map_or(PolicyId::MAIN, |span| span.policy)
}

/// Returns the trajectories that `policy` sampled. Its part of an episode counts as an episode of its own.
pub(crate) fn of_policy<'a>(members: &[Member<'a>], policy: PolicyId) -> Vec<Member<'a>> {
    let mut own: Vec<Member<'a>> =
        members.iter().filter(|m| sampled_by(m.trajectory) == policy).copied().collect();
    for episode in own.chunk_by_mut(|a, b| (a.group, a.episode) == (b.group, b.episode)) {
        let episode_tokens = episode.iter().map(|m| m.trajectory.policy_tokens()).sum();
        let mut before = 0;
        for member in episode {
            (member.before, member.episode_tokens) = (before, episode_tokens);
            before += member.trajectory.policy_tokens();
        }
    }
    own
}

/// Counts of the trajectories of an optimiser step.
pub(crate) fn counts(members: &[Member<'_>], completion_limit: u64) -> GlobalCounts {
    let lengths = members.iter().map(|m| m.trajectory.policy_tokens());
    let counts = GlobalCounts::of_lengths(lengths, completion_limit);
    let is_further = |m: &&Member<'_>| m.before > 0 && m.trajectory.policy_tokens() > 0;
    GlobalCounts { further_segments: members.iter().filter(is_further).count() as u64, ..counts }
}

/// Policy tokens of the episode of each member; empty if none has further segments.
fn episode_tokens(members: &[Member<'_>]) -> Vec<usize> {
    if members.iter().all(|m| m.episode_tokens == m.trajectory.policy_tokens()) {
        return Vec::new();
    }
    members.iter().map(|m| m.episode_tokens).collect()
}

/// True if `version` is known to have sampled every policy token of a trajectory.
pub(crate) fn is_of_version(trajectory: &Trajectory, version: PolicyVersion) -> bool {
    let sampled: usize = trajectory.versions.iter().map(|span| span.range.len()).sum();
    trajectory.versions.iter().all(|span| span.version == version) && sampled == trajectory.policy_tokens()
}

/// Splits `n` groups into `parts` contiguous, non-empty ranges whose lengths differ by at most one.
pub(crate) fn split_groups(n: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.clamp(1, n.max(1));
    (0..parts).map(|i| i * n / parts..(i + 1) * n / parts).collect()
}

/// Scores split by trajectory.
pub(crate) struct SplitScores {
    pub(crate) logprob: Vec<Vec<f32>>,
    pub(crate) value: Vec<Vec<f32>>,
    pub(crate) last_value: Vec<f32>,
}

/// Splits the scores of packed micro-batches by trajectory, in packed order.
pub(crate) fn split_scores(packed: &[PackedBatch], scores: &[TokenScores]) -> SplitScores {
    let mut out = SplitScores { logprob: Vec::new(), value: Vec::new(), last_value: Vec::new() };
    for (batch, scores) in packed.iter().zip(scores) {
        for rows in &batch.sequences {
            out.logprob.extend(scores.logprob.get(rows.clone()).map(<[f32]>::to_vec));
            out.value.extend(scores.value.get(rows.clone()).map(<[f32]>::to_vec));
        }
        out.last_value.extend_from_slice(&scores.last_value);
    }
    out
}

/// Gathers the numbers of `members` from those of all trajectories; `None` if there are none.
fn gathered(all: &[Vec<f32>], members: &[Member<'_>]) -> Option<Vec<f32>> {
    let own = |m: &Member<'_>| all.get(m.place).into_iter().flatten().copied();
    (!all.is_empty()).then(|| members.iter().flat_map(own).collect())
}

/// Pairs each micro-batch with its members, which were packed in order.
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

/// Returns the loss inputs of packed micro-batches that hold `members` in order.
pub(crate) fn loss_inputs(
    packed: &[PackedBatch],
    members: &[Member<'_>],
    known: &BatchScores,
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
            let is_sampled = advantage.is_some() || mismatch != Mismatch::Unmeasured;
            LossInputs {
                rows: batch.sequences.clone(),
                masked: own.iter().filter_map(|m| known.masked.get(m.place).copied()).collect(),
                episode_tokens: episode_tokens(own),
                behavior: is_sampled.then(|| batch.behavior_logprob.clone()),
                advantage,
                old: gathered(&known.old, own),
                interpolation: gathered(&known.interpolation, own),
                reference: gathered(&known.reference, own),
                sharpened: None,
                returns: gathered(&known.returns, own),
                old_value: gathered(&known.values, own),
                outcome: (!known.labels.is_empty())
                    .then(|| own.iter().filter_map(|m| known.labels.get(m.place).copied()).collect()),
                margin: (!known.margins.is_empty())
                    .then(|| own.iter().filter_map(|m| known.margins.get(m.place).copied()).collect()),
                steps: own.iter().filter_map(|m| known.steps.get(m.place).cloned()).collect(),
                teacher: None,
                given: None,
                mismatch,
            }
        })
        .collect()
}

/// Returns the inputs of the process-reward model's loss. `outcomes` are indexed by trajectory; one without an outcome is
/// masked.
pub(crate) fn outcome_inputs(
    packed: &[PackedBatch],
    members: &[Member<'_>],
    known: &BatchScores,
    outcomes: &[Option<f64>],
) -> Vec<LossInputs> {
    with_members(packed, members)
        .map(|(batch, own)| {
            let outcome = |m: &Member<'_>| outcomes.get(m.place).copied().flatten();
            LossInputs {
                rows: batch.sequences.clone(),
                masked: own.iter().map(|m| outcome(m).is_none()).collect(),
                episode_tokens: episode_tokens(own),
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
    fn every_group_is_in_exactly_one_minibatch() {
        for n in 1..20 {
            for parts in 1..8 {
                let ranges = split_groups(n, parts);
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
