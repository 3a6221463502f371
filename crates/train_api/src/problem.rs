//! Errors of requests and of operations.

use hyper::StatusCode;
use hyper::body::Bytes;
use rloom_algo::AlgoError;
use rloom_engine::{RolloutError, TrainError};
use rloom_serve::ExtensionAnswer;
use rloom_store::StoreError;
use rloom_text::TextError;
use serde_json::json;

/// A request that is refused at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Problem {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// Something that existed.
    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, message)
    }

    /// A limit of the server; the same request may succeed later.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(crate) fn answer(self) -> ExtensionAnswer {
        let body = json!({"detail": self.message}).to_string();
        ExtensionAnswer {
            status: self.status,
            content_type: "application/json",
            body: Bytes::from(body),
            outcome: self.message,
        }
    }
}

/// An operation that was accepted and failed. The client reads it as the operation's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) message: String,
    /// True if the request was wrong, false if the server failed.
    pub(crate) is_of_user: bool,
}

impl Failed {
    pub(crate) fn user(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_of_user: true }
    }

    pub(crate) fn server(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_of_user: false }
    }
}

impl From<TrainError> for Failed {
    fn from(error: TrainError) -> Self {
        // What the client sends determines batches, losses and the optimizer's settings.
        let is_of_user = matches!(
            error,
            TrainError::Batch(_)
                | TrainError::Optimizer(_)
                | TrainError::NotFinite { .. }
                | TrainError::NothingAccumulated
        );
        Self { message: error.to_string(), is_of_user }
    }
}

impl From<AlgoError> for Failed {
    fn from(error: AlgoError) -> Self {
        Self::user(error.to_string())
    }
}

impl From<RolloutError> for Failed {
    fn from(error: RolloutError) -> Self {
        let is_of_user = matches!(error, RolloutError::InvalidRequest { .. } | RolloutError::Setting(_));
        Self { message: error.to_string(), is_of_user }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::server(error.to_string())
    }
}

impl From<TextError> for Failed {
    fn from(error: TextError) -> Self {
        Self::server(error.to_string())
    }
}
