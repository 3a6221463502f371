//! What several agents know together: the sequences that a centralised critic reads.

use std::collections::BTreeMap;
use std::ops::Range;

use rloom_algo::Mismatch;
use rloom_core::{Author, Episode, Group, Role, Span, StopReason, Trajectory};
use rloom_engine::{TrainEngine, TrainError, Which};

use crate::batch::Minibatch;
use crate::report::StepMeasurements;
use crate::rows::{Member, loss_inputs, split_scores};
use crate::scores::place;
use crate::{BatchReport, BatchScores, BatchTrainer, Models};

/// The trained episodes of a batch, each as one sequence.
#[derive(Debug, Default)]
pub(crate) struct JointSequences {
    /// Group and episode of each sequence.
    places: Vec<(usize, usize)>,
    sequences: Vec<Trajectory>,
}

impl JointSequences {
    /// The sequences of the trained episodes of a batch.
    pub(crate) fn of(groups: &[Group]) -> Self {
        let mut own = Self::default();
        for (g, group) in groups.iter().enumerate() {
            for (e, episode) in group.episodes.iter().enumerate().filter(|(_, e)| e.role == Role::Train) {
                own.places.push((g, e));
                own.sequences.push(joint_sequence(episode));
            }
        }
        own
    }

    /// Those with a round, as members of a batch.
    pub(crate) fn members(&self) -> Vec<Member<'_>> {
        let all = self.places.iter().zip(&self.sequences).enumerate();
        let valued = all.filter(|(_, (_, trajectory))| trajectory.policy_tokens() > 0);
        valued
            .map(|(place, (&(group, episode), trajectory))| Member {
                trajectory,
                group,
                episode,
                offset: 0,
                before: 0,
                episode_tokens: trajectory.policy_tokens(),
                place,
            })
            .collect()
    }
}

impl BatchTrainer {
    /// The sequences of a batch, if a critic values them.
    pub(crate) fn joint_sequences(&self, groups: &[Group]) -> Option<JointSequences> {
        self.algorithm.critic.filter(|critic| critic.is_joint).map(|_| JointSequences::of(groups))
    }

    /// Values before each round of the trained episodes.
    pub(crate) fn round_values<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        joint: &JointSequences,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let Some(critic) = &mut models.critic else { return Ok(Vec::new()) };
        let members = joint.members();
        let packed = self.pack(&members)?;
        let values = split_scores(&packed, &critic.score(Which::Policy, &packed)?).value;
        let mut all = vec![Vec::new(); joint.sequences.len()];
        place(&members, values, &mut all);
        Ok(all)
    }

    /// A step of the critic on the episodes of some groups.
    pub(crate) fn joint_critic_step<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        joint: &JointSequences,
        part: &Range<usize>,
        known: &BatchScores,
        measured: &mut StepMeasurements,
        report: &mut BatchReport,
    ) -> Result<(), TrainError> {
        let own: Vec<Member<'_>> = joint.members().into_iter().filter(|m| part.contains(&m.group)).collect();
        if own.is_empty() {
            return Ok(());
        }
        let packed = self.pack(&own)?;
        let targets = BatchScores {
            values: known.round_values.clone(),
            returns: known.round_returns.clone(),
            ..BatchScores::default()
        };
        let inputs = loss_inputs(&packed, &own, &targets, None, Mismatch::Unmeasured);
        let minibatch = Minibatch {
            members: &own,
            known: &targets,
            packed: &packed,
            inputs: &inputs,
            counts: self.counts(&own),
        };
        self.critic_step(models, &minibatch, measured, report)
    }
}

/// An episode as one sequence: round by round what the agents read before their turns, then their turns. The first token of
/// each round's turns counts as the policy's, so that its value is that of all tokens before the turns.
fn joint_sequence(episode: &Episode) -> Trajectory {
    let mut rounds: BTreeMap<u32, Vec<(usize, Range<usize>)>> = BTreeMap::new();
    for (place, segment) in episode.segments.iter().enumerate() {
        let turns =
            segment.spans.iter().filter(|span| span.author == Author::Policy && !span.range.is_empty());
        for span in turns {
            if let Some(round) = span.round {
                rounds.entry(round).or_default().push((place, span.range.clone()));
            }
        }
    }
    let mut joint = Trajectory {
        key: episode.segments.first().map(|first| first.key).unwrap_or_default(),
        agent: None,
        tokens: Vec::new(),
        spans: Vec::new(),
        logprobs: vec![0.0; rounds.len()],
        versions: Vec::new(),
        stop: StopReason::StopToken,
        attachments: Vec::new(),
    };
    let mut read = vec![0; episode.segments.len()];
    for turns in rounds.values() {
        let author = if joint.tokens.is_empty() { Author::Prompt } else { Author::Environment };
        for (place, turn) in turns {
            append(&mut joint, author, &episode.segments[*place].tokens[read[*place]..turn.start]);
            read[*place] = turn.end;
        }
        for (number, (place, turn)) in turns.iter().enumerate() {
            let written = &episode.segments[*place].tokens[turn.clone()];
            let (valued, rest) = written.split_at(usize::from(number == 0));
            append(&mut joint, Author::Policy, valued);
            append(&mut joint, Author::Environment, rest);
        }
    }
    joint
}

/// Appends tokens, to the last span if it has the same author.
fn append(joint: &mut Trajectory, author: Author, tokens: &[u32]) {
    if tokens.is_empty() {
        return;
    }
    let from = joint.tokens.len();
    joint.tokens.extend_from_slice(tokens);
    let end = joint.tokens.len();
    match joint.spans.last_mut().filter(|span| span.author == author && author != Author::Policy) {
        Some(span) => span.range.end = end,
        None => joint.spans.push(Span::new(author, from..end)),
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{Rewards, SampleKey};

    use super::*;

    fn segment(agent: &str, parts: &[(Author, Option<u32>, &[u32])]) -> Trajectory {
        let (mut tokens, mut spans) = (Vec::new(), Vec::new());
        for (author, round, own) in parts {
            let from = tokens.len();
            tokens.extend_from_slice(own);
            spans.push(Span { round: *round, ..Span::new(*author, from..tokens.len()) });
        }
        let policy: usize = spans.iter().filter(|s| s.author == Author::Policy).map(|s| s.range.len()).sum();
        Trajectory {
            key: SampleKey::default(),
            agent: Some(agent.to_owned()),
            logprobs: vec![-1.0; policy],
            versions: Vec::new(),
            stop: StopReason::StopToken,
            attachments: Vec::new(),
            tokens,
            spans,
        }
    }

    /// Agent `a` has a conversation, `b` a prompt for each turn; both act in round 0, then `b`, then `a`.
    #[test]
    fn rounds_follow_each_other_with_what_was_read_before_them() {
        use Author::{Environment, Policy, Prompt};
        let segments = vec![
            segment(
                "a",
                &[
                    (Prompt, None, &[1, 2]),
                    (Policy, Some(0), &[3, 4]),
                    (Environment, None, &[5]),
                    (Policy, Some(2), &[6]),
                ],
            ),
            segment("b", &[(Prompt, None, &[10]), (Policy, Some(0), &[11])]),
            segment("b", &[(Prompt, None, &[12]), (Policy, Some(1), &[13, 14])]),
        ];
        let episode = Episode { role: Role::Train, segments, rewards: Rewards::default() };
        let joint = joint_sequence(&episode);
        joint.validate().unwrap();
        assert_eq!(joint.tokens, [1, 2, 10, 3, 4, 11, 12, 13, 14, 5, 6]);
        let valued: Vec<usize> = joint.policy_ranges().flatten().collect();
        assert_eq!(valued, [3, 7, 10]);
        assert_eq!(joint.leading_prompt(), 3);
    }
}
