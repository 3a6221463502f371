use std::sync::Arc;
use std::time::Duration;

use rloom_core::{RandomKey, StopReason, VersionSpan};

use crate::SamplingSettings;

/// One completion to make: token ids in.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// Names the random stream. The draw for a token takes the stream's number at the token's position in the whole
    /// sequence (prompt included), so it depends on nothing that shares the batch, and two turns of one trajectory
    /// never share a number.
    pub key: RandomKey,
    /// What stands before the completion; at least one token.
    pub prompt: Arc<[u32]>,
    /// The completion's first tokens where they exist already: generation goes on after them as if it had never been
    /// interrupted. They count towards the token limits and may complete a stop string.
    pub prefix: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingSettings,
    /// Tokens that end the completion; the one that does is its last token.
    pub stop_tokens: Arc<[u32]>,
    /// Requests of one group have the same prompt, which is then computed once and shared while any of them is under
    /// way. A hint only: results are the same without it.
    pub group: Option<u64>,
    /// Who goes first among the requests that wait: the lower number, and the earlier request of equals. What has been
    /// started is not interrupted. When is all that this decides: no result depends on it.
    pub priority: u64,
    /// Longest wait for the completion; `None` takes the engine's setting.
    pub deadline: Option<Duration>,
}

impl GenerateRequest {
    /// A request without prefix, stop tokens or group, of the first priority.
    pub fn new(key: RandomKey, prompt: impl Into<Arc<[u32]>>, sampling: SamplingSettings) -> Self {
        Self {
            key,
            prompt: prompt.into(),
            prefix: Vec::new(),
            sampling,
            stop_tokens: Arc::from([]),
            group: None,
            priority: 0,
            deadline: None,
        }
    }
}

/// One completion: ids, log-probabilities and versions out. The request's `prefix` is not repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The tokens chosen, the stop token included. Empty when the prefix was complete already.
    pub tokens: Vec<u32>,
    /// Log-probability of each token under the full softmax at `temperature` (nats).
    pub logprobs: Vec<f32>,
    /// The temperature of `logprobs`; greedy decoding reports 1.
    pub temperature: f32,
    /// Which weights chose which range of `tokens`, in order and without gaps.
    pub versions: Vec<VersionSpan>,
    /// Why it ended. [`StopReason::Aborted`] leaves what had been chosen by then.
    pub stop: StopReason,
}

impl Generation {
    /// One completion of the two parts of an interrupted one: `self`, which was aborted, and what became of the same
    /// request with `self`'s tokens appended to its prefix. Where both parts are of one version, the whole is what the
    /// request would have given without the interruption, bit for bit.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        debug_assert_eq!(self.stop, StopReason::Aborted, "only an aborted completion goes on");
        debug_assert_eq!(self.temperature, later.temperature, "the parts are of one request");
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
        }
    }

    #[test]
    fn two_parts_make_one_completion() {
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
