use hyper::Method;

use crate::problem::{Problem, ProblemKind, Vendor};

/// Beginning of the paths of a session, before its token.
const SESSION: &str = "/s/";

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
    /// State of a session.
    Session,
    /// Reward of a session.
    Reward,
    /// End of a session.
    Finish,
}

/// Divides a path into the token of its session, if it has one, and the rest.
pub(super) fn session(path: &str) -> (Option<&str>, &str) {
    match path.strip_prefix(SESSION) {
        None => (None, path),
        Some(rest) => {
            let (token, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Some(token), rest)
        }
    }
}

impl Route {
    /// The route of a request to a path without a session, or to the rest of a session's path.
    pub(super) fn of(method: &Method, path: &str, in_session: bool) -> Result<Self, Problem> {
        let route = match path {
            "/health" if !in_session => Self::Health,
            "" | "/" if in_session => Self::Session,
            "/reward" if in_session => Self::Reward,
            "/finish" if in_session => Self::Finish,
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
        matches!(self, Self::Health | Self::Models | Self::Model(_) | Self::Session)
    }

    /// Name in the log.
    pub(super) fn name(&self, in_session: bool) -> &'static str {
        let (plain, session) = match self {
            Self::Health => ("GET /health", ""),
            Self::Models => ("GET /v1/models", "GET /s/TOKEN/v1/models"),
            Self::Model(_) => ("GET /v1/models/NAME", "GET /s/TOKEN/v1/models/NAME"),
            Self::Chat => ("POST /v1/chat/completions", "POST /s/TOKEN/v1/chat/completions"),
            Self::Completions => ("POST /v1/completions", "POST /s/TOKEN/v1/completions"),
            Self::Responses => ("POST /v1/responses", "POST /s/TOKEN/v1/responses"),
            Self::Messages => ("POST /v1/messages", "POST /s/TOKEN/v1/messages"),
            Self::CountTokens => ("POST /v1/messages/count_tokens", "POST /s/TOKEN/v1/messages/count_tokens"),
            Self::Session => ("", "GET /s/TOKEN"),
            Self::Reward => ("", "POST /s/TOKEN/reward"),
            Self::Finish => ("", "POST /s/TOKEN/finish"),
        };
        if in_session { session } else { plain }
    }
}

/// API of a path, for the form of its errors.
pub(super) fn vendor(path: &str) -> Vendor {
    if session(path).1.starts_with("/v1/messages") { Vendor::Anthropic } else { Vendor::OpenAi }
}
