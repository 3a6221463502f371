//! Client of SGLang's server.
//!
//! Its log-probabilities are those of the full softmax at the temperature, also with filters. With a minimum length they
//! are those of the tokens that do not stop.

mod wire;

use std::path::Path;

use rloom_engine::PolicyLabel;
use tokio::time::Instant;

use crate::environment::TestedVersions;
use crate::error::ServerError;
use crate::server::{Call, Connection, Description, End, Pause, Reply, Weights, name_of};
use wire::{
    AbortBody, ContinueBody, GenerateAnswer, GenerateBody, ModelInfo, PauseBody, SamplingParams, ServerInfo,
    UpdateAnswer, UpdateBody,
};

const GENERATE: &str = "/generate";
const SERVER_INFO: &str = "/server_info";
const MODEL_INFO: &str = "/model_info";
const UPDATE: &str = "/update_weights_from_disk";

/// Versions whose protocol is known, by their schemas.
pub(crate) const VERSIONS: TestedVersions = TestedVersions::new("sglang", (0, 5), (0, 5));

/// An SGLang server.
#[derive(Debug)]
pub(crate) struct SglangServer {
    connection: Connection,
}

impl SglangServer {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Its `/health` generates a token and takes a second.
    pub(crate) async fn ping(&self, deadline: Instant) -> Result<(), ServerError> {
        self.connection.check(MODEL_INFO, deadline).await
    }

    pub(crate) async fn prepare(&self, deadline: Instant) -> Result<Description, ServerError> {
        let info: ServerInfo = self.connection.get(SERVER_INFO, deadline).await?;
        if !VERSIONS.contains(&info.version) {
            let problem = format!("SGLang {} is not supported; supported: {VERSIONS}", info.version);
            return Err(ServerError::Answer { endpoint: SERVER_INFO, problem });
        }
        // It does not tell the size of its vocabulary.
        Ok(Description {
            context: info.max_req_input_len.unwrap_or(usize::MAX),
            vocabulary: usize::MAX,
            max_requests: info.max_running_requests.unwrap_or(usize::MAX),
            workers: 1,
            // Its adapters are not used: it gets them merged with their base.
            max_adapter_rank: 0,
            replaced_by: String::new(),
        })
    }

    pub(crate) async fn generate(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, ServerError> {
        let sampling = call.sampling;
        let body = GenerateBody {
            rid: call.id,
            input_ids: call.tokens,
            sampling_params: SamplingParams {
                temperature: sampling.temperature,
                top_k: if sampling.top_k == 0 { -1 } else { i64::from(sampling.top_k) },
                top_p: sampling.top_p,
                min_p: sampling.min_p,
                max_new_tokens: call.max_tokens,
                min_new_tokens: call.min_tokens,
                // The server reads it as a signed number.
                sampling_seed: Some(call.seed >> 1),
                stop_token_ids: call.stop_tokens,
                stop: &sampling.stop,
                ignore_eos: true,
                skip_special_tokens: false,
                no_stop_trim: true,
            },
            return_logprob: true,
            logprob_start_len: -1,
            cache_salt: name_of(call.weights.label),
        };
        let answer: GenerateAnswer = self.connection.post(GENERATE, &body, deadline).await?;
        reply_of(answer, call.id).map_err(|problem| ServerError::Answer { endpoint: GENERATE, problem })
    }

    pub(crate) async fn score(
        &self,
        id: &str,
        tokens: &[u32],
        weights: Weights,
        deadline: Instant,
    ) -> Result<Vec<f32>, ServerError> {
        let body = GenerateBody {
            rid: id,
            input_ids: tokens,
            sampling_params: SamplingParams {
                temperature: 0.0,
                top_k: -1,
                top_p: 1.0,
                min_p: 0.0,
                max_new_tokens: 1,
                min_new_tokens: 0,
                sampling_seed: None,
                stop_token_ids: &[],
                stop: &[],
                ignore_eos: true,
                skip_special_tokens: false,
                no_stop_trim: true,
            },
            return_logprob: true,
            logprob_start_len: 0,
            cache_salt: name_of(weights.label),
        };
        let answer: GenerateAnswer = self.connection.post(GENERATE, &body, deadline).await?;
        let rows = &answer.meta_info.input_token_logprobs;
        let is_of_tokens = rows.iter().map(|row| row.1).eq(tokens.iter().copied());
        let scores: Option<Vec<f32>> = rows.iter().skip(1).map(|row| row.0).collect();
        scores.filter(|_| is_of_tokens).ok_or_else(|| ServerError::Answer {
            endpoint: GENERATE,
            problem: "log-probabilities of other prompt tokens".to_owned(),
        })
    }

    pub(crate) async fn abort(&self, id: &str, deadline: Instant) -> Result<(), ServerError> {
        self.connection.command("/abort_request", "", Some(&AbortBody { rid: id }), deadline).await
    }

    pub(crate) async fn pause(&self, pause: Pause, deadline: Instant) -> Result<(), ServerError> {
        let mode = match pause {
            // The pool has waited for the requests. What is left was cancelled.
            Pause::Wait | Pause::Abort => "abort",
            Pause::Keep => "in_place",
        };
        self.connection.command("/pause_generation", "", Some(&PauseBody { mode }), deadline).await
    }

    pub(crate) async fn resume(&self, deadline: Instant) -> Result<(), ServerError> {
        self.connection.command("/continue_generation", "", Some(&ContinueBody {}), deadline).await
    }

    pub(crate) async fn load(
        &self,
        folder: &Path,
        label: PolicyLabel,
        deadline: Instant,
    ) -> Result<(), ServerError> {
        let failed = |problem: String| ServerError::Answer { endpoint: UPDATE, problem };
        let model_path =
            folder.to_str().ok_or_else(|| failed(format!("the path {} is not UTF-8", folder.display())))?;
        let body = UpdateBody { model_path, weight_version: label.to_string(), flush_cache: false };
        let answer: UpdateAnswer = self.connection.post(UPDATE, &body, deadline).await?;
        if answer.success { Ok(()) } else { Err(failed(answer.message)) }
    }

    pub(crate) async fn label(&self, deadline: Instant) -> Result<String, ServerError> {
        let info: ModelInfo = self.connection.get(MODEL_INFO, deadline).await?;
        Ok(info.weight_version.unwrap_or_default())
    }
}

fn reply_of(answer: GenerateAnswer, id: &str) -> Result<Reply, String> {
    let GenerateAnswer { output_ids: tokens, meta_info } = answer;
    if meta_info.id != id {
        return Err(format!("the answer to request {}, not {id}", meta_info.id));
    }
    if meta_info.output_token_logprobs.iter().map(|row| row.1).ne(tokens.iter().copied()) {
        return Err("log-probabilities of other tokens".to_owned());
    }
    let logprobs = meta_info.output_token_logprobs.iter().map(|row| row.0.unwrap_or(f32::NAN)).collect();
    let mut versions = Vec::new();
    for span in meta_info.weight_versions {
        if span.end > span.start {
            let label =
                span.version.parse().map_err(|error| format!("weights with an unknown label: {error}"))?;
            versions.push((label, span.start..span.end));
        }
    }
    let end = match meta_info.finish_reason.r#type.as_str() {
        "stop" => End::Stop,
        "length" => End::Length,
        "abort" => End::Aborted,
        other => return Err(format!("finish reason {other}")),
    };
    Ok(Reply { tokens, logprobs, versions, end })
}
