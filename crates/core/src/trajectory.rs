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

/// Number of batches a policy was trained on and published after. Optimiser steps are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

/// A group's place in a stage, unique also when its task comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// Names one trajectory of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SampleKey {
    /// The group.
    pub ticket: Ticket,
    /// The episode's place in its group.
    pub sample: u32,
    /// The segment's place in its episode.
    pub segment: u32,
}

/// `ticket/sample`, and `ticket/sample/segment` for segments after the first.
impl fmt::Display for SampleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ticket.0, self.sample)?;
        if self.segment > 0 { write!(f, "/{}", self.segment) } else { Ok(()) }
    }
}

/// Who wrote a range of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The task.
    Prompt,
    /// The policy: the only tokens that can carry loss.
    Policy,
    /// The environment's observations.
    Environment,
}

/// What an environment made of one turn of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What the turn earned of itself; 0 where the environment says nothing.
    pub reward: f64,
    /// Names what the policy knew before the turn: turns of a group that began in the same state have the same key.
    /// `None` where the environment names no states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A range of tokens by one author.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Who wrote it.
    pub author: Author,
    /// Token positions in the trajectory.
    pub range: Range<usize>,
    /// Sampling temperature; for policy spans the log-probabilities are of the full softmax at this temperature.
    /// Greedy decoding reports 1. Spans of other authors have 1.
    pub temperature: f32,
    /// What the environment made of the turn; only policy spans can have it, and only where the environment says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
}

impl Span {
    /// A span at temperature 1 without a step.
    pub fn new(author: Author, range: Range<usize>) -> Self {
        Self { author, range, temperature: 1.0, step: None }
    }

    /// The same span at another temperature.
    #[must_use]
    pub fn at(self, temperature: f32) -> Self {
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

/// Opaque data that belongs to a sequence, such as an encoded image. It is carried from the request to the training
/// batch and interpreted by engines alone.
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

/// Why generation ended.
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
    /// Its name, as files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::StopToken => "stop_token",
            Self::StopString => "stop_string",
            Self::Length => "length",
            Self::Aborted => "aborted",
        }
    }

    /// Whether the policy did not come to an end of its own.
    pub fn is_truncated(self) -> bool {
        matches!(self, Self::Length | Self::Aborted)
    }
}

/// Tokens in, tokens out: one segment of an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Its name in the stage.
    pub key: SampleKey,
    /// Everything, prompt first.
    pub tokens: Vec<u32>,
    /// Who wrote which range, in order and without gaps.
    pub spans: Vec<Span>,
    /// Log-probability of each policy token when it was sampled, in order (nats).
    pub logprobs: Vec<f32>,
    /// The policy version that sampled which policy range, in order.
    pub versions: Vec<VersionSpan>,
    /// Why it ended.
    pub stop: StopReason,
    /// Data that belongs to the sequence beyond its tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A trajectory whose parts contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrajectoryError {
    /// Spans do not tile the tokens.
    #[error("sample {key}: spans do not tile its {tokens} tokens (broken at span {span})")]
    Spans {
        /// The trajectory.
        key: SampleKey,
        /// Number of tokens.
        tokens: usize,
        /// The first span that is out of place.
        span: usize,
    },
    /// Another number of log-probabilities than policy tokens.
    #[error("sample {key}: {logprobs} log-probabilities for {policy_tokens} policy tokens")]
    Logprobs {
        /// The trajectory.
        key: SampleKey,
        /// Log-probabilities given.
        logprobs: usize,
        /// Policy tokens by the spans.
        policy_tokens: usize,
    },
    /// A policy token at position 0 has no prefix to be predicted from.
    #[error("sample {key}: the first token cannot be the policy's, it has no prefix")]
    NoPrompt {
        /// The trajectory.
        key: SampleKey,
    },
    /// A step where there is none, or one that cannot be used.
    #[error("sample {key}: the step of span {span} {problem}")]
    Step {
        /// The trajectory.
        key: SampleKey,
        /// The span.
        span: usize,
        /// What is wrong with it, as the rest of the sentence.
        problem: &'static str,
    },
}

impl Trajectory {
    /// Ranges that the policy wrote.
    pub fn policy_ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.spans.iter().filter(|s| s.author == Author::Policy).map(|s| s.range.clone())
    }

    /// What the environment made of the policy's turns, in order; empty where it says nothing.
    pub fn steps(&self) -> impl Iterator<Item = &Step> + '_ {
        self.spans.iter().filter_map(|span| span.step.as_ref())
    }

    /// Number of policy tokens: the completion length of single-turn episodes.
    pub fn policy_tokens(&self) -> usize {
        self.policy_ranges().map(|r| r.len()).sum()
    }

    /// Number of tokens before the first policy token.
    pub fn prompt_tokens(&self) -> usize {
        self.policy_ranges().next().map_or(self.tokens.len(), |r| r.start)
    }

    /// The oldest policy version among its tokens.
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.versions.iter().map(|v| v.version).min()
    }

    /// Checks that the parts agree.
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
        let problem = match step {
            Some(_) if *author != Author::Policy => "is not the policy's",
            Some(step) if !step.reward.is_finite() => "has a reward that is not finite",
            _ => return Ok(()),
        };
        Err(TrajectoryError::Step { key: self.key, span, problem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(step: Option<Step>) -> Trajectory {
        Trajectory {
            key: SampleKey::default(),
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
    fn only_the_policy_has_steps_and_their_rewards_are_finite() {
        let step = Step { reward: -0.1, state: Some("3-9".into()) };
        let good = trajectory(Some(step.clone()));
        assert_eq!((good.validate(), good.steps().cloned().collect()), (Ok(()), vec![step.clone()]));
        for author in [0, 2] {
            let mut bad = trajectory(None);
            bad.spans[author].step = Some(step.clone());
            assert!(matches!(bad.validate(), Err(TrajectoryError::Step { span, .. }) if span == author));
        }
        for reward in [f64::NAN, f64::INFINITY] {
            let bad = trajectory(Some(Step { reward, state: None }));
            assert!(matches!(bad.validate(), Err(TrajectoryError::Step { span: 1, .. })));
        }
    }

    /// Journals and rollout logs of environments without steps keep their bytes.
    #[test]
    fn a_span_without_a_step_is_written_and_read_as_ever() {
        let text = r#"{"author":"policy","range":{"start":1,"end":2},"temperature":1.0}"#;
        let span = Span::new(Author::Policy, 1..2);
        assert_eq!(serde_json::to_string(&span).ok().as_deref(), Some(text));
        assert_eq!(serde_json::from_str::<Span>(text).ok(), Some(span));
    }

    #[test]
    fn a_step_is_read_as_it_was_written() {
        for state in [None, Some("3-9".to_owned())] {
            let span = Span {
                step: Some(Step { reward: 0.1 + 0.2, state }),
                ..Span::new(Author::Policy, 1..2).at(0.7)
            };
            let text = serde_json::to_string(&span).unwrap_or_default();
            assert_eq!(serde_json::from_str::<Span>(&text).ok(), Some(span), "{text}");
        }
    }
}
