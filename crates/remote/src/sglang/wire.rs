//! Requests and answers of SGLang's server, by the names of its own protocol. Fields that are not needed are left out.

use serde::{Deserialize, Serialize};

/// Body of `/generate`.
#[derive(Debug, Serialize)]
pub(super) struct GenerateBody<'a> {
    pub(super) rid: &'a str,
    pub(super) input_ids: &'a [u32],
    pub(super) sampling_params: SamplingParams<'a>,
    pub(super) return_logprob: bool,
    /// First prompt token with a log-probability; -1 for none.
    pub(super) logprob_start_len: i64,
    /// Keys and values are reused only among requests with the same salt.
    pub(super) cache_salt: String,
}

#[derive(Debug, Serialize)]
pub(super) struct SamplingParams<'a> {
    pub(super) temperature: f32,
    /// -1 for all.
    pub(super) top_k: i64,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
    pub(super) max_new_tokens: usize,
    pub(super) min_new_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sampling_seed: Option<u64>,
    pub(super) stop_token_ids: &'a [u32],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) stop: &'a [String],
    pub(super) ignore_eos: bool,
    /// The text in which stop strings are searched has special tokens.
    pub(super) skip_special_tokens: bool,
    pub(super) no_stop_trim: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct GenerateAnswer {
    pub(super) output_ids: Vec<u32>,
    pub(super) meta_info: MetaInfo,
}

#[derive(Debug, Deserialize)]
pub(super) struct MetaInfo {
    pub(super) id: String,
    pub(super) finish_reason: FinishReason,
    #[serde(default)]
    pub(super) output_token_logprobs: Vec<Logprob>,
    #[serde(default)]
    pub(super) input_token_logprobs: Vec<Logprob>,
    #[serde(default)]
    pub(super) weight_versions: Vec<Span>,
}

/// Log-probability, token id and text.
#[derive(Debug, Deserialize)]
pub(super) struct Logprob(
    pub(super) Option<f32>,
    pub(super) u32,
    #[expect(dead_code, reason = "a row has three entries")] Option<String>,
);

#[derive(Debug, Deserialize)]
pub(super) struct FinishReason {
    pub(super) r#type: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Span {
    pub(super) version: String,
    pub(super) start: usize,
    pub(super) end: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct AbortBody<'a> {
    pub(super) rid: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct PauseBody {
    pub(super) mode: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct ContinueBody {}

#[derive(Debug, Serialize)]
pub(super) struct UpdateBody<'a> {
    pub(super) model_path: &'a str,
    pub(super) weight_version: String,
    /// Fails while requests are paused; salts keep old keys and values from being reused.
    pub(super) flush_cache: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct UpdateAnswer {
    pub(super) success: bool,
    pub(super) message: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ModelInfo {
    pub(super) weight_version: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServerInfo {
    pub(super) version: String,
    pub(super) max_req_input_len: Option<usize>,
    pub(super) max_running_requests: Option<usize>,
}
