use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rloom_text::calls::CallFormat;

use super::Sampling;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom serve runs/arithmetic
  rloom serve org/name --port 9000 --temperature 0.7
  RLOOM_API_KEY=... rloom serve path/to/model --host 0.0.0.0
  rloom serve path/to/model --url http://10.0.0.5:8000 --url http://10.0.0.6:8000
  rloom serve org/name --train checkpoints

Clients use http://127.0.0.1:8000/v1 as the base URL of OpenAI's API and http://127.0.0.1:8000 for Anthropic's;
with --train, http://127.0.0.1:8000 is also the base URL of the `tinker` SDK.
SIGTERM and the first Ctrl-C let requests in flight finish, the second cancels them.")]
pub(crate) struct Serve {
    /// A model folder, a hub name, or a run's folder (its best checkpoint).
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Address to listen on. Beyond this machine clients need a key.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 for any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// Name of the model in answers [default: the last part of MODEL].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Key that clients have to send; RLOOM_API_KEY keeps it out of the list of processes [default: none on this machine,
    /// else a random one].
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Format of the model's tool calls, such as hermes [default: that of its chat template].
    #[arg(long, value_name = "FORMAT", value_parser = call_format)]
    pub(crate) calls: Option<CallFormat>,
    /// Maximum number of tokens per completion [default: the rest of the context].
    #[arg(long, value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,
    /// Maximum number of requests in flight; more are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_requests: usize,
    /// Address of a running inference server that computes the completions, in place of this process; may be repeated. The
    /// servers have RLoom's worker extension, see the folder of MODEL under the same path, and share --max-requests equally.
    #[arg(long = "url", value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// Kind of the servers at --url.
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = ServerEngine::Vllm, requires = "urls")]
    pub(crate) engine: ServerEngine,
    /// Also serve the training API of the `tinker` SDK, and keep its checkpoints in DIR. Clients train LoRA adapters.
    #[arg(long, value_name = "DIR", conflicts_with = "urls")]
    pub(crate) train: Option<PathBuf>,
    /// Train all weights of a copy of MODEL, whatever adapter a client asks for.
    #[arg(long, requires = "train")]
    pub(crate) train_full: bool,
    /// Maximum number of models in training; each needs memory for its trained weights, their gradient and moments.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "train")]
    pub(crate) train_models: usize,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
}

/// Kind of an inference server.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ServerEngine {
    Vllm,
    Sglang,
}

fn call_format(name: &str) -> Result<CallFormat, String> {
    CallFormat::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
        let names: Vec<&str> = CallFormat::ALL.into_iter().map(CallFormat::name).collect();
        format!("the formats are {}", names.join(", "))
    })
}
