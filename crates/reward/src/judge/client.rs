//! Requests to a server: retries, rates and a timeout for all attempts together.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::{HeaderValue, Response};

use super::error::{ModelError, beginning};
use super::gate::{Clock, Closed, Gate};
use super::rate::Rate;
use super::settings::Limits;

/// Wait before the first retry; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// Longest body of an answer in bytes.
const LONGEST_BODY: u64 = 8 << 20;

/// Address of a server, with the variable that has its key.
#[derive(Debug, Clone)]
pub(crate) struct Address<'s> {
    pub(crate) url: &'s str,
    /// Path below `url`.
    pub(crate) path: &'s str,
    pub(crate) api_key_env: Option<&'s str>,
}

/// Posts requests to a server.
pub(crate) struct Client {
    agent: Agent,
    url: String,
    key_variable: Option<String>,
    timeout: Duration,
    retries: u32,
    pub(crate) gate: Gate,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A failed attempt.
struct Attempt {
    /// The error of a number of attempts.
    error: Box<dyn FnOnce(u32) -> ModelError>,
    /// Least wait before the next attempt; `None` if another one would fail as well.
    retry_after: Option<Duration>,
}

impl From<Closed> for ModelError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl Client {
    pub(crate) fn new(
        address: &Address<'_>,
        workers: u32,
        limits: Limits,
        timeout: Duration,
        clock: Clock,
    ) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("rloom/", env!("CARGO_PKG_VERSION")))
            .build();
        let rate = Rate::new(limits.requests_per_minute, limits.tokens_per_minute);
        Self {
            agent: Agent::new_with_config(config),
            url: format!("{}{}", address.url.trim_end_matches('/'), address.path),
            key_variable: address.api_key_env.map(str::to_owned),
            timeout,
            retries: limits.retries,
            gate: Gate::new(workers as usize, rate, clock),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The value of the header with the key. Errors name its variable only.
    fn authorization(&self) -> Result<Option<(String, HeaderValue)>, ModelError> {
        let Some(variable) = &self.key_variable else { return Ok(None) };
        let unusable = |problem| ModelError::ApiKey { variable: variable.clone(), problem };
        let key = match std::env::var(variable) {
            Ok(key) if key.trim().is_empty() => return Err(unusable("is empty")),
            Ok(key) => key.trim().to_owned(),
            Err(std::env::VarError::NotPresent) => return Err(unusable("is not set")),
            Err(std::env::VarError::NotUnicode(_)) => return Err(unusable("is not text")),
        };
        let mut header = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|_| unusable("has characters that no key has"))?;
        header.set_sensitive(true);
        Ok(Some((key, header)))
    }

    /// Checks that requests can be made. The server is not asked.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        self.authorization().map(drop)
    }

    /// Posts a request of about `tokens` tokens, again after failures that may pass. All attempts and the waits between them
    /// share the timeout; waiting for a slot and for the rate does not count.
    pub(crate) fn post(&self, body: &Value, tokens: u64) -> Result<Value, ModelError> {
        let authorization = self.authorization()?;
        let _slot = self.gate.slot()?;
        let mut left = self.timeout;
        let mut backoff = FIRST_WAIT;
        let mut attempts = 0;
        loop {
            self.gate.pace(tokens)?;
            let start = self.gate.clock.now();
            let outcome = self.attempt(body, authorization.as_ref(), left);
            attempts += 1;
            left = left.saturating_sub(self.gate.clock.now().saturating_sub(start));
            let failed = match outcome {
                Ok(answer) => {
                    let used = answer.pointer("/usage/total_tokens").and_then(Value::as_u64);
                    self.gate.settle(tokens, used.unwrap_or(tokens));
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            let wait = failed.retry_after.map(|least| least.max(backoff));
            let Some(wait) = wait.filter(|&wait| attempts <= self.retries && wait < left) else {
                return Err((failed.error)(attempts));
            };
            self.gate.sleep(wait)?;
            left -= wait;
            backoff = (backoff * 2).min(LONGEST_WAIT);
        }
    }

    fn attempt(
        &self,
        body: &Value,
        authorization: Option<&(String, HeaderValue)>,
        timeout: Duration,
    ) -> Result<Value, Attempt> {
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        if let Some((_, header)) = authorization {
            request = request.header("authorization", header);
        }
        let request = request.config().timeout_global(Some(timeout)).build();
        let mut response = request.send(body.to_string()).map_err(|error| self.lost(error))?;
        let (status, retry_after) = (response.status().as_u16(), retry_after(&response));
        let read = response.body_mut().with_config().limit(LONGEST_BODY).read_to_vec();
        let text = read.map_err(|error| self.lost(error))?;
        if status != 200 {
            let mut body = String::from_utf8_lossy(&text).into_owned();
            if let Some((key, _)) = authorization {
                body = body.replace(key.as_str(), "[key]");
            }
            let (url, body) = (self.url.clone(), beginning(&body));
            let may_pass = matches!(status, 408 | 429 | 500..);
            return Err(Attempt {
                error: Box::new(move |attempts| ModelError::Status { url, status, attempts, body }),
                retry_after: may_pass.then_some(retry_after),
            });
        }
        serde_json::from_slice(&text).map_err(|error| {
            let (url, reason) = (self.url.clone(), error.to_string());
            Attempt {
                error: Box::new(move |_| ModelError::Malformed { url, expected: "JSON", reason }),
                // Such as the end of a connection that the server closed too early.
                retry_after: Some(Duration::ZERO),
            }
        })
    }

    /// A request without an answer.
    fn lost(&self, error: ureq::Error) -> Attempt {
        let url = self.url.clone();
        match error {
            ureq::Error::Timeout(_) => {
                let timeout = self.timeout;
                Attempt {
                    error: Box::new(move |attempts| ModelError::TimedOut { judge: url, timeout, attempts }),
                    retry_after: Some(Duration::ZERO),
                }
            }
            ureq::Error::BodyExceedsLimit(limit) => {
                let reason = format!("it has more than {limit} bytes");
                Attempt {
                    error: Box::new(move |_| ModelError::Malformed { url, expected: "a short body", reason }),
                    retry_after: None,
                }
            }
            error => {
                let reason = error.to_string();
                Attempt {
                    error: Box::new(move |attempts| ModelError::Unreachable { url, attempts, reason }),
                    retry_after: Some(Duration::ZERO),
                }
            }
        }
    }
}

/// The wait that a server asks for, in seconds. Dates are not read.
fn retry_after<B>(response: &Response<B>) -> Duration {
    let seconds =
        response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    seconds
        .map_or(Duration::ZERO, |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;

    const DONE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 33\r\n\r\n{\"usage\": { \"total_tokens\": 30 }}";

    /// Serves the answers in turn, one connection each. Returns its address.
    fn server(answers: Vec<&'static str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"{}") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        url
    }

    fn client(answers: Vec<&'static str>, limits: Limits, timeout: Duration) -> Client {
        let url = server(answers);
        let address = Address { url: &url, path: "/chat", api_key_env: None };
        Client::new(&address, 1, limits, timeout, Clock::Virtual(Mutex::default()))
    }

    /// Seconds of the virtual clock, which passes only in waits.
    fn seconds(client: &Client) -> f64 {
        client.gate.clock.now().as_secs_f64()
    }

    #[test]
    fn waits_between_attempts_double_and_obey_the_server() {
        const BUSY: &str = "HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        const LATER: &str =
            "HTTP/1.1 429 Later\r\nconnection: close\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
        let timeout = Duration::from_mins(1);
        let own = client(vec![BUSY, BUSY, BUSY, DONE], Limits::default(), timeout);
        assert!(own.url().ends_with("/v1/chat"), "{}", own.url());
        own.post(&json!({}), 0).unwrap();
        assert_eq!(seconds(&own), 0.5 + 1.0 + 2.0);
        let asked_to_wait = client(vec![LATER, BUSY, DONE], Limits::default(), timeout);
        asked_to_wait.post(&json!({}), 0).unwrap();
        assert_eq!(seconds(&asked_to_wait), 7.0 + 1.0);
        // Another wait would exceed the timeout of all attempts.
        let in_vain = client(vec![LATER, LATER, LATER], Limits::default(), Duration::from_secs(20));
        let error = in_vain.post(&json!({}), 0).unwrap_err();
        assert!(matches!(error, ModelError::Status { status: 429, attempts: 3, .. }), "{error}");
        assert_eq!(seconds(&in_vain), 14.0);
    }

    #[test]
    fn requests_keep_to_the_rates() {
        let timeout = Duration::from_mins(1);
        let limits = Limits { requests_per_minute: 6.0, ..Limits::default() };
        let requests = client(vec![DONE; 4], limits, timeout);
        for number in 0..4 {
            requests.post(&json!({}), 1000).unwrap();
            assert_eq!(seconds(&requests), 10.0 * f64::from(number));
        }
        // The server says that each took 30 tokens, half a minute's worth, instead of 1000.
        let limits = Limits { tokens_per_minute: 60.0, ..Limits::default() };
        let tokens = client(vec![DONE; 3], limits, timeout);
        for number in 0..3 {
            tokens.post(&json!({}), 1000).unwrap();
            assert_eq!(seconds(&tokens), 30.0 * f64::from(number));
        }
    }
}
