use std::fmt;
use std::time::{Duration, Instant};

/// A request that has ended, for the log. Contains nothing that the client sent but the name of the route.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// Method and path of the route.
    pub route: &'static str,
    /// Status of the answer; `None` if the client disconnected before it.
    pub status: Option<u16>,
    /// Time from the head of the request to the end of the answer.
    pub seconds: f64,
    /// Tokens of the prompt and sampled tokens, for a completion.
    pub tokens: Option<(usize, usize)>,
    /// The end of a completion, or the error.
    pub outcome: String,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.route)?;
        if let Some(status) = self.status {
            write!(f, " {status}")?;
        }
        write!(f, " {:.2} s", self.seconds)?;
        if let Some((prompt, completion)) = self.tokens {
            write!(f, ", {prompt} + {completion} tokens")?;
        }
        if !self.outcome.is_empty() {
            write!(f, ", {}", self.outcome)?;
        }
        Ok(())
    }
}

/// Receives the requests that have ended.
pub(super) type Log = dyn Fn(&Exchange) + Send + Sync;

/// Logs a request when it is dropped. Unless its end was noted, the client has disconnected.
pub(super) struct Logged {
    log: std::sync::Arc<Log>,
    began: Instant,
    exchange: Exchange,
    /// Logged only if it fails.
    is_frequent: bool,
}

impl Logged {
    pub(super) fn begin(log: &std::sync::Arc<Log>, route: &'static str) -> Self {
        let outcome = "client disconnected".to_owned();
        let exchange = Exchange { route, status: None, seconds: 0.0, tokens: None, outcome };
        Self { log: std::sync::Arc::clone(log), began: Instant::now(), exchange, is_frequent: false }
    }

    /// Logs the request only if it fails. Status 408 is the answer to a request that waits.
    pub(super) fn only_failures(&mut self) {
        self.is_frequent = true;
    }

    pub(super) fn status(&mut self, status: u16) {
        self.exchange.status = Some(status);
    }

    pub(super) fn tokens(&mut self, prompt: usize, completion: usize) {
        self.exchange.tokens = Some((prompt, completion));
    }

    /// Notes the end.
    pub(super) fn end(&mut self, outcome: impl Into<String>) {
        self.exchange.outcome = outcome.into();
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        if self.is_frequent && self.exchange.status.is_none_or(|status| status < 400 || status == 408) {
            return;
        }
        let elapsed: Duration = self.began.elapsed();
        self.exchange.seconds = elapsed.as_secs_f64();
        (self.log)(&self.exchange);
    }
}
