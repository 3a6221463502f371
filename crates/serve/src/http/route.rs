use hyper::Method;

use crate::problem::{Problem, ProblemKind, Vendor};

/// What a path stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    Models,
    Model(String),
    Chat,
    Completions,
    Responses,
    Messages,
    CountTokens,
}

impl Route {
    /// The route of a request.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        let route = match path {
            "/health" => Self::Health,
            "/v1/models" => Self::Models,
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            _ => match path.strip_prefix("/v1/models/") {
                Some(name) if !name.is_empty() => Self::Model(name.to_owned()),
                _ => return Err(Problem::new(ProblemKind::NotFound, "there is nothing at this path")),
            },
        };
        let is_read = *method == Method::GET || *method == Method::HEAD;
        if is_read == route.is_read() && (is_read || *method == Method::POST) {
            return Ok(route);
        }
        let message =
            format!("this path is only served for {}", if route.is_read() { "GET" } else { "POST" });
        Err(Problem::new(ProblemKind::Method, message))
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Health | Self::Models | Self::Model(_))
    }

    /// Name in the log.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Health => "GET /health",
            Self::Models => "GET /v1/models",
            Self::Model(_) => "GET /v1/models/NAME",
            Self::Chat => "POST /v1/chat/completions",
            Self::Completions => "POST /v1/completions",
            Self::Responses => "POST /v1/responses",
            Self::Messages => "POST /v1/messages",
            Self::CountTokens => "POST /v1/messages/count_tokens",
        }
    }
}

/// API of a path, for the form of its errors.
pub(super) fn vendor(path: &str) -> Vendor {
    if path.starts_with("/v1/messages") { Vendor::Anthropic } else { Vendor::OpenAi }
}
