//! Requests to a server: one attempt each, within rates and a timeout.

use std::time::Duration;

use rloom_function::retry_after;
use serde_json::Value;
use ureq::Agent;
use ureq::http::HeaderValue;

use super::error::{ModelError, beginning};
use super::gate::{Clock, Closed, Gate};
use super::rate::Rate;
use super::settings::Limits;

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
    pub(crate) gate: Gate,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
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

    /// Posts a request of about `tokens` tokens. Waiting for a slot and for the rate does not count as time of the request.
    pub(crate) fn post(&self, body: &Value, tokens: u64) -> Result<Value, ModelError> {
        let authorization = self.authorization()?;
        let _slot = self.gate.slot()?;
        self.gate.pace(tokens)?;
        let answer = self.send(body, authorization.as_ref())?;
        let used = answer.pointer("/usage/total_tokens").and_then(Value::as_u64);
        self.gate.settle(tokens, used.unwrap_or(tokens));
        Ok(answer)
    }

    fn send(&self, body: &Value, authorization: Option<&(String, HeaderValue)>) -> Result<Value, ModelError> {
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        if let Some((_, header)) = authorization {
            request = request.header("authorization", header);
        }
        let request = request.config().timeout_global(Some(self.timeout)).build();
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
            return Err(ModelError::Status { url, status, retry_after, body });
        }
        // Such as the end of a connection that the server closed too early, or the page of a proxy.
        serde_json::from_slice(&text).map_err(|error| ModelError::Unreachable {
            url: self.url.clone(),
            reason: format!("what it sent is not JSON: {error}"),
        })
    }

    /// A request without an answer.
    fn lost(&self, error: ureq::Error) -> ModelError {
        let url = self.url.clone();
        match error {
            ureq::Error::Timeout(_) => ModelError::TimedOut { judge: url, timeout: self.timeout },
            ureq::Error::BodyExceedsLimit(limit) => {
                let reason = format!("it has more than {limit} bytes");
                ModelError::Malformed { url, expected: "a short body", reason }
            }
            error => ModelError::Unreachable { url, reason: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::retries::MayPass as _;

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
    fn the_wait_that_a_server_asks_for_is_read() {
        const LATER: &str =
            "HTTP/1.1 429 Later\r\nconnection: close\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
        let busy = client(vec![LATER], Limits::default(), Duration::from_mins(1));
        assert!(busy.url().ends_with("/v1/chat"), "{}", busy.url());
        let error = busy.post(&json!({}), 0).unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_eq!(error.retry_after(), Duration::from_secs(7));
        assert_eq!(seconds(&busy), 0.0);
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
