//! A teacher behind the completions API of an inference server: its most probable tokens at the positions of given texts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use miette::Diagnostic;
use rloom_engine::{CandidateIds, PackedBatch, RemoteTeacher, TopTokens, TrainError};
use rloom_text::Tokenizer;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::ServerError;
use crate::http::{HttpClient, HttpError};

/// Path of the calls.
const COMPLETIONS: &str = "/v1/completions";
const MODELS: &str = "/v1/models";
/// Most bytes of an answer: 64 MiB.
const MAX_BODY: usize = 64 << 20;
/// Requests that are in flight at a time.
const CONCURRENCY: usize = 16;
/// Attempts of a request whose failure may pass.
const ATTEMPTS: u32 = 4;

/// Failure of a teacher behind an endpoint.
#[derive(Debug, Diagnostic, thiserror::Error)]
pub enum TeacherError {
    /// The address is not one.
    #[error("the teacher's url: {cause}")]
    Url {
        /// The problem.
        cause: HttpError,
    },
    /// A call failed.
    #[error("the teacher at {url}: {cause}")]
    Call {
        /// Address of the server.
        url: String,
        /// The failure.
        cause: ServerError,
    },
    /// An answer with fewer tokens than the loss compares.
    #[error("the teacher at {url} has {found} of the {wanted} most probable tokens at position {position}")]
    #[diagnostic(help(
        "start the server with a larger limit (vLLM: `--max-logprobs {wanted}`), or compare fewer tokens (`top_k`)"
    ))]
    Few {
        /// Address of the server.
        url: String,
        /// Tokens of the answer.
        found: usize,
        /// Tokens that were requested.
        wanted: usize,
        /// Position in the text.
        position: usize,
    },
    /// A token that is another one for the teacher.
    #[error(
        "the teacher at {url} has another tokenizer: token {token} is {theirs:?} there and {ours:?} here"
    )]
    #[diagnostic(help("serve a model with the tokenizer of the run's model"))]
    OtherToken {
        /// Address of the server.
        url: String,
        /// The token.
        token: u32,
        /// Its text there.
        theirs: String,
        /// Its text in the run.
        ours: String,
    },
    /// The asynchronous runtime could not be started.
    #[error("could not start the runtime of the teacher's calls: {source}")]
    Runtime {
        /// The cause.
        source: std::io::Error,
    },
}

/// A teacher behind an OpenAI-compatible completions API that has `prompt_logprobs`, such as vLLM's.
#[derive(Debug)]
pub struct EndpointTeacher {
    client: Arc<HttpClient>,
    model: Option<String>,
    tokenizer: Arc<Tokenizer>,
    timeout: Duration,
    runtime: tokio::runtime::Runtime,
}

/// A text and the positions whose most probable tokens are wanted.
struct Query {
    tokens: Vec<u32>,
    positions: Vec<usize>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<ModelName>,
}

#[derive(Deserialize)]
struct ModelName {
    id: String,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    prompt_logprobs: Option<Vec<Option<BTreeMap<u32, TokenLogprob>>>>,
}

#[derive(Deserialize)]
struct TokenLogprob {
    logprob: f32,
    decoded_token: Option<String>,
}

impl EndpointTeacher {
    /// A teacher at `http://host:port`, by the name under which the server has it; by default its first model.
    pub fn new(
        url: &str,
        model: Option<String>,
        tokenizer: Arc<Tokenizer>,
        timeout: Duration,
    ) -> Result<Self, TeacherError> {
        let client = HttpClient::new(url, MAX_BODY).map_err(|cause| TeacherError::Url { cause })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| TeacherError::Runtime { source })?;
        Ok(Self { client: Arc::new(client), model, tokenizer, timeout, runtime })
    }

    fn failed(&self, cause: ServerError) -> TeacherError {
        TeacherError::Call { url: self.client.url().to_owned(), cause }
    }

    /// Name of the model, which the first call asks the server for.
    fn model(&mut self) -> Result<String, TeacherError> {
        if let Some(model) = &self.model {
            return Ok(model.clone());
        }
        let (client, timeout) = (Arc::clone(&self.client), self.timeout);
        let answer = self.runtime.block_on(call(client, Method::GET, MODELS, None, timeout));
        let models: Models = answer.map_err(|cause| self.failed(cause))?;
        let first = models.data.into_iter().next();
        let none = || ServerError::Answer { endpoint: MODELS, problem: "there is no model".to_owned() };
        let model = first.ok_or_else(none).map_err(|cause| self.failed(cause))?.id;
        self.model = Some(model.clone());
        Ok(model)
    }

    /// Answers to the queries, in order.
    fn ask(&mut self, queries: &[Query], k: usize) -> Result<Vec<Completion>, TeacherError> {
        let model = self.model()?;
        let (client, timeout) = (&self.client, self.timeout);
        let answers = self.runtime.block_on(async {
            let slots = Arc::new(Semaphore::new(CONCURRENCY));
            let mut calls = JoinSet::new();
            for (index, query) in queries.iter().enumerate() {
                let body = json!({
                    "model": model,
                    "prompt": query.tokens,
                    "max_tokens": 1,
                    "temperature": 0.0,
                    "prompt_logprobs": k,
                });
                let (client, slots, body) = (Arc::clone(client), Arc::clone(&slots), body.to_string());
                calls.spawn(async move {
                    let _slot = slots.acquire_owned().await;
                    (index, call(client, Method::POST, COMPLETIONS, Some(body.into_bytes()), timeout).await)
                });
            }
            calls.join_all().await
        });
        let mut ordered: Vec<Option<Completion>> = queries.iter().map(|_| None).collect();
        for (index, answer) in answers {
            ordered[index] = Some(answer.map_err(|cause| self.failed(cause))?);
        }
        Ok(ordered.into_iter().flatten().collect())
    }

    /// Adds the most probable tokens at the positions of a query, most probable first.
    fn add(
        &self,
        query: &Query,
        answer: &Completion,
        k: usize,
        ids: &mut Vec<u32>,
        logprob: &mut Vec<f32>,
    ) -> Result<(), TeacherError> {
        let logprobs = answer.choices.first().and_then(|choice| choice.prompt_logprobs.as_deref());
        for &position in &query.positions {
            let found = logprobs.and_then(|all| all.get(position)?.as_ref());
            let mut tokens: Vec<(u32, &TokenLogprob)> =
                found.into_iter().flatten().map(|(&id, token)| (id, token)).collect();
            if tokens.len() < k {
                let url = self.client.url().to_owned();
                return Err(TeacherError::Few { url, found: tokens.len(), wanted: k, position });
            }
            // The token of the text comes in addition if it is not among them.
            tokens.sort_by(|(a, of_a), (b, of_b)| of_b.logprob.total_cmp(&of_a.logprob).then(a.cmp(b)));
            for &(id, token) in &tokens[..k] {
                self.check(id, token)?;
                ids.push(id);
                logprob.push(token.logprob);
            }
        }
        Ok(())
    }

    /// Compares the text of a token with that of the run's tokenizer, as far as it has one on its own.
    fn check(&self, id: u32, token: &TokenLogprob) -> Result<(), TeacherError> {
        let Some(theirs) = token.decoded_token.as_deref() else { return Ok(()) };
        let ours = self.tokenizer.decode(&[id], false).unwrap_or_default();
        let is_partial = |text: &str| text.is_empty() || text.contains('\u{fffd}');
        if is_partial(theirs) || is_partial(&ours) || theirs.trim() == ours.trim() {
            return Ok(());
        }
        let url = self.client.url().to_owned();
        Err(TeacherError::OtherToken { url, token: id, theirs: theirs.to_owned(), ours })
    }

    fn of_batches(&mut self, step: &[PackedBatch], k: usize) -> Result<Vec<TopTokens>, TrainError> {
        let failed = |error: TeacherError| TrainError::Teacher(Box::new(error));
        let queries: Vec<Vec<Query>> = step.iter().map(queries).collect();
        let mut found = Vec::with_capacity(step.len());
        for of_batch in &queries {
            let answers = self.ask(of_batch, k).map_err(failed)?;
            let (mut ids, mut logprob) = (Vec::new(), Vec::new());
            for (query, answer) in of_batch.iter().zip(&answers) {
                self.add(query, answer, k, &mut ids, &mut logprob).map_err(failed)?;
            }
            found.push(TopTokens { candidates: CandidateIds::new(k, ids)?, logprob });
        }
        Ok(found)
    }
}

impl RemoteTeacher for EndpointTeacher {
    fn top(&mut self, step: &[PackedBatch], k: usize) -> Result<Vec<TopTokens>, TrainError> {
        self.of_batches(step, k)
    }
}

/// The sequences of a batch, with their prompts.
fn queries(batch: &PackedBatch) -> Vec<Query> {
    let tokens = |segment: usize| &batch.tokens[batch.seq_starts[segment]..batch.seq_starts[segment + 1]];
    let of_sequence = |(&segment, rows): (&usize, &std::ops::Range<usize>)| {
        let prompt = batch.parents[segment].map_or(&[][..], |parent| tokens(parent as usize));
        let start = batch.seq_starts[segment];
        let position = |&row: &u32| row as usize - start + prompt.len();
        Query {
            tokens: [prompt, tokens(segment)].concat(),
            positions: batch.rows[rows.clone()].iter().map(position).collect(),
        }
    };
    batch.segments.iter().zip(&batch.sequences).map(of_sequence).collect()
}

/// Calls the server, again if the failure may pass.
async fn call<T: for<'de> Deserialize<'de>>(
    client: Arc<HttpClient>,
    method: Method,
    endpoint: &'static str,
    body: Option<Vec<u8>>,
    timeout: Duration,
) -> Result<T, ServerError> {
    let mut attempt = 0;
    loop {
        let answer = client.call(method.clone(), endpoint, body.clone(), Instant::now() + timeout).await;
        let failure = match answer {
            Ok(answer) if answer.status == 200 => {
                return serde_json::from_slice(&answer.body)
                    .map_err(|error| ServerError::Answer { endpoint, problem: error.to_string() });
            }
            Ok(answer) => {
                let body: String = String::from_utf8_lossy(&answer.body).chars().take(300).collect();
                ServerError::Status { endpoint, status: answer.status, body }
            }
            Err(cause) => ServerError::Http { endpoint, cause },
        };
        attempt += 1;
        if attempt == ATTEMPTS || failure.is_refusal() || failure.is_bad_answer() {
            return Err(failure);
        }
        sleep(Duration::from_millis(500 << attempt)).await;
    }
}
