use std::path::PathBuf;
use std::time::Duration;

use rloom_core::FailureKind;
use rloom_function::may_pass;

use crate::retries::MayPass;

/// A judge that gave no verdict. It is never a reward.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum ModelError {
    /// A request that the server did not answer.
    #[error("no answer from {url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The error.
        reason: String,
    },
    /// A question that exceeded its timeout.
    #[error("{judge} did not answer within {} s", timeout.as_secs_f64())]
    TimedOut {
        /// The judge.
        judge: String,
        /// The timeout.
        timeout: Duration,
    },
    /// A status other than success.
    #[error("{url} answered with status {status}: {body}")]
    Status {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// Least wait before another request, as the server asks.
        retry_after: Duration,
        /// Beginning of the body.
        body: String,
    },
    /// An answer that is not what the interface promises.
    #[error("{url} answered with something else than {expected}: {reason}")]
    Malformed {
        /// The address.
        url: String,
        /// The expected answer.
        expected: &'static str,
        /// The defect.
        reason: String,
    },
    /// An answer without a verdict in the required form.
    #[error("the judge's answer {problem}: {answer:?}")]
    Unreadable {
        /// The defect.
        problem: Unreadable,
        /// End of the answer.
        answer: String,
    },
    /// A variable with the API key that is missing or unusable. The message does not contain the key.
    #[error("the environment variable {variable}, which `api_key_env` names, {problem}")]
    ApiKey {
        /// The variable.
        variable: String,
        /// The defect.
        problem: &'static str,
    },
    /// A prompt that cannot be used.
    #[error("the prompt {file}: {reason}")]
    Prompt {
        /// The file, or "of the program".
        file: String,
        /// The defect.
        reason: String,
    },
    /// A task without what the prompt needs.
    #[error("task {task} has no {missing}")]
    Missing {
        /// Index of the task in its dataset.
        task: u64,
        /// What is missing.
        missing: String,
    },
    /// A file of the cache that cannot be used.
    #[error("the cache of verdicts {}: {reason}", file.display())]
    Cache {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// A model in this process that cannot be opened or failed.
    #[error("the judge {model}: {reason}")]
    Embedded {
        /// The model.
        model: String,
        /// The error.
        reason: String,
    },
    /// A judgement after the end of the run.
    #[error("the judge is not asked any more: the run is ending")]
    Closed,
}

/// Defects of a judge's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Nothing.
    #[error("is empty")]
    Empty,
    /// A limit of tokens.
    #[error("was cut off by `max_tokens`")]
    Truncated,
    /// A last line in another form, or a verdict that is only quoted.
    #[error("does not end with a verdict")]
    NoVerdict,
    /// More than one verdict.
    #[error("has several verdicts")]
    Several,
    /// A verdict that is none of the permitted ones.
    #[error("has a verdict that is not permitted")]
    NotPermitted,
    /// Log-probabilities without those of a verdict.
    #[error("has no log-probabilities of yes and no")]
    NoProbability,
}

impl ModelError {
    /// What failed.
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Status { .. }
            | Self::ApiKey { .. }
            | Self::Cache { .. }
            | Self::Embedded { .. }
            | Self::Closed => FailureKind::Infrastructure,
            Self::Malformed { .. } | Self::Unreadable { .. } | Self::Prompt { .. } => FailureKind::Component,
            Self::Missing { .. } => FailureKind::Task,
        }
    }
}

impl MayPass for ModelError {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => may_pass(*status),
            _ => false,
        }
    }

    fn retry_after(&self) -> Duration {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => Duration::ZERO,
        }
    }
}

/// Longest part of an answer in a message.
const EXCERPT: usize = 200;

/// Beginning of a text, for messages.
pub(crate) fn beginning(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// End of a text, for messages.
pub(crate) fn ending(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().rev().nth(EXCERPT) {
        Some((start, _)) => format!("…{}", &text[start..]),
        None => text.to_owned(),
    }
}
