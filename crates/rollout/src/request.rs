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
    /// Longest wait for the completion; `None` takes the engine's setting.
    pub deadline: Option<Duration>,
}

impl GenerateRequest {
    /// A request without prefix, stop tokens or group.
    pub fn new(key: RandomKey, prompt: impl Into<Arc<[u32]>>, sampling: SamplingSettings) -> Self {
        Self {
            key,
            prompt: prompt.into(),
            prefix: Vec::new(),
            sampling,
            stop_tokens: Arc::from([]),
            group: None,
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
