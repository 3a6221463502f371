//! Client of vLLM's server.
//!
//! Generation is token in, token out (`/inference/v1/generate`); weights are loaded by the worker extension of
//! `python/rloom/vllm/extension.py`, which every server has to run.

mod wire;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use rloom_engine::{Channel, PolicyLabel, WeightChunk};
use tokio::time::Instant;

use crate::environment::TestedVersions;
use crate::error::ServerError;
use crate::server::{Call, Connection, Description, End, Pause, Reply, Weights, name_of};
use wire::{
    AbortBody, AdapterBody, AdapterName, Choice, Chunk, FinishBody, GenerateAnswer, GenerateBody, InitBody,
    InitInfo, ModelList, RpcAnswer, RpcBody, SamplingParams, SleepState, Span, UpdateBody, UpdateInfo,
    WeightInfo, WorkerDescription,
};

const GENERATE: &str = "/inference/v1/generate";
const DESCRIBE: &str = "/collective_rpc";
const INIT: &str = "/init_weight_transfer_engine";
const START: &str = "/start_weight_update";
const UPDATE: &str = "/update_weights";
const FINISH: &str = "/finish_weight_update";
const WAKE: &str = "/wake_up";
const LOAD_ADAPTER: &str = "/v1/load_lora_adapter";

/// Prefix that the server puts in front of a request's name.
const ID_PREFIX: &str = "generate-tokens-";

/// Version of the worker extension's answers.
const PROTOCOL: u32 = 3;

/// Versions whose protocol is known: the first was tested on CPUs, the last by its schemas.
pub(crate) const VERSIONS: TestedVersions = TestedVersions::new("vllm", (0, 32), (0, 33));

/// Weights that sampled each range of a completion.
type Versions = Vec<(PolicyLabel, Range<usize>)>;

/// A vLLM server.
#[derive(Debug)]
pub(crate) struct VllmServer {
    connection: Connection,
}

impl VllmServer {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) async fn ping(&self, deadline: Instant) -> Result<(), ServerError> {
        self.connection.check("/health", deadline).await
    }

    pub(crate) async fn prepare(&self, deadline: Instant) -> Result<Description, ServerError> {
        let workers = self.describe(deadline).await?;
        for worker in &workers {
            check_worker(worker).map_err(|problem| ServerError::Answer { endpoint: DESCRIBE, problem })?;
        }
        let smallest = |of: fn(&WorkerDescription) -> usize| workers.iter().map(of).min().unwrap_or(0);
        let body = InitBody { init_info: InitInfo::default() };
        self.connection.command(INIT, "", Some(&body), deadline).await?;
        Ok(Description {
            workers: workers.len(),
            context: smallest(|worker| worker.max_model_len),
            vocabulary: smallest(|worker| worker.vocabulary),
            max_requests: smallest(|worker| worker.max_num_seqs),
            max_adapter_rank: smallest(|worker| worker.max_adapter_rank),
            replaced_by: workers.into_iter().map(|worker| worker.loaded).max().unwrap_or_default(),
        })
    }

    /// Descriptions of all workers, at least one.
    async fn describe(&self, deadline: Instant) -> Result<Vec<WorkerDescription>, ServerError> {
        let body = RpcBody { method: "rloom_describe" };
        let answer: RpcAnswer = self.connection.post(DESCRIBE, &body, deadline).await?;
        if answer.results.is_empty() {
            let problem = "no worker describes itself".to_owned();
            return Err(ServerError::Answer { endpoint: DESCRIBE, problem });
        }
        Ok(answer.results)
    }

    pub(crate) async fn generate(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, ServerError> {
        let sampling = call.sampling;
        let body = GenerateBody {
            model: adapter_of(call.weights),
            request_id: call.id,
            token_ids: call.tokens,
            sampling_params: SamplingParams {
                temperature: sampling.temperature,
                top_k: sampling.top_k,
                top_p: sampling.top_p,
                min_p: sampling.min_p,
                max_tokens: call.max_tokens,
                min_tokens: call.min_tokens,
                // The server reads it as a signed number.
                seed: Some(call.seed >> 1),
                stop_token_ids: call.stop_tokens,
                stop: &sampling.stop,
                ignore_eos: true,
                detokenize: !sampling.stop.is_empty(),
                logprobs: 0,
                prompt_logprobs: None,
            },
            cache_salt: name_of(call.weights.label),
        };
        let answer = self.connection.post(GENERATE, &body, deadline).await;
        let answer: GenerateAnswer = answer.map_err(|error| match error {
            // Of a process that was started again: not a refusal of this request.
            ServerError::Status { status: 404, body, .. } if call.weights.is_adapter => {
                ServerError::Answer { endpoint: GENERATE, problem: format!("no adapter: {body}") }
            }
            error => error,
        })?;
        let reply = only_choice(answer, call.id, call.weights);
        let reply = reply.and_then(|(choice, _)| reply_of(choice, call.weights));
        reply.map_err(|problem| ServerError::Answer { endpoint: GENERATE, problem })
    }

    pub(crate) async fn score(
        &self,
        id: &str,
        tokens: &[u32],
        weights: Weights,
        deadline: Instant,
    ) -> Result<Vec<f32>, ServerError> {
        let body = GenerateBody {
            model: adapter_of(weights),
            request_id: id,
            token_ids: tokens,
            sampling_params: SamplingParams {
                temperature: 0.0,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                max_tokens: 1,
                min_tokens: 0,
                seed: None,
                stop_token_ids: &[],
                stop: &[],
                ignore_eos: true,
                detokenize: false,
                logprobs: 0,
                prompt_logprobs: Some(0),
            },
            cache_salt: name_of(weights.label),
        };
        let answer: GenerateAnswer = self.connection.post(GENERATE, &body, deadline).await?;
        let scores = only_choice(answer, id, weights).and_then(|(_, answer)| prompt_scores(&answer, tokens));
        scores.map_err(|problem| ServerError::Answer { endpoint: GENERATE, problem })
    }

    pub(crate) async fn abort(&self, id: &str, deadline: Instant) -> Result<(), ServerError> {
        let body = AbortBody { request_ids: vec![format!("{ID_PREFIX}{id}")] };
        self.connection.command("/inference/v1/abort_requests", "", Some(&body), deadline).await
    }

    pub(crate) async fn pause(&self, pause: Pause, deadline: Instant) -> Result<(), ServerError> {
        let query = match pause {
            Pause::Wait => "?mode=wait",
            Pause::Abort => "?mode=abort",
            Pause::Keep => "?mode=keep",
        };
        self.connection.command("/pause", query, None::<&()>, deadline).await
    }

    pub(crate) async fn resume(&self, deadline: Instant) -> Result<(), ServerError> {
        self.connection.command("/resume", "", None::<&()>, deadline).await
    }

    pub(crate) async fn load(
        &self,
        folder: &Path,
        label: PolicyLabel,
        deadline: Instant,
    ) -> Result<(), ServerError> {
        let path = text_of(UPDATE, folder)?;
        self.start_update(deadline).await?;
        self.update(&UpdateInfo { label: label.to_string(), path: Some(path), chunk: None }, deadline)
            .await?;
        self.finish_update(label, deadline).await
    }

    /// Adds an adapter under the name of its label to those that requests may name.
    pub(crate) async fn load_adapter(
        &self,
        folder: &Path,
        label: PolicyLabel,
        deadline: Instant,
    ) -> Result<(), ServerError> {
        let lora_path = text_of(LOAD_ADAPTER, folder)?;
        let body = AdapterBody { lora_name: name_of(label), lora_path };
        self.connection.command(LOAD_ADAPTER, "", Some(&body), deadline).await
    }

    /// Removes an adapter by its name.
    pub(crate) async fn unload_adapter(&self, name: &str, deadline: Instant) -> Result<(), ServerError> {
        let body = AdapterName { lora_name: name };
        self.connection.command("/v1/unload_lora_adapter", "", Some(&body), deadline).await
    }

    /// Names of the adapters that requests may name.
    pub(crate) async fn adapters(&self, deadline: Instant) -> Result<Vec<String>, ServerError> {
        let ModelList { data } = self.connection.get("/v1/models", deadline).await?;
        // The parent of an adapter is its base, which has none.
        Ok(data.into_iter().filter(|model| model.parent.is_some()).map(|model| model.id).collect())
    }

    /// Joins the trainer in a communicator.
    pub(crate) async fn join(&self, channel: &Channel, deadline: Instant) -> Result<(), ServerError> {
        let body = InitBody { init_info: InitInfo::of(channel) };
        self.connection.command(INIT, "", Some(&body), deadline).await
    }

    /// Takes tensors from the trainer's memory, between the start and the end of an update.
    pub(crate) async fn receive(
        &self,
        chunk: &WeightChunk,
        label: PolicyLabel,
        deadline: Instant,
    ) -> Result<(), ServerError> {
        let info = UpdateInfo { label: label.to_string(), path: None, chunk: Some(Chunk::of(chunk)) };
        self.update(&info, deadline).await
    }

    async fn update(&self, info: &UpdateInfo<'_>, deadline: Instant) -> Result<(), ServerError> {
        self.connection.command(UPDATE, "", Some(&UpdateBody { update_info: info }), deadline).await
    }

    pub(crate) async fn start_update(&self, deadline: Instant) -> Result<(), ServerError> {
        let connection = &self.connection;
        if let Err(error) = connection.command(START, "", None::<&()>, deadline).await {
            // An update that was not finished keeps the next one from starting.
            let body = FinishBody { weight_version: None };
            if !matches!(error, ServerError::Status { .. })
                || connection.command(FINISH, "", Some(&body), deadline).await.is_err()
            {
                return Err(error);
            }
            connection.command(START, "", None::<&()>, deadline).await?;
        }
        Ok(())
    }

    pub(crate) async fn finish_update(
        &self,
        label: PolicyLabel,
        deadline: Instant,
    ) -> Result<(), ServerError> {
        let body = FinishBody { weight_version: Some(label.to_string()) };
        self.connection.command(FINISH, "", Some(&body), deadline).await
    }

    /// Gives away the memory of weights, keys and values. None of it is read again before it is replaced.
    pub(crate) async fn sleep(&self, deadline: Instant) -> Result<(), ServerError> {
        self.connection.command("/sleep", "?level=2&mode=abort", None::<&()>, deadline).await?;
        self.check_sleeping(true, deadline).await
    }

    /// Takes memory for weights; requests wait.
    pub(crate) async fn wake_weights(&self, deadline: Instant) -> Result<(), ServerError> {
        self.connection.command(WAKE, "?tags=weights", None::<&()>, deadline).await?;
        self.check_sleeping(true, deadline).await
    }

    /// Takes memory for keys and values, and serves requests.
    pub(crate) async fn wake_cache(&self, deadline: Instant) -> Result<(), ServerError> {
        self.connection.command(WAKE, "?tags=kv_cache", None::<&()>, deadline).await?;
        self.check_sleeping(false, deadline).await
    }

    async fn check_sleeping(&self, expected: bool, deadline: Instant) -> Result<(), ServerError> {
        const ASLEEP: &str = "/is_sleeping";
        let SleepState { is_sleeping } = self.connection.get(ASLEEP, deadline).await?;
        if is_sleeping == expected {
            return Ok(());
        }
        let state = if is_sleeping { "still asleep" } else { "awake" };
        Err(ServerError::Answer { endpoint: ASLEEP, problem: format!("the server is {state}") })
    }

    pub(crate) async fn label(&self, deadline: Instant) -> Result<String, ServerError> {
        let info: WeightInfo = self.connection.get("/weight_info", deadline).await?;
        let workers = self.describe(deadline).await?;
        let other = workers.into_iter().find(|worker| worker.loaded != info.weight_version);
        Ok(other.map_or(info.weight_version, |worker| worker.loaded))
    }
}

/// Checks that a worker is of a known version and reports usable log-probabilities.
fn check_worker(worker: &WorkerDescription) -> Result<(), String> {
    let WorkerDescription { protocol, version, full_softmax, logprobs_mode, .. } = worker;
    if *protocol != PROTOCOL {
        return Err(format!("the worker extension is of protocol {protocol}, not {PROTOCOL}"));
    }
    if !VERSIONS.contains(version) {
        return Err(format!("vLLM {version} is not supported; supported: {VERSIONS}"));
    }
    if logprobs_mode != "processed_logprobs" {
        return Err(format!("started with --logprobs-mode {logprobs_mode}, not processed_logprobs"));
    }
    if !full_softmax {
        return Err("this vLLM's sampler cannot report log-probabilities of the full softmax".to_owned());
    }
    Ok(())
}

/// The answer's only choice, if it is the answer to this request.
fn only_choice(
    mut answer: GenerateAnswer,
    id: &str,
    weights: Weights,
) -> Result<(Choice, GenerateAnswer), String> {
    if answer.request_id.strip_prefix(ID_PREFIX) != Some(id) {
        return Err(format!("the answer to request {}, not {id}", answer.request_id));
    }
    if adapter_of(weights).is_some_and(|name| name != answer.model) {
        return Err(format!("the answer of `{}` instead of the adapter {}", answer.model, weights.label));
    }
    match answer.choices.pop() {
        Some(choice) if answer.choices.is_empty() => Ok((choice, answer)),
        _ => Err("not one choice".to_owned()),
    }
}

/// Name of the adapter that a request is computed with; `None` for the model's own weights.
fn adapter_of(weights: Weights) -> Option<String> {
    weights.is_adapter.then(|| name_of(weights.label))
}

fn text_of<'a>(endpoint: &'static str, folder: &'a Path) -> Result<&'a str, ServerError> {
    folder.to_str().ok_or_else(|| {
        let problem = format!("the path {} is not UTF-8", folder.display());
        ServerError::Answer { endpoint, problem }
    })
}

fn reply_of(choice: Choice, weights: Weights) -> Result<Reply, String> {
    let tokens = choice.token_ids.ok_or("no token ids")?;
    let content = choice.logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default();
    if content.iter().map(|entry| entry.token_id).ne(tokens.iter().copied()) {
        return Err("log-probabilities of other tokens".to_owned());
    }
    let logprobs = content.iter().map(|entry| entry.logprob.unwrap_or(f32::NAN)).collect();
    let spans = choice.weight_versions.unwrap_or_default();
    let versions = if weights.is_adapter {
        versions_of_adapter(&spans, weights.label, tokens.len())?
    } else {
        versions_of(&spans)?
    };
    let end = match choice.finish_reason.as_deref() {
        Some("stop") => End::Stop,
        Some("length") => End::Length,
        Some("abort") => End::Aborted,
        other => return Err(format!("finish reason {other:?}")),
    };
    Ok(Reply { tokens, logprobs, versions, end })
}

fn versions_of(spans: &[Span]) -> Result<Versions, String> {
    let mut versions = Vec::new();
    for span in spans.iter().filter(|span| span.end > span.start) {
        let label =
            span.version.parse().map_err(|error| format!("weights with an unknown label: {error}"))?;
        versions.push((label, span.start..span.end));
    }
    Ok(versions)
}

/// Versions of a completion of an adapter. A request keeps its adapter; what the server names is the base, which must not
/// have changed.
fn versions_of_adapter(spans: &[Span], label: PolicyLabel, tokens: usize) -> Result<Versions, String> {
    if let Some(other) = spans.iter().find(|span| span.version != spans[0].version) {
        return Err(format!("the base changed from {} to {} meanwhile", spans[0].version, other.version));
    }
    Ok(if tokens == 0 { Vec::new() } else { vec![(label, 0..tokens)] })
}

fn prompt_scores(answer: &GenerateAnswer, tokens: &[u32]) -> Result<Vec<f32>, String> {
    let rows = answer.prompt_logprobs.as_deref().unwrap_or_default();
    if rows.len() != tokens.len() {
        return Err(format!("log-probabilities of {} of {} prompt tokens", rows.len(), tokens.len()));
    }
    let score = |(row, token): (&Option<BTreeMap<String, wire::PromptLogprob>>, &u32)| {
        row.as_ref().and_then(|row| row.get(&token.to_string())).and_then(|entry| entry.logprob)
    };
    let scores: Option<Vec<f32>> = rows.iter().zip(tokens).skip(1).map(score).collect();
    scores.ok_or_else(|| "log-probabilities of other prompt tokens".to_owned())
}
