use std::fmt;
use std::time::Duration;

use rloom_core::{ErrorText, PolicyId, PolicyVersion, Purpose, RandomKey, SampleKey, SettingError, Ticket};

use super::status::WorkerStatus;
use crate::{Form, PolicyLabel};

/// Name of a request in messages, taken from the key of its random stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestName(pub RandomKey);

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let purpose = match self.0.purpose {
            Purpose::Rollout => "rollout ",
            Purpose::Evaluation => "evaluation ",
            Purpose::Interactive => "interactive ",
            _ => "",
        };
        let RandomKey { ticket, sample, segment, .. } = self.0;
        write!(f, "{purpose}request {}", SampleKey { ticket: Ticket(ticket), sample, segment })
    }
}

/// Reason for refusing a request.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum InvalidReason {
    /// There is no token to predict from.
    #[error("the prompt is empty: the first token needs a prefix to be predicted from")]
    EmptyPrompt,
    /// The prefix is longer than the completion may be.
    #[error("a prefix of {prefix} tokens exceeds max_new_tokens = {max_new_tokens}")]
    PrefixTooLong {
        /// Tokens of the prefix.
        prefix: usize,
        /// Limit of the completion.
        max_new_tokens: usize,
    },
    /// A token id that the model does not have.
    #[error("token {token} is outside of the model's vocabulary of {vocabulary}")]
    UnknownToken {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// Stop strings, without a tokenizer to decode the completion with.
    #[error("stop strings need a tokenizer, and this engine has none")]
    NoTokenizer,
    /// Stop strings that cannot be searched for.
    #[error("invalid stop strings: {cause}")]
    #[diagnostic(forward(cause))]
    StopStrings {
        /// Explanation of the tokenizer.
        cause: ErrorText,
    },
    /// Prompt and completion together exceed the model's context.
    #[error(
        "a prompt of {prompt} tokens and up to {max_new_tokens} new ones exceed the context of {context} tokens"
    )]
    #[diagnostic(help("lower max_new_tokens, or leave out prompts this long"))]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Limit of the completion.
        max_new_tokens: usize,
        /// Longest sequence of the model.
        context: usize,
    },
    /// The keys and values of the longest possible completion exceed the whole cache of a worker.
    #[error(
        "up to {tokens} tokens need {needed} key-value blocks of {block} tokens, but a lane has only {blocks}"
    )]
    #[diagnostic(help("raise kv_memory_mib, lower max_new_tokens, or set lanes = 1"))]
    ExceedsCache {
        /// Prompt plus `max_new_tokens`.
        tokens: usize,
        /// Blocks for that number of tokens.
        needed: usize,
        /// Tokens per block.
        block: usize,
        /// Blocks of a lane.
        blocks: usize,
    },
    /// A policy that is not loaded.
    #[error("policy {policy} is not loaded; loaded: {}", list(loaded))]
    UnknownPolicy {
        /// The requested policy.
        policy: PolicyId,
        /// Loaded policies.
        loaded: Vec<PolicyId>,
    },
    /// Attachments of a type that the engine does not support.
    #[error("attachments of type {media_type} are not supported by this engine")]
    Attachment {
        /// Media type of the first such attachment.
        media_type: String,
    },
}

/// Cause of a worker's failure. Workers run in other threads or processes, so the cause arrives as text.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum WorkerFailure {
    /// A panic.
    #[error("panicked: {message}")]
    Panicked {
        /// Message of the panic.
        message: String,
    },
    /// An error of the model or the process.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Failed(ErrorText),
    /// The worker ended without giving a reason.
    #[error("ended without a message")]
    Unknown,
}

/// Subject of a wait that took too long.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitedFor {
    /// The rest of a completion.
    Completion {
        /// The request.
        request: RequestName,
        /// Tokens sampled so far.
        tokens: usize,
        /// Limit of the completion.
        limit: usize,
        /// State of the worker that computes it.
        worker: Box<WorkerStatus>,
    },
    /// The start of a request.
    Start {
        /// The request.
        request: RequestName,
        /// Weights that it would start with; `None` if none are loaded.
        weights: Option<PolicyLabel>,
    },
    /// A worker's answer to a command.
    Worker {
        /// State of the worker.
        worker: Box<WorkerStatus>,
        /// The command as a verb phrase, such as `load weights`.
        command: &'static str,
    },
}

impl fmt::Display for WaitedFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completion { request, tokens, limit, worker } => {
                write!(f, "{request}: {tokens} of at most {limit} tokens ({worker})")
            }
            Self::Start { request, weights: Some(label) } => {
                write!(f, "{request} to be started with policy version {}", label.version.0)
            }
            Self::Start { request, weights: None } => {
                write!(f, "{request} to be started: no weights are loaded")
            }
            Self::Worker { worker, command } => {
                write!(f, "rollout {} to {command} ({worker})", worker.worker)
            }
        }
    }
}

/// Failure of a rollout engine or of one request.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum RolloutError {
    /// A setting is out of its range.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Setting(#[from] SettingError),
    /// The request contradicts itself, the model or the engine.
    #[error("{request}: {reason}")]
    #[diagnostic(forward(reason))]
    InvalidRequest {
        /// The request.
        request: RequestName,
        /// Reason for refusing it.
        reason: InvalidReason,
    },
    /// The memory for keys and values does not hold even one block per lane.
    #[error(
        "kv_memory_mib = {kv_memory_mib}: {lanes} lane(s) need at least {needed_mib} MiB for one block each"
    )]
    #[diagnostic(help("raise kv_memory_mib, or set 0 to let the engine choose"))]
    CacheTooSmall {
        /// The setting.
        kv_memory_mib: usize,
        /// Number of lanes.
        lanes: usize,
        /// Smallest value that works.
        needed_mib: usize,
    },
    /// Weights in a form that the engine cannot load.
    #[error("cannot load {label} in the form \"{form}\"; supported: {}", list(supported))]
    UnsupportedForm {
        /// The publication.
        label: PolicyLabel,
        /// Its form.
        form: Form,
        /// Forms that the engine can load.
        supported: Vec<Form>,
    },
    /// Weights of another architecture than the engine was built for.
    #[error("cannot load {label}: the weights are of another architecture than the engine was built for")]
    OtherModel {
        /// The publication.
        label: PolicyLabel,
    },
    /// More policies than the engine can hold.
    #[error("cannot load {label} in addition to policy {}: the engine holds at most {limit}", list(loaded))]
    TooManyPolicies {
        /// The publication.
        label: PolicyLabel,
        /// Loaded policies.
        loaded: Vec<PolicyId>,
        /// Number of policies that can be loaded at the same time.
        limit: usize,
    },
    /// The weights could not be read or received.
    #[error("cannot load {label}: {cause}")]
    #[diagnostic(forward(cause))]
    Weights {
        /// The publication.
        label: PolicyLabel,
        /// Explanation of the worker.
        cause: ErrorText,
    },
    /// The model produced a logit that is NaN, or only infinite ones.
    #[error("{request}: the logits of token {position} are not finite (policy version {})", version.0)]
    #[diagnostic(help("the weights have diverged; lower the learning rate"))]
    NotFinite {
        /// The request.
        request: RequestName,
        /// Position of the token to be sampled, prompt included.
        position: usize,
        /// Version of the weights.
        version: PolicyVersion,
    },
    /// The tokenizer cannot decode the completion to search it for stop strings.
    #[error("{request}: cannot search for stop strings: {cause}")]
    #[diagnostic(forward(cause))]
    Text {
        /// The request.
        request: RequestName,
        /// Explanation of the tokenizer.
        cause: ErrorText,
    },
    /// A request or a command exceeded its timeout.
    #[error("no answer within {:.1} s: waited for {waited_for}", after.as_secs_f64())]
    Timeout {
        /// Subject of the wait.
        waited_for: WaitedFor,
        /// The timeout.
        after: Duration,
    },
    /// A worker failed more often than it may restart; the engine answers no more requests.
    #[error("the rollout engine failed: {worker}: {cause}")]
    #[diagnostic(forward(cause))]
    EngineFailed {
        /// The worker.
        worker: String,
        /// Cause of its last failure.
        cause: WorkerFailure,
    },
    /// A worker failed while it had the request and was restarted. The same request may be submitted again; its
    /// completion does not depend on the failure.
    #[error("rollout {worker} failed and was restarted: {cause}")]
    #[diagnostic(forward(cause))]
    WorkerRestarted {
        /// The worker.
        worker: String,
        /// Cause of the failure.
        cause: WorkerFailure,
    },
    /// The connection to a replica was lost while it had the request. The same request may be submitted again.
    #[error("replica {replica} was lost: {message}")]
    ReplicaLost {
        /// The replica.
        replica: u32,
        /// Explanation of the connection.
        message: String,
    },
    /// A server refused the request.
    #[error("{request}: the server refused with status {status}: {body}")]
    Refused {
        /// The request.
        request: RequestName,
        /// HTTP status.
        status: u16,
        /// Beginning of the response body.
        body: String,
    },
    /// Replicas answered a request with something that cannot be used, each time that it was sent.
    #[error("{request}: replica {replica} gave an unusable answer: {problem}")]
    BadAnswer {
        /// The request.
        request: RequestName,
        /// The last replica that was asked.
        replica: u32,
        /// The problem with its answer.
        problem: String,
    },
    /// No replica was able to serve requests for too long.
    #[error("no replica has served requests for {:.1} s: {last}", after.as_secs_f64())]
    NoReplica {
        /// Time without a replica.
        after: Duration,
        /// The last failure of each replica.
        last: String,
    },
    /// The engine was dropped while the request was in flight.
    #[error("the rollout engine was shut down before the request was finished")]
    ShutDown,
    /// The operating system refused to start a thread.
    #[error("cannot start the thread of {worker}: {message}")]
    Thread {
        /// The worker.
        worker: String,
        /// Explanation of the operating system.
        message: String,
    },
}

impl RolloutError {
    /// True if the same request may succeed when it is submitted again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::WorkerRestarted { .. } | Self::ReplicaLost { .. })
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let shown: Vec<String> = items.iter().map(T::to_string).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_by_ticket_and_sample() {
        let key = RandomKey { sample: 2, ..RandomKey::new(1, 0, Purpose::Rollout, 4) };
        assert_eq!(RequestName(key).to_string(), "rollout request 4/2");
        let evaluation = RandomKey { segment: 1, purpose: Purpose::Evaluation, ..key };
        assert_eq!(RequestName(evaluation).to_string(), "evaluation request 4/2/1");
    }

    #[test]
    fn errors_stay_small() {
        assert!(size_of::<RolloutError>() <= 128, "{}", size_of::<RolloutError>());
    }
}
