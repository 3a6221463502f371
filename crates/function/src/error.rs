use std::time::Duration;

use rloom_core::FailureKind;

/// A call of a function that failed.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum FunctionError {
    /// A program that cannot be started.
    #[error("cannot start {program:?} for {function}: {reason}")]
    #[diagnostic(help(
        "name an installed program: `python` is an interpreter, `command` a program and its arguments"
    ))]
    Start {
        /// The function.
        function: String,
        /// The program.
        program: String,
        /// The error of the operating system.
        reason: String,
    },
    /// A caller whose socket cannot be reached.
    #[error("cannot connect to the caller of {function}: {reason}")]
    #[diagnostic(help(
        "functions named `caller:…` are served by `rloom.train(…)` in Python; name a file (`file.py:name`) otherwise"
    ))]
    Connect {
        /// The function.
        function: String,
        /// The error.
        reason: String,
    },
    /// A function that cannot be loaded or has an unsupported signature.
    #[error("{function} cannot be used: {message}")]
    Refused {
        /// The function.
        function: String,
        /// Message of the worker, with the traceback if there is one.
        message: String,
    },
    /// An exception of the function.
    #[error("{function} failed: {message}")]
    Raised {
        /// The function.
        function: String,
        /// What failed, as the function says.
        kind: FailureKind,
        /// Message and traceback.
        message: String,
    },
    /// A process that ended during the call.
    #[error("the process of {function} {status}{}", quoted(stderr))]
    Ended {
        /// The function.
        function: String,
        /// End of the process, such as "exited with status 1".
        status: String,
        /// End of its stderr.
        stderr: String,
    },
    /// A call that exceeded its timeout. Its process has been killed.
    #[error("{function} did not answer within {} s{}", timeout.as_secs_f64(), quoted(stderr))]
    TimedOut {
        /// The function.
        function: String,
        /// The timeout.
        timeout: Duration,
        /// End of its stderr.
        stderr: String,
    },
    /// A process that did not get ready in time.
    #[error("the process of {function} was not ready within {} s{}", timeout.as_secs_f64(), quoted(stderr))]
    NotReady {
        /// The function.
        function: String,
        /// The timeout.
        timeout: Duration,
        /// End of its stderr.
        stderr: String,
    },
    /// An answer that violates the protocol. Its process has been killed.
    #[error("{function} {problem}{}", quoted(stderr))]
    Malformed {
        /// The function.
        function: String,
        /// The violation.
        problem: Malformed,
        /// End of its stderr.
        stderr: String,
    },
    /// An episode whose process is gone.
    #[error("the process of {function} that played this episode is gone: {reason}")]
    EpisodeLost {
        /// The function.
        function: String,
        /// The end of the process.
        reason: String,
    },
    /// A request that an HTTP server did not answer.
    #[error("no answer from {url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The error.
        reason: String,
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
    /// A pool that is closing.
    #[error("{function} is not called any more: the run is ending")]
    Closed {
        /// The function.
        function: String,
    },
}

/// Violations of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A line that is not JSON or has fields of wrong types.
    #[error("wrote a line to stdout that is not an answer ({reason}): {line}")]
    NotAnAnswer {
        /// The parser's error.
        reason: String,
        /// Beginning of the line.
        line: String,
    },
    /// A line without an end.
    #[error("wrote a line of more than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The answer to another request.
    #[error("answered request {found} instead of {expected}")]
    WrongRequest {
        /// The request.
        expected: u64,
        /// The answered request.
        found: u64,
    },
    /// A number of verdicts that differs from the number of samples.
    #[error("returned {found} values for {expected} samples")]
    Count {
        /// Number of samples.
        expected: usize,
        /// Number of verdicts.
        found: usize,
    },
    /// A number of coefficients that differs from the number of tokens.
    #[error("returned {found} coefficients for {expected} tokens")]
    Coefficients {
        /// Number of tokens.
        expected: usize,
        /// Number of coefficients.
        found: usize,
    },
    /// A verdict that is not a number.
    #[error("returned {value} as a reward, which is not a finite number or null")]
    Value {
        /// Beginning of the value.
        value: String,
    },
    /// An answer of another kind than the request asks for.
    #[error("sent an answer without `{expected}`")]
    Missing {
        /// The field.
        expected: &'static str,
    },
}

impl FunctionError {
    /// What failed.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Raised { kind, .. } => *kind,
            Self::Refused { .. } | Self::Malformed { .. } => FailureKind::Component,
            Self::Start { .. }
            | Self::Connect { .. }
            | Self::Ended { .. }
            | Self::TimedOut { .. }
            | Self::NotReady { .. }
            | Self::EpisodeLost { .. }
            | Self::Unreachable { .. }
            | Self::Status { .. }
            | Self::Closed { .. } => FailureKind::Infrastructure,
        }
    }

    /// True if another call may succeed. One that used up its time is not repeated.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Raised { kind, .. } => *kind == FailureKind::Infrastructure,
            Self::Status { status, .. } => may_pass(*status),
            Self::Start { .. }
            | Self::Connect { .. }
            | Self::Ended { .. }
            | Self::EpisodeLost { .. }
            | Self::Unreachable { .. } => true,
            Self::Refused { .. }
            | Self::TimedOut { .. }
            | Self::NotReady { .. }
            | Self::Malformed { .. }
            | Self::Closed { .. } => false,
        }
    }

    /// Least wait before another call.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => Duration::ZERO,
        }
    }

    /// True if another process may succeed.
    pub(crate) fn is_crash(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

/// True for the statuses of servers that may answer the same request later.
pub fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

fn quoted(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; its stderr ends with:\n{stderr}") }
}

/// Beginning of a text, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 200;
    let text = text.trim_end();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
