//! Requests and answers of vLLM's server, by the names of its own protocol. Fields that are not needed are left out.

use std::collections::BTreeMap;

use rloom_engine::{Channel, Form, WeightChunk};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `/inference/v1/generate`.
#[derive(Debug, Serialize)]
pub(super) struct GenerateBody<'a> {
    /// Name of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
    pub(super) request_id: &'a str,
    pub(super) token_ids: &'a [u32],
    pub(super) sampling_params: SamplingParams<'a>,
    /// Keys and values are reused only among requests with the same salt.
    pub(super) cache_salt: String,
}

#[derive(Debug, Serialize)]
pub(super) struct SamplingParams<'a> {
    pub(super) temperature: f32,
    pub(super) top_k: u32,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
    pub(super) max_tokens: usize,
    pub(super) min_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seed: Option<u64>,
    pub(super) stop_token_ids: &'a [u32],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) stop: &'a [String],
    pub(super) ignore_eos: bool,
    pub(super) detokenize: bool,
    /// 0: the sampled token's alone.
    pub(super) logprobs: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_logprobs: Option<u32>,
}

#[derive(Debug, Deserialize)]
pub(super) struct GenerateAnswer {
    pub(super) request_id: String,
    /// The model or the adapter.
    #[serde(default)]
    pub(super) model: String,
    pub(super) choices: Vec<Choice>,
    #[serde(default)]
    pub(super) prompt_logprobs: Option<Vec<Option<BTreeMap<String, PromptLogprob>>>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PromptLogprob {
    pub(super) logprob: Option<f32>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    pub(super) finish_reason: Option<String>,
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) weight_versions: Option<Vec<Span>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Logprobs {
    pub(super) content: Option<Vec<Logprob>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Logprob {
    pub(super) token_id: u32,
    pub(super) logprob: Option<f32>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Span {
    pub(super) version: String,
    pub(super) start: usize,
    pub(super) end: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct AdapterBody<'a> {
    pub(super) lora_name: String,
    pub(super) lora_path: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct AdapterName<'a> {
    pub(super) lora_name: &'a str,
}

/// Answer of `/v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct ModelList {
    pub(super) data: Vec<ServedModel>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServedModel {
    pub(super) id: String,
    #[serde(default)]
    pub(super) parent: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct AbortBody {
    pub(super) request_ids: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct InitBody<'a> {
    pub(super) init_info: InitInfo<'a>,
}

/// Read by the worker extension, which passes `info` on to vLLM's own backend. Without both, weights come from folders.
#[derive(Debug, Default, Serialize)]
pub(super) struct InitInfo<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<Form>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<BackendInfo<'a>>,
}

/// Fields of vLLM's `NCCLWeightTransferInitInfo` or `IPCWeightTransferInitInfo`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum BackendInfo<'a> {
    Nccl {
        nccl_unique_id_b64: &'a str,
        rank_offset: usize,
        world_size: usize,
        packed: bool,
        packed_buffer_size_bytes: usize,
    },
    Ipc {
        packed: bool,
    },
}

impl<'a> InitInfo<'a> {
    pub(super) fn of(channel: &'a Channel) -> Self {
        let Channel { form, unique_id, world_size, chunk_bytes } = channel;
        let info = match form {
            Form::Ipc => BackendInfo::Ipc { packed: true },
            _ => BackendInfo::Nccl {
                nccl_unique_id_b64: unique_id,
                // The trainer sends as rank 0.
                rank_offset: 1,
                world_size: *world_size,
                packed: true,
                packed_buffer_size_bytes: *chunk_bytes,
            },
        };
        Self { backend: Some(*form), info: Some(info) }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct UpdateBody<'a> {
    pub(super) update_info: &'a UpdateInfo<'a>,
}

/// Read by the worker extension: a folder, or a chunk for vLLM's own backend.
#[derive(Debug, Serialize)]
pub(super) struct UpdateInfo<'a> {
    pub(super) label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunk: Option<Chunk<'a>>,
}

/// Fields of vLLM's `NCCLWeightTransferUpdateInfo`, and of `IPCWeightTransferUpdateInfo` with a handle.
#[derive(Debug, Serialize)]
pub(super) struct Chunk<'a> {
    names: &'a [String],
    dtype_names: &'a [String],
    shapes: &'a [Vec<usize>],
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_sizes: Option<&'a [usize]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ipc_handles: Option<&'a Value>,
}

impl<'a> Chunk<'a> {
    pub(super) fn of(chunk: &'a WeightChunk) -> Self {
        let WeightChunk { names, dtype_names, shapes, tensor_sizes, ipc_handles } = chunk;
        let tensor_sizes = ipc_handles.is_some().then_some(&**tensor_sizes);
        Self { names, dtype_names, shapes, tensor_sizes, ipc_handles: ipc_handles.as_ref() }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct SleepState {
    pub(super) is_sleeping: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct FinishBody {
    /// The label stays without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weight_version: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WeightInfo {
    pub(super) weight_version: String,
}

#[derive(Debug, Serialize)]
pub(super) struct RpcBody {
    pub(super) method: &'static str,
}

#[derive(Debug, Deserialize)]
pub(super) struct RpcAnswer {
    pub(super) results: Vec<WorkerDescription>,
}

/// Answer of one worker's extension.
#[derive(Debug, Deserialize)]
pub(super) struct WorkerDescription {
    pub(super) protocol: u32,
    pub(super) version: String,
    pub(super) loaded: String,
    pub(super) full_softmax: bool,
    pub(super) logprobs_mode: String,
    pub(super) max_model_len: usize,
    pub(super) max_num_seqs: usize,
    pub(super) vocabulary: usize,
    pub(super) max_adapter_rank: usize,
}
