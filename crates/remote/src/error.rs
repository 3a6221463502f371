use crate::http::HttpError;

/// Failure of a call to an inference server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// No complete answer.
    #[error("{endpoint}: {cause}")]
    Http {
        /// Path of the call.
        endpoint: &'static str,
        /// The failure.
        cause: HttpError,
    },
    /// An answer with a status that is not 200.
    #[error("{endpoint}: status {status}: {body}")]
    Status {
        /// Path of the call.
        endpoint: &'static str,
        /// HTTP status.
        status: u16,
        /// Beginning of the answer.
        body: String,
    },
    /// An answer that cannot be used.
    #[error("{endpoint}: {problem}")]
    Answer {
        /// Path of the call.
        endpoint: &'static str,
        /// The problem.
        problem: String,
    },
}

impl ServerError {
    /// True if the server understood the request and refuses it, so that another one would refuse it as well.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Status { status: 400..=499, .. })
            && !matches!(self, Self::Status { status: 408 | 429, .. })
    }

    /// True if there is an answer, but one that cannot be used.
    pub(crate) fn is_bad_answer(&self) -> bool {
        matches!(self, Self::Answer { .. } | Self::Http { cause: HttpError::TooLong { .. }, .. })
    }
}
