//! Preferences of a batch: pairs among its episodes, labels of its trajectories, and the anchor of an optimiser step.

use std::borrow::Cow;

use rloom_algo::{
    AlgoError, AlgorithmState, Anchor, Filters, LossInputs, Preference, Score, TokenScores, best_and_worst,
};
use rloom_core::{Author, Episode, Group, PREFERENCE, RewardComponent, Role, Span, Trajectory};
use rloom_engine::{PackedBatch, TrainEngine, TrainError, Which, pack_unshared};

use crate::BatchTrainer;
use crate::rows::Member;

/// Returns the best and the worst trained episode of each group, labelled as chosen and rejected.
pub(crate) fn pairs(filters: &Filters, groups: &[Group]) -> Result<Vec<Group>, AlgoError> {
    let of_group = |group: &Group| {
        let trained: Vec<&Episode> = group.episodes.iter().filter(|e| e.role == Role::Train).collect();
        let rewards: Vec<Option<f64>> = trained.iter().map(|e| filters.compared_reward(e)).collect();
        let ticket = group.ticket.0;
        let (best, worst) = best_and_worst(&rewards).ok_or(AlgoError::NoPair { ticket })?;
        let labelled = |index: usize, label: f64| {
            let mut episode = trained[index].clone();
            let segments = episode.segments.len();
            if segments != 1 {
                return Err(AlgoError::DividedPair { ticket, segments });
            }
            episode.rewards.components.push(RewardComponent::new(PREFERENCE, 0.0, Some(label)));
            Ok(episode)
        };
        let episodes = vec![labelled(best, 1.0)?, labelled(worst, 0.0)?];
        Ok(Group { ticket: group.ticket, task: group.task.clone(), episodes })
    };
    groups.iter().map(of_group).collect()
}

/// Returns the label of each trained trajectory: 1 for a chosen or desirable completion, 0 for the other.
pub(crate) fn labels(groups: &[Group]) -> Result<Vec<f32>, TrainError> {
    let mut labels = Vec::new();
    for episode in groups.iter().flat_map(|group| &group.episodes).filter(|e| e.role == Role::Train) {
        let component = episode.rewards.components.iter().rfind(|component| component.name == PREFERENCE);
        let Some(label) = component.and_then(RewardComponent::value) else {
            return Err(AlgoError::Missing { what: Score::Outcome }.into());
        };
        labels.extend(std::iter::repeat_n(label as f32, episode.segments.len()));
    }
    Ok(labels)
}

impl BatchTrainer {
    /// Adds the policy's log-probabilities at half the temperature, for a loss that reads them.
    pub(crate) fn add_sharpened<E: TrainEngine>(
        &self,
        engine: &mut E,
        packed: &[PackedBatch],
        inputs: &mut Cow<'_, [LossInputs]>,
    ) -> Result<(), TrainError> {
        if !self.algorithm.preference.is_some_and(|loss| loss.reads_sharpened()) {
            return Ok(());
        }
        let mut at_half = packed.to_vec();
        for inverse in at_half.iter_mut().flat_map(|batch| &mut batch.inv_temperature) {
            *inverse *= 2.0;
        }
        let scores = engine.score(Which::Policy, &at_half)?;
        for (inputs, scores) in inputs.to_mut().iter_mut().zip(scores) {
            inputs.sharpened = Some(scores.logprob);
        }
        Ok(())
    }

    /// The anchor of an optimiser step on `members`, and the state after it. `reference` are the log-probabilities of the
    /// reference by trajectory. The policy scores once more, without a gradient.
    pub(crate) fn anchor<E: TrainEngine>(
        &self,
        engine: &mut E,
        preference: &Preference,
        (members, packed): (&[Member<'_>], &[PackedBatch]),
        reference: &[Vec<f32>],
        state: &mut AlgorithmState,
    ) -> Result<f64, TrainError> {
        match preference.anchor() {
            None => Ok(0.0),
            Some(Anchor::ChosenTokens) => {
                // Pairs have the chosen completion first.
                let chosen = members.iter().step_by(2).map(|member| member.trajectory.policy_tokens());
                Ok(chosen.clone().sum::<usize>() as f64 / chosen.len().max(1) as f64)
            }
            Some(Anchor::Running) => {
                let policy = sums(packed, &engine.score(Which::Policy, packed)?);
                let of_reference =
                    members.iter().map(|m| reference.get(m.place).map_or(&[][..], Vec::as_slice));
                let log_ratios: Vec<f64> =
                    policy.iter().zip(of_reference).map(|(policy, own)| policy - sum(own)).collect();
                let mean = preference.running_anchor(state.anchor.unwrap_or_default(), &log_ratios);
                state.anchor = Some(mean);
                Ok(mean.mean)
            }
            Some(Anchor::Mismatched) => {
                if members.len() < 2 {
                    return Err(AlgoError::OneCompletion.into());
                }
                let mismatched = mismatched(members, self.completion_limit as usize);
                let packed = pack_unshared(&mismatched, self.micro_batch_tokens)?;
                let policy = sums(&packed, &engine.score(Which::Policy, &packed)?);
                let reference = self.reference_logprobs(engine, &mismatched)?;
                let log_ratios: Vec<f64> = policy.iter().zip(&reference).map(|(p, r)| p - sum(r)).collect();
                Ok(Preference::mismatched_anchor(&log_ratios))
            }
        }
    }
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum()
}

/// Summed log-probability of each sequence, in packed order.
fn sums(packed: &[PackedBatch], scores: &[TokenScores]) -> Vec<f64> {
    let of_batch = |(batch, scores): (&PackedBatch, &TokenScores)| -> Vec<f64> {
        let of = |rows: &std::ops::Range<usize>| sum(scores.logprob.get(rows.clone()).unwrap_or_default());
        batch.sequences.iter().map(of).collect()
    };
    packed.iter().zip(scores).flat_map(of_batch).collect()
}

/// The prompt of each trajectory with the completion of the one before, the last one before the first. Longer ones are cut to
/// `limit` tokens; those without room for a completion are left out.
pub(crate) fn mismatched(members: &[Member<'_>], limit: usize) -> Vec<Trajectory> {
    let before = members.iter().cycle().skip(members.len() - 1);
    let joined = members.iter().zip(before).map(|(own, other)| join(own.trajectory, other.trajectory, limit));
    joined.filter(|trajectory| trajectory.policy_tokens() > 0).collect()
}

/// The tokens of `prompt` before its first policy token, and those of `completion` from there on.
fn join(prompt: &Trajectory, completion: &Trajectory, limit: usize) -> Trajectory {
    let (start, from) = (prompt.prompt_tokens(), completion.prompt_tokens());
    let mut tokens = prompt.tokens[..start].to_vec();
    tokens.extend_from_slice(&completion.tokens[from..]);
    tokens.truncate(limit.max(start));
    let mut spans: Vec<Span> = prompt.spans.iter().filter(|span| span.range.end <= start).cloned().collect();
    for span in completion.spans.iter().filter(|span| span.range.start >= from) {
        let range = span.range.start - from + start..(span.range.end - from + start).min(tokens.len());
        if range.start < range.end {
            spans.push(Span { range, step: None, ..span.clone() });
        }
    }
    let policy_tokens =
        spans.iter().filter(|span| span.author == Author::Policy).map(|span| span.range.len()).sum();
    Trajectory {
        tokens,
        spans,
        logprobs: vec![0.0; policy_tokens],
        versions: Vec::new(),
        attachments: prompt.attachments.iter().filter(|a| a.position < start).cloned().collect(),
        ..prompt.clone()
    }
}
