//! Functions behind an HTTP address.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::Agent;

use crate::FunctionError;
use crate::error::excerpt;
use crate::protocol::Reply;

/// Attempts at a request that the server did not answer, or refused for the time being.
const ATTEMPTS: u32 = 3;
/// Wait before the second attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(200);
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

/// A failed attempt.
struct Attempt {
    error: FunctionError,
    may_repeat: bool,
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

    /// Posts a request, again after a failure that may pass; all attempts share the timeout.
    pub(crate) fn call(&self, body: &Value) -> Result<Reply, FunctionError> {
        let _connection = self.connection();
        let deadline = Instant::now() + self.timeout;
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.attempt(body, left) {
                Ok(reply) => return self.checked(reply),
                Err(failed) => {
                    let is_last = attempt >= ATTEMPTS || !failed.may_repeat;
                    if is_last || Instant::now() + wait >= deadline {
                        return Err(failed.error);
                    }
                }
            }
            std::thread::sleep(wait);
            wait *= 2;
        }
        unreachable!("the last attempt returns")
    }

    fn attempt(&self, body: &Value, timeout: Duration) -> Result<Reply, Attempt> {
        let unreachable = |error: ureq::Error| Attempt {
            error: match error {
                ureq::Error::Timeout(_) => FunctionError::TimedOut {
                    function: self.url.clone(),
                    timeout: self.timeout,
                    stderr: String::new(),
                },
                error => FunctionError::Unreachable { url: self.url.clone(), reason: error.to_string() },
            },
            may_repeat: true,
        };
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let request = request.config().timeout_global(Some(timeout)).build();
        let mut response = request.send(body.to_string()).map_err(unreachable)?;
        let status = response.status().as_u16();
        let text =
            response.body_mut().with_config().limit(LONGEST_BODY).read_to_vec().map_err(unreachable)?;
        if status != 200 {
            let body = excerpt(&String::from_utf8_lossy(&text));
            return Err(Attempt {
                error: FunctionError::Status { url: self.url.clone(), status, body },
                may_repeat: status == 429 || status >= 500,
            });
        }
        crate::protocol::read_body(&text).map_err(|problem| Attempt {
            error: FunctionError::Malformed { function: self.url.clone(), problem, stderr: String::new() },
            may_repeat: false,
        })
    }

    fn checked(&self, reply: Reply) -> Result<Reply, FunctionError> {
        match reply.error {
            None => Ok(reply),
            Some(error) => Err(FunctionError::Raised { function: self.url.clone(), message: error.message }),
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
