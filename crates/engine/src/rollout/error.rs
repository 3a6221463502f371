use std::fmt;
use std::time::Duration;

use rloom_core::{PolicyVersion, RandomKey};

/// Names a request in messages by the key of its random stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestName(pub RandomKey);

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RandomKey { purpose, ticket, sample, segment, .. } = self.0;
        write!(f, "{purpose:?} request {ticket}, sample {sample}")?;
        if segment > 0 {
            write!(f, ", segment {segment}")?;
        }
        Ok(())
    }
}

/// Why there is no completion.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RolloutError {
    /// A setting is out of its range.
    #[error("{key} = {value}: must be {expected}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The request contradicts itself or the model.
    #[error("{request}: {reason}")]
    InvalidRequest {
        /// The request.
        request: RequestName,
        /// What is wrong with it.
        reason: String,
    },
    /// Prompt and completion together exceed the model's context.
    #[error(
        "{request}: a prompt of {prompt} tokens and up to {max_new_tokens} new ones exceed the context of {context} \
         tokens\nhint: lower max_new_tokens, or leave out prompts this long"
    )]
    TooLong {
        /// The request.
        request: RequestName,
        /// Prompt tokens.
        prompt: usize,
        /// The completion's limit.
        max_new_tokens: usize,
        /// Most positions of the model.
        context: usize,
    },
    /// The keys and values of the longest possible completion exceed a lane's whole pool.
    #[error(
        "{request}: up to {tokens} tokens need {needed} key-value blocks of {block} tokens, but a lane has {blocks} in \
         all\nhint: raise kv_memory_mib, lower max_new_tokens, or set lanes = 1"
    )]
    NeverFits {
        /// The request.
        request: RequestName,
        /// Prompt plus `max_new_tokens`.
        tokens: usize,
        /// Blocks that it may come to need.
        needed: usize,
        /// Tokens of a block.
        block: usize,
        /// Blocks of a lane.
        blocks: usize,
    },
    /// The memory for keys and values does not hold even one block per lane.
    #[error(
        "kv_memory_mib = {kv_memory_mib}: {lanes} lane(s) need at least {needed_mib} MiB for one block each\nhint: raise \
         kv_memory_mib, or 0 to let the engine choose"
    )]
    NoBlocks {
        /// What was asked for.
        kv_memory_mib: usize,
        /// Number of lanes.
        lanes: usize,
        /// The least that works.
        needed_mib: usize,
    },
    /// Weights of another shape than the engine was built for.
    #[error("version {version:?}: these weights are of another architecture than the engine was built for")]
    OtherModel {
        /// The version that was to be loaded.
        version: PolicyVersion,
    },
    /// The model gave a logit that is not a number, or infinite ones only.
    #[error(
        "{request}: the logits of token {position} are not finite (policy version {})\nhint: the weights have diverged; \
         lower the learning rate", version.0
    )]
    NotFinite {
        /// The request.
        request: RequestName,
        /// Position of the token that was to be chosen, prompt included.
        position: usize,
        /// The weights.
        version: PolicyVersion,
    },
    /// The tokenizer cannot turn the completion into the text that stop strings are looked for in.
    #[error("{request}: cannot look for stop strings: {cause}")]
    Text {
        /// The request.
        request: RequestName,
        /// What the tokenizer said.
        cause: String,
    },
    /// Something took longer than it may.
    #[error("no answer within {:.1} s: waited for {waited_for}", after.as_secs_f64())]
    Deadline {
        /// Whom, and for what.
        waited_for: String,
        /// How long.
        after: Duration,
    },
    /// A lane's thread failed more often than it may be started again; the engine answers nothing any more.
    #[error("the rollout engine died: lane {lane}: {cause}")]
    EngineDied {
        /// The lane.
        lane: usize,
        /// What its thread said.
        cause: String,
    },
    /// A lane's thread failed while it had the request, and has been started again. The same request may be made again:
    /// its completion does not depend on the failure.
    #[error("rollout lane {lane} failed and was started again: {cause}")]
    LaneRestarted {
        /// The lane.
        lane: usize,
        /// What its thread said.
        cause: String,
    },
    /// The engine was dropped while the request was under way.
    #[error("the rollout engine was shut down before the request was finished")]
    ShutDown,
    /// The operating system gave no thread.
    #[error("cannot start the thread of lane {lane}: {cause}")]
    Thread {
        /// The lane.
        lane: usize,
        /// What the system said.
        cause: String,
    },
}

impl RolloutError {
    /// Whether the same request may be made again, with a chance of being answered.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::LaneRestarted { .. })
    }
}
