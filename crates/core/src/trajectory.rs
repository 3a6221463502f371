use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Counts batches trained and published, not optimiser steps.
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
}

/// Which policy version sampled which range of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSpan {
    /// The version whose weights gave the tokens.
    pub version: PolicyVersion,
    /// Token positions in the trajectory.
    pub range: Range<usize>,
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
}

/// A trajectory whose parts contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrajectoryError {
    /// Spans do not tile the tokens.
    #[error("sample {key:?}: spans do not tile its {tokens} tokens (broken at span {span})")]
    Spans {
        /// The trajectory.
        key: SampleKey,
        /// Number of tokens.
        tokens: usize,
        /// The first span that is out of place.
        span: usize,
    },
    /// Another number of log-probabilities than policy tokens.
    #[error("sample {key:?}: {logprobs} log-probabilities for {policy_tokens} policy tokens")]
    Logprobs {
        /// The trajectory.
        key: SampleKey,
        /// Log-probabilities given.
        logprobs: usize,
        /// Policy tokens by the spans.
        policy_tokens: usize,
    },
    /// A policy token at position 0 has no prefix to be predicted from.
    #[error("sample {key:?}: the first token cannot be the policy's, it has no prefix")]
    NoPrompt {
        /// The trajectory.
        key: SampleKey,
    },
}

impl Trajectory {
    /// Ranges that the policy wrote.
    pub fn policy_ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.spans.iter().filter(|s| s.author == Author::Policy).map(|s| s.range.clone())
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
}
