use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A policy of the run. Versions count separately for each policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyId(pub u32);

impl PolicyId {
    /// The policy of a run that trains a single one.
    pub const MAIN: Self = Self(0);
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Number of batches that the policy was trained on and published after. Optimiser steps are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

/// Unique number of a group within its stage, also if its task is drawn again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// Identifies one trajectory of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SampleKey {
    /// The group.
    pub ticket: Ticket,
    /// Index of the episode in its group.
    pub sample: u32,
    /// Index of the segment in its episode.
    pub segment: u32,
}

/// `ticket/sample`, and `ticket/sample/segment` for segments after the first.
impl fmt::Display for SampleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ticket.0, self.sample)?;
        if self.segment > 0 { write!(f, "/{}", self.segment) } else { Ok(()) }
    }
}

/// Author of a range of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The task.
    Prompt,
    /// The policy. Only these tokens can carry loss.
    Policy,
    /// The environment: observations.
    Environment,
}

/// Step reward of one turn of the policy, given by the environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepReward {
    /// Reward of the turn; 0 if the environment gives none.
    pub reward: f64,
    /// Key of the state in which the turn was taken: turns of a group taken in the same state have equal keys.
    /// `None` if the environment names no states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A range of tokens by one author.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Author of the range.
    pub author: Author,
    /// Token positions in the trajectory.
    pub range: Range<usize>,
    /// Sampling temperature; for policy spans the log-probabilities are of the full softmax at this temperature.
    /// Greedy decoding reports 1. Spans of other authors have 1.
    pub temperature: f32,
    /// Step reward of the turn. Only policy spans have one, and only if the environment gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepReward>,
    /// Round of the episode in which the turn was taken, in an episode of several agents: turns of one round do not depend on
    /// each other. Only policy spans have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
}

impl Span {
    /// A span at temperature 1 without a step reward.
    pub fn new(author: Author, range: Range<usize>) -> Self {
        Self { author, range, temperature: 1.0, step: None, round: None }
    }

    /// The same span at another temperature.
    #[must_use]
    pub fn with_temperature(self, temperature: f32) -> Self {
        Self { temperature, ..self }
    }
}

/// A range of tokens sampled by one version of one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSpan {
    /// The policy that sampled the tokens.
    pub policy: PolicyId,
    /// The version of its weights.
    pub version: PolicyVersion,
    /// Token positions in the trajectory.
    pub range: Range<usize>,
}

/// Opaque data that belongs to a sequence, such as an encoded image. It travels from the request to the training
/// batch; only engines interpret it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Media type, such as `image/png`. Engines refuse types that they do not support.
    pub media_type: String,
    /// Position in the sequence's tokens of the placeholder that the data stands for.
    pub position: usize,
    /// The bytes; base64 in files.
    #[serde(with = "crate::base64_bytes")]
    pub data: Arc<[u8]>,
}

/// Reason for the end of generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A stop token was sampled; it is the last policy token and is trained.
    StopToken,
    /// A stop string appeared in the text.
    StopString,
    /// The token limit was reached: the completion is truncated.
    Length,
    /// The request was aborted.
    Aborted,
}

impl StopReason {
    /// Name, as in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::StopToken => "stop_token",
            Self::StopString => "stop_string",
            Self::Length => "length",
            Self::Aborted => "aborted",
        }
    }

    /// True if generation was cut off before the policy ended its turn.
    pub fn is_truncated(self) -> bool {
        matches!(self, Self::Length | Self::Aborted)
    }
}

/// One segment of an episode: a token sequence with its authors, log-probabilities and policy versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Key within the stage.
    pub key: SampleKey,
    /// The agent that wrote it; `None` if the episode has a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// All tokens, prompt first.
    pub tokens: Vec<u32>,
    /// Authors, in token order and without gaps.
    pub spans: Vec<Span>,
    /// Log-probability of each policy token at sampling time, in token order (nats).
    pub logprobs: Vec<f32>,
    /// Policy versions that sampled the policy tokens, in token order.
    pub versions: Vec<VersionSpan>,
    /// Reason for the end of generation.
    pub stop: StopReason,
    /// Attachments of the sequence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// An inconsistent trajectory.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrajectoryError {
    /// Spans that do not tile the tokens.
    #[error("sample {key}: spans do not tile its {tokens} tokens (broken at span {span})")]
    Spans {
        /// The trajectory.
        key: SampleKey,
        /// Number of tokens.
        tokens: usize,
        /// The first misplaced span.
        span: usize,
    },
    /// A number of log-probabilities that differs from the number of policy tokens.
    #[error("sample {key}: {logprobs} log-probabilities for {policy_tokens} policy tokens")]
    Logprobs {
        /// The trajectory.
        key: SampleKey,
        /// Number of log-probabilities.
        logprobs: usize,
        /// Number of policy tokens in the spans.
        policy_tokens: usize,
    },
    /// A policy token at position 0 has no prefix to be predicted from.
    #[error("sample {key}: the first token is the policy's and has no prefix")]
    NoPrompt {
        /// The trajectory.
        key: SampleKey,
    },
    /// A step reward on a span that the policy did not write.
    #[error("sample {key}: span {span} has a step reward, but its author is not the policy")]
    StepAuthor {
        /// The trajectory.
        key: SampleKey,
        /// The span.
        span: usize,
    },
    /// A step reward that is infinite or NaN.
    #[error("sample {key}: the step reward of span {span} is {reward}; it must be finite")]
    StepNotFinite {
        /// The trajectory.
        key: SampleKey,
        /// The span.
        span: usize,
        /// Its value.
        reward: f64,
    },
}

impl Trajectory {
    /// Token ranges written by the policy.
    pub fn policy_ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.spans.iter().filter(|s| s.author == Author::Policy).map(|s| s.range.clone())
    }

    /// Step rewards of the policy's turns, in order; empty if the environment gives none.
    pub fn steps(&self) -> impl Iterator<Item = &StepReward> + '_ {
        self.spans.iter().filter_map(|span| span.step.as_ref())
    }

    /// Number of policy tokens; the completion length of single-turn episodes.
    pub fn policy_tokens(&self) -> usize {
        self.policy_ranges().map(|r| r.len()).sum()
    }

    /// Number of tokens before the first policy token.
    pub fn prompt_tokens(&self) -> usize {
        self.policy_ranges().next().map_or(self.tokens.len(), |r| r.start)
    }

    /// Number of tokens of the prompt: those before the first that the policy or the environment has added.
    pub fn leading_prompt(&self) -> usize {
        let first = self.spans.iter().find(|span| span.author != Author::Prompt);
        first.map_or(self.tokens.len(), |span| span.range.start)
    }

    /// Oldest policy version among the policy tokens.
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.versions.iter().map(|v| v.version).min()
    }

    /// Checks that spans, log-probabilities and step rewards are consistent.
    pub fn validate(&self) -> Result<(), TrajectoryError> {
        let mut end = 0;
        for (i, span) in self.spans.iter().enumerate() {
            if span.range.start != end || span.range.end < span.range.start {
                return Err(TrajectoryError::Spans { key: self.key, tokens: self.tokens.len(), span: i });
            }
            end = span.range.end;
            self.validate_step(i, span)?;
        }
        if end != self.tokens.len() {
            return Err(TrajectoryError::Spans {
                key: self.key,
                tokens: self.tokens.len(),
                span: self.spans.len(),
            });
        }
        let policy_tokens = self.policy_tokens();
        if policy_tokens != self.logprobs.len() {
            return Err(TrajectoryError::Logprobs {
                key: self.key,
                logprobs: self.logprobs.len(),
                policy_tokens,
            });
        }
        if policy_tokens > 0 && self.prompt_tokens() == 0 {
            return Err(TrajectoryError::NoPrompt { key: self.key });
        }
        Ok(())
    }

    fn validate_step(&self, span: usize, Span { author, step, .. }: &Span) -> Result<(), TrajectoryError> {
        match step {
            Some(_) if *author != Author::Policy => Err(TrajectoryError::StepAuthor { key: self.key, span }),
            Some(step) if !step.reward.is_finite() => {
                Err(TrajectoryError::StepNotFinite { key: self.key, span, reward: step.reward })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(step: Option<StepReward>) -> Trajectory {
        Trajectory {
            key: SampleKey::default(),
            agent: None,
            tokens: vec![5, 6, 7],
            spans: vec![
                Span::new(Author::Prompt, 0..1),
                Span { step, ..Span::new(Author::Policy, 1..2) },
                Span::new(Author::Environment, 2..3),
            ],
            logprobs: vec![-1.0],
            versions: Vec::new(),
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        }
    }

    #[test]
    fn sample_keys_are_shown_as_ticket_and_sample() {
        let key = SampleKey { ticket: Ticket(4), sample: 2, segment: 0 };
        assert_eq!(key.to_string(), "4/2");
        assert_eq!(SampleKey { segment: 1, ..key }.to_string(), "4/2/1");
    }

    #[test]
    fn attachments_are_base64_text_in_files() {
        let data = Arc::from([0u8, 255, 7]);
        let attachment = Attachment { media_type: "image/png".into(), position: 3, data };
        let text = serde_json::to_string(&attachment).unwrap_or_default();
        assert_eq!(text, r#"{"media_type":"image/png","position":3,"data":"AP8H"}"#);
        assert_eq!(serde_json::from_str::<Attachment>(&text).ok(), Some(attachment));
    }

    #[test]
    fn step_rewards_are_finite_and_only_on_policy_spans() {
        let step = StepReward { reward: -0.1, state: Some("3-9".into()) };
        let good = trajectory(Some(step.clone()));
        assert_eq!((good.validate(), good.steps().cloned().collect()), (Ok(()), vec![step.clone()]));
        for author in [0, 2] {
            let mut bad = trajectory(None);
            bad.spans[author].step = Some(step.clone());
            assert!(
                matches!(bad.validate(), Err(TrajectoryError::StepAuthor { span, .. }) if span == author)
            );
        }
        for reward in [f64::NAN, f64::INFINITY] {
            let bad = trajectory(Some(StepReward { reward, state: None }));
            assert!(matches!(bad.validate(), Err(TrajectoryError::StepNotFinite { span: 1, .. })));
        }
    }

    /// Journals and rollout logs of environments without step rewards keep their bytes.
    #[test]
    fn spans_without_step_rewards_keep_their_file_format() {
        let text = r#"{"author":"policy","range":{"start":1,"end":2},"temperature":1.0}"#;
        let span = Span::new(Author::Policy, 1..2);
        assert_eq!(serde_json::to_string(&span).ok().as_deref(), Some(text));
        assert_eq!(serde_json::from_str::<Span>(text).ok(), Some(span));
    }

    #[test]
    fn step_rewards_round_trip_through_json() {
        for state in [None, Some("3-9".to_owned())] {
            let span = Span {
                step: Some(StepReward { reward: 0.1 + 0.2, state }),
                ..Span::new(Author::Policy, 1..2).with_temperature(0.7)
            };
            let text = serde_json::to_string(&span).unwrap_or_default();
            assert_eq!(serde_json::from_str::<Span>(&text).ok(), Some(span), "{text}");
        }
    }
}
