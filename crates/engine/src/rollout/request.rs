use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Attachment, PolicyId, RandomKey, StopReason, VersionSpan};
use serde::{Deserialize, Serialize};

use super::{ReusedTokens, SamplingSettings, TokenSink};

/// Request for one completion.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// Policy to sample from.
    pub policy: PolicyId,
    /// Key of the random stream. The draw for a token uses the stream's number at the token's position in the whole
    /// sequence (prompt included), so it does not depend on other requests in the batch, and two turns of one
    /// trajectory never share a number.
    pub key: RandomKey,
    /// Tokens before the completion; at least one.
    pub prompt: Arc<[u32]>,
    /// First tokens of the completion, if they already exist: generation resumes after them as if it had never been
    /// interrupted. They count towards the token limits and may complete a stop string.
    pub prefix: Vec<u32>,
    /// Data behind placeholder tokens of the prompt, such as images.
    pub attachments: Vec<Attachment>,
    /// Sampling settings.
    pub sampling: SamplingSettings,
    /// Tokens that end the completion; the one that does is its last token.
    pub stop_tokens: Arc<[u32]>,
    /// Group of requests with the same prompt. An engine may keep them with the worker that computes it. Only a hint:
    /// results are the same without it.
    pub group: Option<u64>,
    /// Session of requests that extend each other's sequences, such as the turns of one episode. An engine may route
    /// them to the worker that holds their keys and values. Only a hint: results are the same without it.
    pub session: Option<u64>,
    /// Priority among waiting requests: lower numbers first, then in order of submission. Running requests are not
    /// interrupted. Affects only the time of the completion, never its content.
    pub priority: u64,
    /// Timeout of the completion; `None` for the engine's setting.
    pub timeout: Option<Duration>,
    /// Receives the sampled tokens, those of the prefix excluded, while the completion is in flight. An engine may send any
    /// number of the completion's first tokens; the [`Generation`] has all of them.
    pub sink: Option<TokenSink>,
    /// Receives the number of prompt tokens that were not computed.
    pub reused: Option<ReusedTokens>,
}

impl GenerateRequest {
    /// A request to the main policy with the highest priority and without prefix, stop tokens or group.
    pub fn new(key: RandomKey, prompt: impl Into<Arc<[u32]>>, sampling: SamplingSettings) -> Self {
        Self {
            policy: PolicyId::MAIN,
            key,
            prompt: prompt.into(),
            prefix: Vec::new(),
            attachments: Vec::new(),
            sampling,
            stop_tokens: Arc::from([]),
            group: None,
            session: None,
            priority: 0,
            timeout: None,
            sink: None,
            reused: None,
        }
    }
}

/// A completion. The request's `prefix` is not repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Sampled tokens, the stop token included. Empty if the prefix was already complete.
    pub tokens: Vec<u32>,
    /// Log-probability of each token under the full softmax at `temperature`, in nats.
    pub logprobs: Vec<f32>,
    /// Temperature of `logprobs`; greedy decoding reports 1.
    pub temperature: f32,
    /// Policy and version that sampled each range of `tokens`, in order and without gaps.
    pub versions: Vec<VersionSpan>,
    /// Reason for the end. After [`StopReason::Aborted`] the tokens are those sampled until then.
    pub stop: StopReason,
    /// Replica that answered; `None` if the engine has none.
    pub replica: Option<u32>,
}

impl Generation {
    /// Joins the two parts of an interrupted completion: `self`, which was aborted, and the answer to the same request
    /// with `self`'s tokens appended to its prefix. If both parts have the same version, the result is bitwise identical
    /// to that of the uninterrupted request.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        debug_assert_eq!(self.stop, StopReason::Aborted, "only an aborted completion can be resumed");
        debug_assert_eq!(self.temperature, later.temperature, "both parts belong to one request");
        let at = self.tokens.len();
        self.tokens.extend(later.tokens);
        self.logprobs.extend(later.logprobs);
        for VersionSpan { policy, version, range } in later.versions {
            let (start, end) = (range.start + at, range.end + at);
            match self.versions.last_mut() {
                Some(last) if (last.policy, last.version) == (policy, version) => last.range.end = end,
                _ => self.versions.push(VersionSpan { policy, version, range: start..end }),
            }
        }
        self.stop = later.stop;
        self.replica = later.replica;
        self
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{PolicyId, PolicyVersion};

    use super::*;

    fn part(tokens: &[u32], versions: &[(u64, usize)], stop: StopReason) -> Generation {
        let mut at = 0;
        let versions = versions.iter().map(|&(version, length)| {
            at += length;
            VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(version), range: at - length..at }
        });
        Generation {
            tokens: tokens.to_vec(),
            logprobs: tokens.iter().map(|&token| -(token as f32)).collect(),
            temperature: 0.5,
            versions: versions.collect(),
            stop,
            replica: None,
        }
    }

    #[test]
    fn two_parts_join_to_one_completion() {
        let first = part(&[1, 2, 3], &[(1, 1), (2, 2)], StopReason::Aborted);
        let same = part(&[4, 5], &[(2, 1), (3, 1)], StopReason::StopToken);
        let whole = part(&[1, 2, 3, 4, 5], &[(1, 1), (2, 3), (3, 1)], StopReason::StopToken);
        assert_eq!(first.clone().then(same), whole);
        let newer = part(&[4], &[(3, 1)], StopReason::Length);
        let whole = part(&[1, 2, 3, 4], &[(1, 1), (2, 2), (3, 1)], StopReason::Length);
        assert_eq!(first.then(newer), whole);
    }

    #[test]
    fn either_part_may_be_empty() {
        let none = part(&[], &[], StopReason::Aborted);
        let some = part(&[7, 8], &[(4, 2)], StopReason::Aborted);
        assert_eq!(none.clone().then(some.clone()), some);
        assert_eq!(some.clone().then(none), some);
    }
}
