use std::io::{BufRead, BufReader, Read};
use std::time::Instant;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

use super::connection::{Failure, Transport};
use super::message::{self, Incoming};
use crate::ToolError;

/// Longest answer of a server in bytes.
const LONGEST_BODY: u64 = 16 << 20;
const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";

/// A server on the network: streamable HTTP.
#[derive(Debug)]
pub(super) struct HttpServer {
    url: String,
    agent: Agent,
    /// The session, which the server names in its first answer.
    session: Option<String>,
}

impl HttpServer {
    pub(super) fn new(url: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("rloom/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { url: url.to_owned(), agent: Agent::new_with_config(config), session: None }
    }

    fn broken(&self, problem: String) -> Failure {
        Failure::Broken(ToolError::Mcp { server: self.url.clone(), problem })
    }

    fn failed(&self, error: &ureq::Error) -> Failure {
        match error {
            ureq::Error::Timeout(_) => Failure::TimedOut,
            error => self.broken(format!("cannot be reached: {error}")),
        }
    }

    /// A body that cannot be read to its end.
    fn cut(&self, error: &std::io::Error) -> Failure {
        if error.kind() == std::io::ErrorKind::TimedOut || error.to_string().contains("timeout") {
            return Failure::TimedOut;
        }
        self.broken(format!("broke off its answer: {error}"))
    }

    fn post(&mut self, message: &Value, deadline: Instant) -> Result<Response<ureq::Body>, Failure> {
        let mut request = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header(VERSION, message::VERSION);
        if let Some(session) = &self.session {
            request = request.header(SESSION, session);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let request = request.config().timeout_global(Some(left)).build();
        let mut response = request.send(message.to_string()).map_err(|error| self.failed(&error))?;
        let status = response.status().as_u16();
        if !(200..300).contains(&status) {
            let body = response.body_mut().with_config().limit(LONGEST_BODY).read_to_string();
            let body: String = body.unwrap_or_default().chars().take(300).collect();
            return Err(self.broken(format!("answered with status {status}: {body}")));
        }
        if let Some(session) = response.headers().get(SESSION).and_then(|value| value.to_str().ok()) {
            self.session = Some(session.to_owned());
        }
        Ok(response)
    }

    /// The answer with a number in a stream of events, whose messages are in lines that begin with `data:`. Requests of the
    /// server in between are answered.
    fn read_events(&mut self, body: impl Read, id: u64, deadline: Instant) -> Result<Incoming, Failure> {
        let mut data = String::new();
        for line in BufReader::new(body).lines() {
            let line = line.map_err(|error| self.cut(&error))?;
            if let Some(part) = line.strip_prefix("data:") {
                data.push_str(part);
            } else if line.is_empty() {
                let message = serde_json::from_str::<Incoming>(&data);
                data.clear();
                let Ok(message) = message else { continue };
                match (&message.id, &message.method) {
                    (Some(own), Some(method)) => {
                        self.post(&message::answer(own, method), deadline)?;
                    }
                    (Some(found), None) if found.as_u64() == Some(id) => return Ok(message),
                    // Notifications, and answers to requests that are no longer awaited.
                    _ => {}
                }
            }
        }
        Err(self.broken("ended its answer without a result".to_owned()))
    }
}

impl Transport for HttpServer {
    fn name(&self) -> &str {
        &self.url
    }

    fn request(&mut self, id: u64, request: &Value, deadline: Instant) -> Result<Incoming, Failure> {
        let mut response = self.post(request, deadline)?;
        let kind =
            response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_stream = kind.starts_with("text/event-stream");
        let mut body = response.body_mut().with_config().limit(LONGEST_BODY).reader();
        if is_stream {
            return self.read_events(body, id, deadline);
        }
        let mut text = String::new();
        body.read_to_string(&mut text).map_err(|error| self.cut(&error))?;
        serde_json::from_str(&text).map_err(|error| self.broken(format!("answered nonsense: {error}")))
    }

    fn notify(&mut self, message: &Value, deadline: Instant) -> Result<(), Failure> {
        self.post(message, deadline).map(drop)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // The server would keep the state of the session; it may also not support its end.
        let (agent, url) = (self.agent.clone(), self.url.clone());
        std::thread::spawn(move || {
            let request = agent.delete(&url).header(SESSION, session);
            let timeout = std::time::Duration::from_secs(5);
            drop(request.config().timeout_global(Some(timeout)).build().call());
        });
    }
}
