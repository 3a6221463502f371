//! Functions behind an HTTP address.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

use crate::FunctionError;
use crate::error::excerpt;
use crate::protocol::Reply;

/// Longest body of an answer in bytes.
const LONGEST_BODY: u64 = 16 << 20;

/// Posts requests to an address.
#[derive(Debug)]
pub struct HttpClient {
    agent: Agent,
    url: String,
    timeout: Duration,
    connections: usize,
    /// Free connections.
    free: Mutex<usize>,
    freed: Condvar,
}

impl HttpClient {
    pub(crate) fn new(url: &str, connections: usize, timeout: Duration) -> Self {
        let connections = connections.max(1);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("rloom/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: Agent::new_with_config(config),
            url: url.to_owned(),
            timeout,
            connections,
            free: Mutex::new(connections),
            freed: Condvar::new(),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    /// Posts a request.
    pub(crate) fn call(&self, body: &Value) -> Result<Reply, FunctionError> {
        let _connection = self.connection();
        let unreachable = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => FunctionError::TimedOut {
                function: self.url.clone(),
                timeout: self.timeout,
                stderr: String::new(),
            },
            error => FunctionError::Unreachable { url: self.url.clone(), reason: error.to_string() },
        };
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let request = request.config().timeout_global(Some(self.timeout)).build();
        let mut response = request.send(body.to_string()).map_err(unreachable)?;
        let (status, retry_after) = (response.status().as_u16(), retry_after(&response));
        let text =
            response.body_mut().with_config().limit(LONGEST_BODY).read_to_vec().map_err(unreachable)?;
        if status != 200 {
            let body = excerpt(&String::from_utf8_lossy(&text));
            return Err(FunctionError::Status { url: self.url.clone(), status, retry_after, body });
        }
        let reply = crate::protocol::read_body(&text).map_err(|problem| FunctionError::Malformed {
            function: self.url.clone(),
            problem,
            stderr: String::new(),
        })?;
        self.checked(reply)
    }

    fn checked(&self, reply: Reply) -> Result<Reply, FunctionError> {
        match reply.error {
            None => Ok(reply),
            Some(error) => Err(error.raised(self.url.clone())),
        }
    }

    /// Waits for a free connection.
    fn connection(&self) -> Connection<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Connection(self)
    }
}

/// A connection in use.
struct Connection<'c>(&'c HttpClient);

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

/// The wait that a server asks for, in seconds. Dates are not read.
pub fn retry_after<B>(response: &Response<B>) -> Duration {
    let seconds =
        response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    seconds
        .map_or(Duration::ZERO, |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO))
}
