use std::path::PathBuf;
use std::time::Duration;

use rloom_core::PolicyId;
use rloom_engine::{ActivationCheckpointing, LoraSettings};
use rloom_model::OptimizerSettings;
use serde::Serialize;
use serde_json::{Value, json};

/// Heads of a gang's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyHeads {
    /// Next-token distribution.
    Policy,
    /// Next-token distribution and, from the same backbone, the value of the prefix; the value head starts at zero.
    PolicyAndValue,
    /// Value of the prefix only. A policy's folder gives a critic with a value head of zeros.
    Critic,
    /// Value of the prefix only, saved as a sequence classifier with one label. A policy's folder gives a head of zeros.
    Reward,
    /// Logits of wrong and right of the prefix only, saved as a token classifier; the value is their difference. A policy's folder
    /// gives a head of zeros.
    ProcessReward,
}

/// Library that divides a model among the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankBackend {
    /// FSDP2 of PyTorch.
    Torch,
    /// ZeRO-3 of DeepSpeed, without `shard`, `offload`, [`RankDtype::F64`] and parking on GPUs.
    Deepspeed,
    /// Megatron-Core, with models of Megatron-Bridge: policies without a value head, and what DeepSpeed lacks, too.
    Megatron,
}

/// Number format of matrix products; weights, gradients and moments are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankDtype {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// 64-bit floats, weights and gradients included: a measure of rounding errors.
    F64,
}

/// Device of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankDevice {
    /// GPUs if PyTorch sees any.
    Auto,
    /// Processor cores.
    Cpu,
    /// GPUs.
    Cuda,
}

/// The adapter that a gang trains over the weights of its model.
#[derive(Debug, Clone)]
pub struct GangLora {
    /// Shape and dropout.
    pub settings: LoraSettings,
    /// Seed of a new adapter and of dropout.
    pub seed: u64,
    /// Folder that the stage starts from: that of the model, or of an adapter of it. As a reference it needs no other model.
    pub start: PathBuf,
}

/// Settings of a gang.
#[derive(Debug, Clone)]
pub struct GangSettings {
    /// Model folder of the policy, or of the base of its adapter.
    pub model: PathBuf,
    /// Trains an adapter instead of the weights.
    pub lora: Option<GangLora>,
    /// Folder of an adapter that is added to the weights before they are trained.
    pub merged: Option<PathBuf>,
    /// Library that divides the model.
    pub backend: RankBackend,
    /// Heads of the model.
    pub heads: PolicyHeads,
    /// Padding token of a reward model's tokenizer, by which `transformers` finds the last token of a text.
    pub pad_token: Option<u32>,
    /// Model folder of the reference policy, if the algorithm reads it.
    pub reference: Option<PathBuf>,
    /// Policy of the run that publications carry.
    pub policy: PolicyId,
    /// Settings of AdamW; the learning rate comes with each step.
    pub optimizer: OptimizerSettings,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks that a copy of the weights is divided among; `None` for all of them. Must divide `ranks`.
    pub shard: Option<usize>,
    /// Consecutive ranks that divide the tokens of a micro-batch. Must divide `ranks` and the model's attention heads.
    pub sequence_parallel: usize,
    /// Consecutive ranks that divide matrices.
    pub tensor_parallel: usize,
    /// Ranks that hold different layers; the first ranks hold the first ones.
    pub pipeline_parallel: usize,
    /// Ranks that divide the tokens of every sequence; consecutive but for `tensor_parallel`.
    pub context_parallel: usize,
    /// Ranks that hold different experts.
    pub expert_parallel: usize,
    /// Number format of matrix products.
    pub dtype: RankDtype,
    /// Activations that the backward pass recomputes.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Keeps weights and moments in host memory.
    pub offload: bool,
    /// Restricts PyTorch to deterministic algorithms.
    pub deterministic: bool,
    /// Device of the ranks.
    pub device: RankDevice,
    /// Compute threads of a rank; 0 leaves the choice to PyTorch.
    pub threads: usize,
    /// Longest time without progress. Ranks that exceed it write their stacks, and the gang is killed.
    pub step_deadline: Duration,
    /// Longest time until all ranks have opened the model.
    pub start_deadline: Duration,
    /// Parent of published folders.
    pub publications: PathBuf,
}

impl GangSettings {
    /// Settings of one f32 rank on the processor.
    pub fn new(model: impl Into<PathBuf>, publications: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            lora: None,
            merged: None,
            backend: RankBackend::Torch,
            heads: PolicyHeads::Policy,
            pad_token: None,
            reference: None,
            policy: PolicyId::MAIN,
            optimizer: OptimizerSettings::default(),
            ranks: 1,
            shard: None,
            sequence_parallel: 1,
            tensor_parallel: 1,
            pipeline_parallel: 1,
            context_parallel: 1,
            expert_parallel: 1,
            dtype: RankDtype::F32,
            activation_checkpointing: ActivationCheckpointing::None,
            offload: false,
            deterministic: false,
            device: RankDevice::Auto,
            threads: 0,
            step_deadline: Duration::from_mins(10),
            start_deadline: Duration::from_mins(10),
            publications: publications.into(),
        }
    }

    /// Consecutive ranks that compute the same micro-batches.
    fn side_by_side(&self) -> usize {
        self.sequence_parallel * self.tensor_parallel * self.context_parallel
    }

    /// Groups of ranks: micro-batch `i` is computed by group `i mod groups`.
    pub(crate) fn groups(&self) -> usize {
        (self.ranks / (self.side_by_side() * self.pipeline_parallel)).max(1)
    }

    /// Group of a rank. Each pipeline stage has ranks of all groups.
    pub(crate) fn group_of(&self, rank: usize) -> usize {
        rank / self.side_by_side() % self.groups()
    }

    /// First rank of the group that computes a micro-batch, on the last pipeline stage: it has the scores.
    pub(crate) fn first_rank(&self, micro_batch: usize) -> usize {
        let last_stage = self.ranks - self.ranks / self.pipeline_parallel;
        last_stage + micro_batch % self.groups() * self.side_by_side()
    }

    /// The settings as a rank reads them.
    pub(crate) fn message(&self) -> Value {
        let o = &self.optimizer;
        json!({
            "model": self.model,
            "lora": self.lora.as_ref().map(GangLora::message),
            "merged": self.merged,
            "backend": self.backend,
            "heads": self.heads,
            "pad_token": self.pad_token,
            "reference": self.reference,
            "optimizer": {
                "betas": o.betas,
                "eps": o.eps,
                "weight_decay": o.weight_decay,
                "max_grad_norm": o.max_grad_norm,
            },
            "shard": self.shard,
            "sequence_parallel": self.sequence_parallel,
            "tensor_parallel": self.tensor_parallel,
            "pipeline_parallel": self.pipeline_parallel,
            "context_parallel": self.context_parallel,
            "expert_parallel": self.expert_parallel,
            "dtype": self.dtype,
            "activation_checkpointing": self.activation_checkpointing,
            "offload": self.offload,
            "deterministic": self.deterministic,
            "device": self.device,
            "threads": self.threads,
        })
    }
}

impl GangLora {
    fn message(&self) -> Value {
        let LoraSettings { rank, alpha, rslora, dora, dropout, targets, quantize } = &self.settings;
        json!({
            "rank": rank,
            "alpha": alpha,
            "rslora": rslora,
            "dora": dora,
            "dropout": dropout,
            "targets": targets,
            "quantize": quantize,
            "seed": self.seed,
            "start": self.start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_stage_answers_for_its_group() {
        let settings = GangSettings {
            ranks: 16,
            tensor_parallel: 2,
            pipeline_parallel: 2,
            context_parallel: 2,
            ..GangSettings::new("model", "published")
        };
        let groups: Vec<usize> = (0..16).map(|rank| settings.group_of(rank)).collect();
        assert_eq!(groups, [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!([0, 1, 2].map(|micro_batch| settings.first_rank(micro_batch)), [8, 12, 8]);
    }

    #[test]
    fn consecutive_ranks_divide_tokens() {
        let settings =
            GangSettings { ranks: 4, sequence_parallel: 2, ..GangSettings::new("model", "published") };
        assert_eq!([0, 1, 2, 3].map(|rank| settings.group_of(rank)), [0, 0, 1, 1]);
        assert_eq!([0, 1].map(|micro_batch| settings.first_rank(micro_batch)), [0, 2]);
    }
}
