//! Errors of requests, in the form of each API.

use hyper::StatusCode;
use rloom_engine::{InvalidReason, RolloutError};
use serde_json::{Value, json};

/// Seconds after which a refused client should try again.
pub(crate) const RETRY_AFTER: u32 = 1;
/// Characters of a client's text that a message repeats.
const MAX_QUOTED: usize = 100;

/// Kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    Gone,
    Method,
    Slow,
    TooLarge,
    Encoding,
    Busy,
    Failed,
    Unavailable,
    TimedOut,
}

/// API whose form an error has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    OpenAi,
    Anthropic,
}

/// Error of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: ProblemKind,
    pub(crate) message: String,
    /// Field of the request.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
}

/// Text of the client for a message, which is not to be longer than the request.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, code: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ProblemKind::Invalid, message)
    }

    /// A field with a value that cannot be honoured; the message follows the name of the field.
    pub(crate) fn field(name: &str, message: impl std::fmt::Display) -> Self {
        Self { param: Some(name.to_owned()), ..Self::invalid(format!("`{name}` {message}")) }
    }

    /// A prompt without room for a completion.
    pub(crate) fn too_long(param: &str, prompt: usize, context: usize) -> Self {
        let message = format!(
            "the prompt has {prompt} tokens, but prompt and completion together have at most {context} tokens"
        );
        Self {
            param: Some(param.to_owned()),
            code: Some("context_length_exceeded"),
            ..Self::invalid(message)
        }
    }

    /// A failure of the engine.
    pub(crate) fn of_engine(error: &RolloutError) -> Self {
        if let RolloutError::InvalidRequest {
            reason: InvalidReason::UnknownToken { token, vocabulary },
            ..
        } = error
        {
            let message =
                format!("has token {token}, but the model has {vocabulary} tokens, which begin at 0");
            return Self::field("prompt", message);
        }
        let kind = match error {
            RolloutError::InvalidRequest { .. } | RolloutError::Setting(_) => ProblemKind::Invalid,
            RolloutError::Timeout { .. } => ProblemKind::TimedOut,
            error if error.is_retryable() => ProblemKind::Unavailable,
            _ => ProblemKind::Failed,
        };
        Self::new(kind, error.to_string())
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            ProblemKind::Invalid => StatusCode::BAD_REQUEST,
            ProblemKind::Unauthorized => StatusCode::UNAUTHORIZED,
            ProblemKind::Forbidden => StatusCode::FORBIDDEN,
            ProblemKind::NotFound => StatusCode::NOT_FOUND,
            ProblemKind::Gone => StatusCode::GONE,
            ProblemKind::Method => StatusCode::METHOD_NOT_ALLOWED,
            ProblemKind::Slow => StatusCode::REQUEST_TIMEOUT,
            ProblemKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ProblemKind::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ProblemKind::Busy => StatusCode::TOO_MANY_REQUESTS,
            ProblemKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            ProblemKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ProblemKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// True if the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self.kind, ProblemKind::Busy | ProblemKind::Unavailable)
    }

    /// Body of the answer.
    pub(crate) fn body(&self, vendor: Vendor) -> Value {
        match vendor {
            Vendor::OpenAi => json!({ "error": self.openai() }),
            Vendor::Anthropic => json!({ "type": "error", "error": self.anthropic() }),
        }
    }

    fn openai(&self) -> Value {
        let kind = match self.kind {
            ProblemKind::Busy => "rate_limit_error",
            ProblemKind::Failed | ProblemKind::Unavailable | ProblemKind::TimedOut => "server_error",
            _ => "invalid_request_error",
        };
        let code = match self.kind {
            ProblemKind::Unauthorized => Some("invalid_api_key"),
            ProblemKind::Busy => Some("rate_limit_exceeded"),
            ProblemKind::Gone => Some("session_over"),
            _ => self.code,
        };
        json!({ "message": self.message, "type": kind, "param": self.param, "code": code })
    }

    fn anthropic(&self) -> Value {
        let kind = match self.kind {
            ProblemKind::Unauthorized => "authentication_error",
            ProblemKind::Forbidden => "permission_error",
            ProblemKind::NotFound => "not_found_error",
            ProblemKind::TooLarge => "request_too_large",
            ProblemKind::Busy => "rate_limit_error",
            ProblemKind::Unavailable => "overloaded_error",
            ProblemKind::TimedOut => "timeout_error",
            ProblemKind::Failed => "api_error",
            ProblemKind::Invalid
            | ProblemKind::Gone
            | ProblemKind::Method
            | ProblemKind::Slow
            | ProblemKind::Encoding => "invalid_request_error",
        };
        json!({ "type": kind, "message": self.message })
    }
}
