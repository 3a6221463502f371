//! `[stage.teacher]`: the model that a stage learns from.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The model whose distribution a stage learns, or that its KL is measured to. Its tokenizer is that of the run's model; its
/// weights are not trained.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TeacherSettings {
    /// Hugging Face folder, such as a checkpoint of another run, or `organisation/name[@revision]` on the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Name of an earlier stage, whose final weights are the teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Address of a server with OpenAI's completions API and `prompt_logprobs`, such as vLLM: `http://host:port`. A distillation
    /// then needs `top_k`, and has the temperature 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Name of the model at `url`. Default: the server's first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Timeout of a request to `url`, in seconds; above 0 and at most 31536000 (a year). Default: 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
}

impl TeacherSettings {
    /// Timeout of a request.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds.unwrap_or(600.0))
    }
}
