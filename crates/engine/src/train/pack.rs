//! Packing of trajectories into micro-batches without padding.

use std::ops::Range;

use rloom_core::{Attachment, Author, SampleKey, Trajectory, TrajectoryError};
use serde::{Deserialize, Serialize};

use super::candidates::{CandidateError, CandidateIds};
use super::even::even_ranges;
use crate::inverse_temperature;

/// A trajectory that cannot be trained on.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum PackError {
    /// A trajectory that contradicts itself.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
    /// A sequence without a policy token.
    #[error("sample {key} has no policy token, so there is nothing to train on")]
    NothingToScore {
        /// The sample.
        key: SampleKey,
    },
}

/// A micro-batch: whole sequences, concatenated without padding.
///
/// Sequences are stored in segments. A sequence on its own is one segment. Neighbours of one ticket with equal prompts
/// are a family: the prompt is a segment without scored tokens, and its children are the remainders of the sequences. A
/// shared prompt is thus computed once; results are bitwise identical to those of separate sequences.
///
/// Scores and coefficients are flat over the scored tokens (those of the policy), in packed order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PackedBatch {
    /// Token ids of all segments, concatenated: `[T]`.
    pub tokens: Vec<u32>,
    /// Start of each segment, and `T` at the end: `[segments + 1]`.
    pub seq_starts: Vec<usize>,
    /// Segment with the prompt that each segment continues; `None` if it starts at position 0: `[segments]`.
    pub parents: Vec<Option<u32>>,
    /// Last segment of each sequence.
    pub segments: Vec<usize>,
    /// Packed index of each scored token: `[S]`.
    pub rows: Vec<u32>,
    /// Inverse temperature at which each scored token was sampled: `[S]`.
    pub inv_temperature: Vec<f32>,
    /// Range of each sequence in `rows`.
    pub sequences: Vec<Range<usize>>,
    /// Key of each sequence.
    pub keys: Vec<SampleKey>,
    /// Log-probability of each scored token when it was sampled; empty for demonstrations.
    pub behavior_logprob: Vec<f32>,
    /// Attachments of each sequence; empty if no sequence has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Vec<Attachment>>,
    /// Token ids whose log-probabilities are requested at each scored position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<CandidateIds>,
}

impl PackedBatch {
    /// The same batch with candidates for its scored positions.
    pub fn with_candidates(self, candidates: CandidateIds) -> Result<Self, CandidateError> {
        let (positions, rows) = (candidates.positions(), self.rows.len());
        if positions != rows {
            return Err(CandidateError::Positions { positions, rows });
        }
        Ok(Self { candidates: Some(candidates), ..self })
    }

    /// Tokens of all sequences, each with its prompt: the size of the batch without sharing.
    pub fn sequence_tokens(&self) -> usize {
        self.segments.iter().map(|&segment| self.own(segment).len() + self.prompt(segment).len()).sum()
    }

    /// A batch of the sequences for which `keep` returns true, in the same order, with the prompts that they share.
    #[must_use]
    pub fn only(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut out = Self::default();
        let mut prompt: Option<(u32, u32)> = None;
        let mut kept_rows = Vec::new();
        for (sequence, &segment) in self.segments.iter().enumerate().filter(|&(sequence, _)| keep(sequence)) {
            let parent = self.parents[segment];
            if parent != prompt.map(|(from, _)| from) {
                prompt = parent.map(|parent| (parent, out.push_segment(self.prompt(segment), None)));
            }
            let base = out.tokens.len();
            let own = out.push_segment(self.own(segment), prompt.map(|(_, to)| to));
            let rows = self.sequences[sequence].clone();
            let first_row = out.rows.len();
            let moved = |&row: &u32| (row as usize - self.seq_starts[segment] + base) as u32;
            out.rows.extend(self.rows[rows.clone()].iter().map(moved));
            out.inv_temperature.extend_from_slice(&self.inv_temperature[rows.clone()]);
            out.behavior_logprob
                .extend_from_slice(self.behavior_logprob.get(rows.clone()).unwrap_or_default());
            kept_rows.extend(rows);
            out.push_sequence(own, first_row, self.keys[sequence]);
            out.attachments.extend(self.attachments.get(sequence).cloned());
        }
        out.candidates =
            self.candidates.as_ref().map(|candidates| candidates.of_positions(kept_rows.into_iter()));
        out
    }

    /// Tokens of a segment.
    fn own(&self, segment: usize) -> &[u32] {
        &self.tokens[self.seq_starts[segment]..self.seq_starts[segment + 1]]
    }

    /// Tokens of the prompt that a segment continues.
    fn prompt(&self, segment: usize) -> &[u32] {
        self.parents[segment].map_or(&[], |parent| self.own(parent as usize))
    }

    fn push_segment(&mut self, tokens: &[u32], parent: Option<u32>) -> u32 {
        if self.seq_starts.is_empty() {
            self.seq_starts.push(0);
        }
        self.tokens.extend_from_slice(tokens);
        self.seq_starts.push(self.tokens.len());
        self.parents.push(parent);
        self.parents.len() as u32 - 1
    }

    fn push_sequence(&mut self, segment: u32, first_row: usize, key: SampleKey) {
        self.segments.push(segment as usize);
        self.sequences.push(first_row..self.rows.len());
        self.keys.push(key);
    }

    /// Adds a family whose first `prompt` tokens are stored once, or a single sequence.
    fn push_family(&mut self, family: &[&Trajectory], prompt: usize) {
        let parent =
            (family.len() > 1 && prompt > 0).then(|| self.push_segment(&family[0].tokens[..prompt], None));
        let shared = if parent.is_some() { prompt } else { 0 };
        for trajectory in family {
            let (base, first_row) = (self.tokens.len(), self.rows.len());
            for span in trajectory.spans.iter().filter(|span| span.author == Author::Policy) {
                self.rows.extend(span.range.clone().map(|i| (base + i - shared) as u32));
                self.inv_temperature.resize(self.rows.len(), inverse_temperature(span.temperature));
            }
            let own = self.push_segment(&trajectory.tokens[shared..], parent);
            self.behavior_logprob.extend_from_slice(&trajectory.logprobs);
            self.push_sequence(own, first_row, trajectory.key);
            self.attachments.push(trajectory.attachments.clone());
        }
    }
}

/// Packs trajectories in order into micro-batches of at most `budget` tokens each, with shared prompts.
///
/// Neighbours of one ticket share the prompt that they begin with, if it is the same, and the budget counts it once. A
/// family stays together unless it exceeds the budget by itself: then it is divided into as few parts as possible, each
/// with the prompt. The number of micro-batches is the smallest that the budget allows, and their sizes are as equal as
/// that number allows; a sequence longer than the budget is a micro-batch of its own. The result is a function of the
/// trajectories and the budget alone, so that the bytes of a gradient do not depend on the machine.
///
/// # Errors
///
/// A trajectory that contradicts itself or has no policy token.
pub fn pack<'a>(
    trajectories: impl IntoIterator<Item = &'a Trajectory>,
    budget: usize,
) -> Result<Vec<PackedBatch>, PackError> {
    let all = checked(trajectories)?;
    let mut families = Vec::new();
    for family in all.chunk_by(|a, b| share_prompt(a, b)) {
        let prompt = leading_prompt(family[0]).len();
        let whole = Family { members: family, prompt };
        if whole.tokens() <= budget {
            families.push(whole);
            continue;
        }
        let rests: Vec<usize> = family.iter().map(|t| t.tokens.len() - prompt).collect();
        let cut = even_ranges(&rests, budget.saturating_sub(prompt));
        families.extend(cut.into_iter().map(|range| Family { members: &family[range], prompt }));
    }
    Ok(fill(&families, budget))
}

/// Packs as [`pack`] does, without sharing prompts.
///
/// # Errors
///
/// As for `pack`.
pub fn pack_unshared<'a>(
    trajectories: impl IntoIterator<Item = &'a Trajectory>,
    budget: usize,
) -> Result<Vec<PackedBatch>, PackError> {
    let all = checked(trajectories)?;
    let alone: Vec<Family<'_>> = all.chunks(1).map(|members| Family { members, prompt: 0 }).collect();
    Ok(fill(&alone, budget))
}

/// Packs as [`pack`] does, with the trajectories of each ticket in one micro-batch, which they may exceed. Their prompt is
/// stored once if `share_prompts` is true and all of them begin with it.
///
/// # Errors
///
/// As for `pack`.
pub fn pack_groups<'a>(
    trajectories: impl IntoIterator<Item = &'a Trajectory>,
    budget: usize,
    share_prompts: bool,
) -> Result<Vec<PackedBatch>, PackError> {
    let all = checked(trajectories)?;
    let groups = all.chunk_by(|a, b| a.key.ticket == b.key.ticket).map(|members| {
        let shares = share_prompts && members.windows(2).all(|pair| share_prompt(pair[0], pair[1]));
        Family { members, prompt: if shares { leading_prompt(members[0]).len() } else { 0 } }
    });
    Ok(fill(&groups.collect::<Vec<_>>(), budget))
}

/// Neighbours that begin with the same `prompt` tokens, or a single sequence.
#[derive(Clone, Copy)]
struct Family<'a> {
    members: &'a [&'a Trajectory],
    prompt: usize,
}

impl Family<'_> {
    /// Packed size in tokens.
    fn tokens(&self) -> usize {
        let all: usize = self.members.iter().map(|t| t.tokens.len()).sum();
        all - self.prompt * (self.members.len() - 1)
    }
}

fn checked<'a>(
    trajectories: impl IntoIterator<Item = &'a Trajectory>,
) -> Result<Vec<&'a Trajectory>, PackError> {
    let mut all = Vec::new();
    for trajectory in trajectories {
        trajectory.validate()?;
        if trajectory.policy_tokens() == 0 {
            return Err(PackError::NothingToScore { key: trajectory.key });
        }
        all.push(trajectory);
    }
    Ok(all)
}

/// Tokens of the task before the first of another author.
fn leading_prompt(trajectory: &Trajectory) -> &[u32] {
    let first = trajectory.spans.first().filter(|span| span.author == Author::Prompt);
    first.and_then(|span| trajectory.tokens.get(span.range.clone())).unwrap_or_default()
}

/// True if both begin with the same prompt of the same ticket: the same tokens with the same attachments.
fn share_prompt(a: &Trajectory, b: &Trajectory) -> bool {
    let prompt = leading_prompt(a);
    let attached = |t: &Trajectory| -> Vec<Attachment> {
        t.attachments.iter().filter(|attachment| attachment.position < prompt.len()).cloned().collect()
    };
    a.key.ticket == b.key.ticket
        && !prompt.is_empty()
        && prompt == leading_prompt(b)
        && attached(a) == attached(b)
}

fn fill(families: &[Family<'_>], budget: usize) -> Vec<PackedBatch> {
    let sizes: Vec<usize> = families.iter().map(Family::tokens).collect();
    let batch = |range: Range<usize>| {
        let mut batch = PackedBatch::default();
        for family in &families[range] {
            batch.push_family(family.members, family.prompt);
        }
        if batch.attachments.iter().all(Vec::is_empty) {
            batch.attachments.clear();
        }
        batch
    };
    even_ranges(&sizes, budget).into_iter().map(batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rloom_core::{Span, StopReason, Ticket};

    fn trajectory(ticket: u64, prompt: usize, policy: usize, temperature: f32) -> Trajectory {
        let n = prompt + policy;
        Trajectory {
            key: SampleKey { ticket: Ticket(ticket), sample: 0, segment: 0 },
            agent: None,
            tokens: (0..n as u32).map(|i| i + 100 * ticket as u32).collect(),
            spans: vec![
                Span::new(Author::Prompt, 0..prompt),
                Span::new(Author::Policy, prompt..n).with_temperature(temperature),
            ],
            logprobs: (0..policy).map(|i| -(i as f32) - ticket as f32).collect(),
            versions: vec![],
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        }
    }

    /// Trajectories of neighbouring tickets; `(ticket changes, prompt, policy tokens)`, prompts of a kind being equal.
    fn group(shapes: &[(bool, usize, usize)]) -> Vec<Trajectory> {
        let mut ticket = 0;
        let of = |(sample, &(next, prompt, policy)): (usize, &(bool, usize, usize))| {
            ticket += u64::from(next);
            let mut t = trajectory(ticket, prompt, policy, 0.5);
            t.key.sample = sample as u32;
            for token in &mut t.tokens[prompt..] {
                *token += 1000 * (1 + sample as u32);
            }
            t
        };
        shapes.iter().enumerate().map(of).collect()
    }

    /// A sequence as it was packed: its tokens, those that are scored, and the row before each of them.
    fn unpacked(b: &PackedBatch, sequence: usize) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let segment = b.segments[sequence];
        let rows = &b.rows[b.sequences[sequence].clone()];
        let before = |&row: &u32| match b.parents[segment] {
            Some(parent) if row as usize == b.seq_starts[segment] => b.seq_starts[parent as usize + 1] - 1,
            _ => row as usize - 1,
        };
        let token = |row: usize| b.tokens[row];
        (
            [b.prompt(segment), b.own(segment)].concat(),
            rows.iter().map(|&row| token(row as usize)).collect(),
            rows.iter().map(|row| token(before(row))).collect(),
        )
    }

    fn check_sequence(b: &PackedBatch, sequence: usize, t: &Trajectory) -> Result<(), TestCaseError> {
        prop_assert_eq!(b.keys[sequence], t.key);
        let (tokens, scored, before) = unpacked(b, sequence);
        prop_assert_eq!(&tokens, &t.tokens);
        let prompt = t.prompt_tokens();
        prop_assert_eq!(&scored[..], &t.tokens[prompt..]);
        prop_assert_eq!(&before[..], &t.tokens[prompt - 1..t.tokens.len() - 1]);
        let rows = b.sequences[sequence].clone();
        prop_assert_eq!(&b.behavior_logprob[rows.clone()], &t.logprobs[..]);
        prop_assert!(b.inv_temperature[rows].iter().all(|&x| x == 2.0));
        Ok(())
    }

    /// Every sequence is packed in order, without other tokens.
    fn check_whole(batches: &[PackedBatch], all: &[Trajectory]) -> Result<(), TestCaseError> {
        let mut left = all.iter();
        for b in batches {
            let mut used = vec![false; b.parents.len()];
            for sequence in 0..b.keys.len() {
                check_sequence(b, sequence, left.next().unwrap())?;
                let segment = b.segments[sequence];
                used[segment] = true;
                if let Some(parent) = b.parents[segment] {
                    used[parent as usize] = true;
                }
            }
            prop_assert!(used.iter().all(|&used| used));
            prop_assert_eq!(b.seq_starts.len(), b.parents.len() + 1);
            prop_assert_eq!(*b.seq_starts.last().unwrap(), b.tokens.len());
            prop_assert_eq!(b.sequences.last().unwrap().end, b.rows.len());
            prop_assert!(b.rows.is_sorted_by(|a, b| a < b));
        }
        prop_assert_eq!(left.count(), 0);
        Ok(())
    }

    proptest! {
        /// Unpacking returns every token, every scored row and every log-probability, for any budget.
        #[test]
        fn packing_loses_nothing(
            shapes in prop::collection::vec((prop::bool::weighted(0.3), 1usize..4, 1usize..9), 1..20),
            budget in 1usize..80,
        ) {
            let all = group(&shapes);
            for (batches, shares) in [(pack(&all, budget).unwrap(), true), (pack_unshared(&all, budget).unwrap(), false)] {
                check_whole(&batches, &all)?;
                for b in &batches {
                    prop_assert!(b.tokens.len() <= budget || b.keys.len() == 1);
                    prop_assert!(shares || b.parents.iter().all(Option::is_none));
                }
            }
        }

        /// A family's prompt is in as few micro-batches as the budget allows, once in each.
        #[test]
        fn families_stay_together(
            shapes in prop::collection::vec((prop::bool::weighted(0.3), 1usize..4, 1usize..9), 1..20),
            budget in 1usize..80,
        ) {
            let all = group(&shapes);
            let batches = pack(&all, budget).unwrap();
            for family in all.chunk_by(|a, b| a.key.ticket == b.key.ticket && a.prompt_tokens() == b.prompt_tokens()) {
                let prompt = family[0].prompt_tokens();
                let rests = family.iter().map(|t| t.tokens.len() - prompt).collect::<Vec<_>>();
                let pieces = even_ranges(&rests, budget.saturating_sub(prompt)).len();
                let is_own = |key: &SampleKey| family.iter().any(|t| t.key == *key);
                let with: Vec<&PackedBatch> = batches.iter().filter(|b| b.keys.iter().any(is_own)).collect();
                prop_assert_eq!(with.len(), pieces);
                for b in with {
                    let mut begins: Vec<usize> = (0..b.keys.len())
                        .filter(|&s| is_own(&b.keys[s]))
                        .map(|s| b.parents[b.segments[s]].map_or(b.segments[s], |p| p as usize))
                        .collect();
                    begins.dedup();
                    prop_assert_eq!(begins.len(), 1);
                }
            }
        }

        /// The trajectories of a ticket are in one micro-batch for any budget.
        #[test]
        fn groups_stay_together(
            shapes in prop::collection::vec((prop::bool::weighted(0.3), 1usize..4, 1usize..9), 1..20),
            budget in 1usize..80,
            share in any::<bool>(),
        ) {
            let all = group(&shapes);
            let batches = pack_groups(&all, budget, share).unwrap();
            check_whole(&batches, &all)?;
            for (i, b) in batches.iter().enumerate() {
                prop_assert!(share || b.parents.iter().all(Option::is_none));
                let tickets = |b: &PackedBatch| b.keys.iter().map(|key| key.ticket).collect::<Vec<_>>();
                for other in &batches[..i] {
                    prop_assert!(!tickets(other).iter().any(|ticket| tickets(b).contains(ticket)));
                }
            }
        }

        /// Selected sequences of a micro-batch form a valid micro-batch.
        #[test]
        fn a_part_loses_nothing(
            shapes in prop::collection::vec((prop::bool::weighted(0.3), 1usize..4, 1usize..9), 1..12),
            kept in any::<u16>(),
        ) {
            let all = group(&shapes);
            let whole = pack(&all, 1000).unwrap().remove(0);
            prop_assert_eq!(&whole.only(|_| true), &whole);
            let own: Vec<Trajectory> =
                all.iter().enumerate().filter(|(i, _)| kept >> i & 1 == 1).map(|(_, t)| t.clone()).collect();
            let part = whole.only(|sequence| kept >> sequence & 1 == 1);
            if !own.is_empty() {
                check_whole(std::slice::from_ref(&part), &own)?;
            }
            prop_assert_eq!(part.sequence_tokens(), own.iter().map(|t| t.tokens.len()).sum::<usize>());
        }
    }

    /// Equal tokens are only shared if they are the prompts of neighbours of one ticket.
    #[test]
    fn only_a_prompt_of_one_ticket_is_shared() {
        let tokens = |a: &Trajectory, b: &Trajectory| pack([a, b], 100).unwrap()[0].tokens.len();
        let (a, mut b) = (trajectory(1, 3, 2, 1.0), trajectory(1, 3, 4, 1.0));
        assert_eq!(tokens(&a, &b), 3 + 2 + 4);
        b.key.ticket = Ticket(2);
        assert_eq!(tokens(&a, &b), 5 + 7, "another ticket");
        b.key.ticket = Ticket(1);
        b.tokens[2] += 1;
        assert_eq!(tokens(&a, &b), 5 + 7, "another prompt");
        let mut begun = a.clone();
        begun.spans[0].author = Author::Environment;
        assert_eq!(tokens(&begun, &begun), 5 + 5, "not a prompt");
    }

    #[test]
    fn observations_are_read_and_not_scored() {
        let mut game = trajectory(0, 2, 6, 1.0);
        game.spans.truncate(1);
        game.spans.extend([
            Span::new(Author::Policy, 2..4).with_temperature(0.5),
            Span::new(Author::Environment, 4..7),
            Span::new(Author::Policy, 7..8).with_temperature(0.5),
        ]);
        game.logprobs = vec![-1.0, -2.0, -3.0];
        let packed = pack([&trajectory(1, 1, 1, 1.0), &game], 100).unwrap().remove(0);
        assert_eq!(packed.tokens.len(), 2 + 8);
        assert_eq!(packed.rows, [1, 2 + 2, 2 + 3, 2 + 7]);
        assert_eq!(packed.behavior_logprob[1..], [-1.0, -2.0, -3.0]);
        assert_eq!(packed.inv_temperature, [1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn attachments_stay_with_their_sequences_and_divide_families() {
        let image = |position: usize| Attachment {
            media_type: "image/png".to_owned(),
            position,
            data: [1, 2].as_slice().into(),
        };
        let (plain, mut other) = (trajectory(1, 3, 2, 1.0), trajectory(1, 3, 4, 1.0));
        assert!(pack([&plain, &other], 100).unwrap()[0].attachments.is_empty());
        other.attachments = vec![image(1)];
        let packed = pack([&plain, &other], 100).unwrap().remove(0);
        assert_eq!(packed.attachments, [vec![], vec![image(1)]]);
        assert_eq!(packed.tokens.len(), 5 + 7, "a prompt with another image is another prompt");
        assert_eq!(packed.only(|sequence| sequence == 1).attachments, [vec![image(1)]]);
        assert_eq!(pack([&other, &other], 100).unwrap()[0].tokens.len(), 3 + 4 + 4);
    }

    #[test]
    fn candidates_belong_to_scored_positions() {
        let packed = pack([&trajectory(1, 2, 2, 1.0), &trajectory(2, 2, 1, 1.0)], 100).unwrap().remove(0);
        let short = CandidateIds::new(2, vec![0; 4]).unwrap();
        let error = packed.clone().with_candidates(short).unwrap_err();
        assert_eq!(error, CandidateError::Positions { positions: 2, rows: 3 });
        let packed = packed.with_candidates(CandidateIds::new(2, (0..6).collect()).unwrap()).unwrap();
        let second = packed.only(|sequence| sequence == 1).candidates.unwrap();
        assert_eq!(second.ids(), [4, 5]);
        let text = serde_json::to_string(&packed).unwrap();
        assert_eq!(serde_json::from_str::<PackedBatch>(&text).unwrap(), packed);
    }

    #[test]
    fn trajectories_without_policy_tokens_or_with_gaps_are_refused() {
        let mut broken = trajectory(0, 2, 2, 1.0);
        broken.logprobs.pop();
        assert!(matches!(pack([&broken], 10), Err(PackError::Trajectory(_))));
        assert!(matches!(pack([&trajectory(0, 2, 0, 1.0)], 10), Err(PackError::NothingToScore { .. })));
    }
}
