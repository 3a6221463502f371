//! The contract of an inference server, in the terms of the pool.

use std::ops::Range;
use std::path::Path;

use rloom_engine::{PolicyLabel, SamplingSettings};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::error::ServerError;
use crate::http::{Answer, HttpClient, HttpError};
use crate::sglang::SglangServer;
use crate::vllm::VllmServer;

/// Longest answer in bytes. A completion of 100,000 tokens takes about 10 MB.
const MAX_ANSWER: usize = 64 << 20;

/// Bytes of a refusal that a message quotes.
const MAX_QUOTE: usize = 2000;

/// Method of HTTP, as far as servers need them.
pub(crate) type Method = hyper::Method;

/// A completion to be generated.
#[derive(Debug, Clone)]
pub(crate) struct Call<'a> {
    /// Name of the request and attempt, unique for the server.
    pub(crate) id: &'a str,
    /// Prompt and prefix.
    pub(crate) tokens: &'a [u32],
    pub(crate) sampling: &'a SamplingSettings,
    /// Maximum number of tokens to add.
    pub(crate) max_tokens: usize,
    /// Minimum number of tokens to add before a stop token.
    pub(crate) min_tokens: usize,
    pub(crate) stop_tokens: &'a [u32],
    pub(crate) seed: u64,
    /// Weights that the request starts with. Keys and values of other weights must not be reused for it.
    pub(crate) weights: Weights,
}

/// Weights that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) label: PolicyLabel,
    /// They are those of an adapter, of which a server has several at a time.
    pub(crate) is_adapter: bool,
}

/// Name of weights in the caches of a server, and of an adapter. vLLM refuses slashes in it.
pub(crate) fn name_of(label: PolicyLabel) -> String {
    label.to_string().replace('/', "-")
}

/// Reason for the end of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A stop token or a stop string.
    Stop,
    Length,
    Aborted,
}

/// A completion as a server reports it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    /// Weights that sampled each range of `tokens`.
    pub(crate) versions: Vec<(PolicyLabel, Range<usize>)>,
    pub(crate) end: End,
}

impl Reply {
    /// Checks the reply to a call against its request. A server that breaks these rules computes something else.
    pub(crate) fn check(&self, call: &Call<'_>, vocabulary: usize) -> Result<(), String> {
        let count = self.tokens.len();
        if self.logprobs.len() != count {
            return Err(format!("{} log-probabilities for {count} tokens", self.logprobs.len()));
        }
        if count > call.max_tokens {
            return Err(format!("{count} tokens instead of at most {}", call.max_tokens));
        }
        if let Some(token) = self.tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(format!("token {token}, and the vocabulary has {vocabulary}"));
        }
        // Servers write -9999 for minus infinity and NaN.
        if let Some(at) = self.logprobs.iter().position(|l| !(l.is_finite() && *l > -9000.0 && *l <= 0.001)) {
            return Err(format!("log-probability {} of token {at}", self.logprobs[at]));
        }
        let mut next = 0;
        for (_, range) in &self.versions {
            if range.start != next || range.end <= range.start {
                return Err(format!("versions of the tokens with gaps: {:?}", self.versions));
            }
            next = range.end;
        }
        if next != count {
            return Err(format!("versions for {next} of {count} tokens"));
        }
        match self.end {
            End::Length if count < call.max_tokens => {
                Err(format!("the end by length after {count} of {} tokens", call.max_tokens))
            }
            End::Stop if count == 0 => Err("a stop without a token".to_owned()),
            End::Stop
                if call.sampling.stop.is_empty()
                    && !self.tokens.last().is_some_and(|token| call.stop_tokens.contains(token)) =>
            {
                Err(format!("a stop after token {:?}, which is no stop token", self.tokens.last()))
            }
            _ => Ok(()),
        }
    }
}

/// Treatment of requests in flight while a server is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// They finish first.
    Wait,
    /// They answer with the tokens they have.
    Abort,
    /// They continue afterwards.
    Keep,
}

/// Properties of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    /// Longest sequence, prompt and completion together.
    pub(crate) context: usize,
    /// Token ids of its model.
    pub(crate) vocabulary: usize,
    /// Requests that it computes at a time.
    pub(crate) max_requests: usize,
    /// Processes that hold its model.
    pub(crate) workers: usize,
    /// Largest rank of an adapter; 0 if it serves none.
    pub(crate) max_adapter_rank: usize,
    /// Label of weights by which those were replaced that the server was started with; empty without any.
    pub(crate) replaced_by: String,
}

/// An inference server: one replica of the policy.
#[derive(Debug)]
pub struct Server(Kind);

#[derive(Debug)]
enum Kind {
    Vllm(VllmServer),
    Sglang(SglangServer),
}

/// Calls the method of the kind's own client.
macro_rules! of_kind {
    ($self:ident, $server:ident => $call:expr) => {
        match &$self.0 {
            Kind::Vllm($server) => $call,
            Kind::Sglang($server) => $call,
        }
    };
}

impl Server {
    /// A vLLM server at `http://host:port`.
    pub fn vllm(url: &str) -> Result<Self, HttpError> {
        Ok(Self(Kind::Vllm(VllmServer::new(Connection::new(url)?))))
    }

    /// An SGLang server at `http://host:port`.
    pub fn sglang(url: &str) -> Result<Self, HttpError> {
        Ok(Self(Kind::Sglang(SglangServer::new(Connection::new(url)?))))
    }

    /// Address of the server.
    pub(crate) fn url(&self) -> &str {
        of_kind!(self, server => server.connection().url())
    }

    /// The client of a server that takes weights from the trainer's memory, serves adapters, and sleeps.
    pub(crate) fn vllm_client(&self) -> Option<&VllmServer> {
        match &self.0 {
            Kind::Vllm(server) => Some(server),
            Kind::Sglang(_) => None,
        }
    }

    /// Checks version and settings, and prepares the server for updates.
    pub(crate) async fn prepare(&self, deadline: Instant) -> Result<Description, ServerError> {
        of_kind!(self, server => server.prepare(deadline).await)
    }

    /// True if the server answers.
    pub(crate) async fn ping(&self, deadline: Instant) -> Result<(), ServerError> {
        of_kind!(self, server => server.ping(deadline).await)
    }

    pub(crate) async fn generate(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, ServerError> {
        of_kind!(self, server => server.generate(call, deadline).await)
    }

    /// Log-probability of each token but the first, at temperature 1.
    pub(crate) async fn score(
        &self,
        id: &str,
        tokens: &[u32],
        weights: Weights,
        deadline: Instant,
    ) -> Result<Vec<f32>, ServerError> {
        of_kind!(self, server => server.score(id, tokens, weights, deadline).await)
    }

    /// Aborts a request, whose call then returns what it has.
    pub(crate) async fn abort(&self, id: &str, deadline: Instant) -> Result<(), ServerError> {
        of_kind!(self, server => server.abort(id, deadline).await)
    }

    pub(crate) async fn pause(&self, pause: Pause, deadline: Instant) -> Result<(), ServerError> {
        of_kind!(self, server => server.pause(pause, deadline).await)
    }

    pub(crate) async fn resume(&self, deadline: Instant) -> Result<(), ServerError> {
        of_kind!(self, server => server.resume(deadline).await)
    }

    /// Replaces the weights of a paused server.
    pub(crate) async fn load(
        &self,
        folder: &Path,
        label: PolicyLabel,
        deadline: Instant,
    ) -> Result<(), ServerError> {
        of_kind!(self, server => server.load(folder, label, deadline).await)
    }

    /// Label of the weights that the server says to have.
    pub(crate) async fn label(&self, deadline: Instant) -> Result<String, ServerError> {
        of_kind!(self, server => server.label(deadline).await)
    }
}

/// JSON over HTTP.
#[derive(Debug)]
pub(crate) struct Connection(HttpClient);

impl Connection {
    fn new(url: &str) -> Result<Self, HttpError> {
        HttpClient::new(url, MAX_ANSWER).map(Self)
    }

    pub(crate) fn url(&self) -> &str {
        self.0.url()
    }

    /// Posts `body` and parses the answer.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        endpoint: &'static str,
        body: &(impl Serialize + Sync),
        deadline: Instant,
    ) -> Result<T, ServerError> {
        parse(endpoint, &self.exchange(Method::POST, endpoint, "", Some(body), deadline).await?)
    }

    /// Posts `body`, which is acknowledged.
    pub(crate) async fn command(
        &self,
        endpoint: &'static str,
        query: &str,
        body: Option<&(impl Serialize + Sync)>,
        deadline: Instant,
    ) -> Result<(), ServerError> {
        self.exchange(Method::POST, endpoint, query, body, deadline).await.map(drop)
    }

    /// Gets and parses an answer.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        endpoint: &'static str,
        deadline: Instant,
    ) -> Result<T, ServerError> {
        parse(endpoint, &self.exchange(Method::GET, endpoint, "", None::<&()>, deadline).await?)
    }

    /// Gets an answer of any content.
    pub(crate) async fn check(&self, endpoint: &'static str, deadline: Instant) -> Result<(), ServerError> {
        self.exchange(Method::GET, endpoint, "", None::<&()>, deadline).await.map(drop)
    }

    async fn exchange(
        &self,
        method: Method,
        endpoint: &'static str,
        query: &str,
        body: Option<&(impl Serialize + Sync)>,
        deadline: Instant,
    ) -> Result<Answer, ServerError> {
        let encode = |body| {
            serde_json::to_vec(body)
                .map_err(|error| ServerError::Answer { endpoint, problem: error.to_string() })
        };
        let body = body.map(encode).transpose()?;
        let answer = self.0.call(method, &format!("{endpoint}{query}"), body, deadline).await;
        let answer = answer.map_err(|cause| ServerError::Http { endpoint, cause })?;
        if answer.status == 200 {
            return Ok(answer);
        }
        let quoted = &answer.body[..answer.body.len().min(MAX_QUOTE)];
        let body = String::from_utf8_lossy(quoted).trim().to_owned();
        Err(ServerError::Status { endpoint, status: answer.status, body })
    }
}

fn parse<T: DeserializeOwned>(endpoint: &'static str, answer: &Answer) -> Result<T, ServerError> {
    serde_json::from_slice(&answer.body)
        .map_err(|error| ServerError::Answer { endpoint, problem: format!("not the expected JSON: {error}") })
}

#[cfg(test)]
mod tests {
    use rloom_core::{PolicyId, PolicyVersion};

    use super::*;

    #[test]
    fn replies_are_checked_against_the_call() {
        let label = PolicyLabel { policy: PolicyId::MAIN, version: PolicyVersion(3), digest: 1 };
        let sampling = SamplingSettings::default();
        let call = Call {
            id: "a",
            tokens: &[1],
            sampling: &sampling,
            max_tokens: 3,
            min_tokens: 0,
            stop_tokens: &[9],
            seed: 1,
            weights: Weights { label, is_adapter: false },
        };
        let good = Reply {
            tokens: vec![4, 5, 9],
            logprobs: vec![-1.0, -0.5, 0.0],
            versions: vec![(label, 0..3)],
            end: End::Stop,
        };
        assert_eq!(good.check(&call, 10), Ok(()));
        let length = Reply { end: End::Length, ..good.clone() };
        assert_eq!(length.check(&call, 10), Ok(()));
        let short = |end| Reply { tokens: vec![4], logprobs: vec![-1.0], versions: vec![(label, 0..1)], end };
        assert_eq!(short(End::Aborted).check(&call, 10), Ok(()));
        let bad = [
            Reply { logprobs: vec![-1.0; 2], ..good.clone() },
            Reply { logprobs: vec![-1.0, f32::NAN, -1.0], ..good.clone() },
            Reply { logprobs: vec![-1.0, -9999.0, -1.0], ..good.clone() },
            Reply { logprobs: vec![-1.0, 0.5, -1.0], ..good.clone() },
            Reply { tokens: vec![4, 10, 9], ..good.clone() },
            Reply { tokens: vec![4, 5, 6], ..good.clone() },
            Reply { versions: vec![], ..good.clone() },
            Reply { versions: vec![(label, 0..1), (label, 2..3)], ..good.clone() },
            Reply { versions: vec![(label, 0..4)], ..good.clone() },
            short(End::Length),
            short(End::Stop),
            Reply { tokens: vec![], logprobs: vec![], versions: vec![], end: End::Stop },
            Reply {
                tokens: vec![1; 4],
                logprobs: vec![-1.0; 4],
                versions: vec![(label, 0..4)],
                end: End::Length,
            },
        ];
        for (case, reply) in bad.iter().enumerate() {
            assert!(reply.check(&call, 10).is_err(), "case {case}: {reply:?}");
        }
    }
}
