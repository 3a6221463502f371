//! JSON bodies of requests. A key that is not declared is refused: what it asks of the server could not be honoured. Keys
//! that are declared as ignored describe or order the request for the public service.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A request to `client/config` or `client/dynamic_config`.
#[derive(Debug, Deserialize)]
pub(crate) struct SdkVersion {
    pub(crate) sdk_version: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    pub(crate) sdk_version: String,
    #[serde(default, rename = "tags")]
    _tags: IgnoredAny,
    #[serde(default, rename = "user_metadata")]
    _user_metadata: IgnoredAny,
    #[serde(default, rename = "project_id")]
    _project_id: IgnoredAny,
    #[serde(default, rename = "display_name")]
    _display_name: IgnoredAny,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) session_id: String,
}

/// Optimizer of a model.
#[derive(Debug, Deserialize)]
pub(crate) struct OptimizerConfig {
    #[serde(rename = "type", default)]
    pub(crate) kind: Option<String>,
}

/// Shape of a new adapter; defaults are the SDK's.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LoraSettings {
    pub(crate) rank: usize,
    pub(crate) seed: Option<i64>,
    pub(crate) train_unembed: bool,
    pub(crate) train_mlp: bool,
    pub(crate) train_attn: bool,
}

impl Default for LoraSettings {
    fn default() -> Self {
        Self { rank: 32, seed: None, train_unembed: true, train_mlp: true, train_attn: true }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateModel {
    pub(crate) session_id: String,
    pub(crate) model_seq_id: u32,
    pub(crate) base_model: String,
    #[serde(default)]
    pub(crate) optimizer_config: Option<OptimizerConfig>,
    #[serde(default)]
    pub(crate) lora_config: LoraSettings,
    #[serde(default, rename = "user_metadata")]
    _user_metadata: IgnoredAny,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

/// A request that names a model only.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelId {
    pub(crate) model_id: String,
}

/// A request that names stored weights.
#[derive(Debug, Deserialize)]
pub(crate) struct TinkerPath {
    pub(crate) tinker_path: String,
}

/// Settings of one AdamW step; defaults are the SDK's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdamParams {
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) grad_clip_norm: f64,
    #[serde(rename = "type")]
    _type: IgnoredAny,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-12,
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
            _type: IgnoredAny,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OptimStep {
    pub(crate) model_id: String,
    pub(crate) seq_id: u32,
    #[serde(default)]
    pub(crate) adam_params: Option<AdamParams>,
    /// Settings of other optimizers, which are refused.
    #[serde(default, rename = "optimizer_params")]
    _optimizer_params: IgnoredAny,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaveWeights {
    pub(crate) model_id: String,
    pub(crate) seq_id: u32,
    #[serde(default)]
    pub(crate) path: Option<String>,
    #[serde(default)]
    pub(crate) overwrite: bool,
    #[serde(default, rename = "ttl_seconds")]
    _ttl_seconds: IgnoredAny,
    #[serde(default, rename = "user_metadata")]
    _user_metadata: IgnoredAny,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaveForSampler {
    pub(crate) model_id: String,
    pub(crate) seq_id: u32,
    #[serde(default)]
    pub(crate) path: Option<String>,
    #[serde(default)]
    pub(crate) sampling_session_seq_id: Option<u32>,
    #[serde(default)]
    pub(crate) kind: Option<String>,
    #[serde(default, rename = "ttl_seconds")]
    _ttl_seconds: IgnoredAny,
    #[serde(default, rename = "user_metadata")]
    _user_metadata: IgnoredAny,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

/// Loads into an existing model (`model_id`, `seq_id`) or into a new one (`session_id`, `model_seq_id`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadWeights {
    #[serde(default)]
    pub(crate) model_id: Option<String>,
    #[serde(default)]
    pub(crate) seq_id: Option<u32>,
    #[serde(default)]
    pub(crate) session_id: Option<String>,
    #[serde(default)]
    pub(crate) model_seq_id: Option<u32>,
    #[serde(default)]
    pub(crate) base_model: Option<String>,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) optimizer: bool,
    #[serde(default)]
    pub(crate) optimizer_config: Option<OptimizerConfig>,
    #[serde(default, rename = "weights_access_token")]
    _weights_access_token: IgnoredAny,
    #[serde(default, rename = "user_metadata")]
    _user_metadata: IgnoredAny,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSamplingSession {
    pub(crate) session_id: String,
    pub(crate) sampling_session_seq_id: u32,
    #[serde(default)]
    pub(crate) base_model: Option<String>,
    #[serde(default)]
    pub(crate) model_path: Option<String>,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

/// A part of a prompt.
#[derive(Debug, Deserialize)]
pub(crate) struct PromptChunk {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    tokens: Vec<u32>,
}

/// A prompt.
#[derive(Debug, Deserialize)]
pub(crate) struct Prompt {
    chunks: Vec<PromptChunk>,
}

impl Prompt {
    /// Its tokens; an error for what is not text.
    pub(crate) fn tokens(&self) -> Result<Vec<u32>, String> {
        if self.chunks.iter().any(|chunk| chunk.kind.as_deref().unwrap_or("encoded_text") != "encoded_text") {
            return Err("`prompt` may only have chunks of tokens".to_owned());
        }
        Ok(self.chunks.iter().flat_map(|chunk| chunk.tokens.iter().copied()).collect())
    }
}

/// What ends a completion.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Stop {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SamplingParams {
    #[serde(default)]
    pub(crate) max_tokens: Option<usize>,
    #[serde(default)]
    pub(crate) seed: Option<i64>,
    #[serde(default)]
    pub(crate) stop: Option<Stop>,
    #[serde(default = "one")]
    pub(crate) temperature: f32,
    #[serde(default = "unlimited")]
    pub(crate) top_k: i64,
    #[serde(default = "one")]
    pub(crate) top_p: f32,
}

fn one() -> f32 {
    1.0
}

fn unlimited() -> i64 {
    -1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    #[serde(default = "single")]
    pub(crate) num_samples: u32,
    pub(crate) prompt: Prompt,
    pub(crate) sampling_params: SamplingParams,
    pub(crate) sampling_session_id: String,
    pub(crate) seq_id: u64,
    #[serde(default)]
    pub(crate) prompt_logprobs: Option<bool>,
    #[serde(default)]
    pub(crate) prompt_logprobs_last_n: Option<usize>,
    #[serde(default)]
    pub(crate) topk_prompt_logprobs: u32,
    #[serde(default)]
    pub(crate) topk_sample_logprobs: u32,
    #[serde(default)]
    pub(crate) prompt_alt_tokens_k: u32,
    #[serde(default)]
    pub(crate) target_prompt_logprobs: Option<IgnoredAny>,
    #[serde(default, rename = "record_stability_info")]
    _record_stability_info: IgnoredAny,
    #[serde(default, rename = "base_model")]
    _base_model: IgnoredAny,
    #[serde(default, rename = "model_path")]
    _model_path: IgnoredAny,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

fn single() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
pub(crate) struct RequestId {
    pub(crate) request_id: String,
}
