use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Activations that the backward pass recomputes instead of keeping them (Chen et al., 2016, arXiv:1604.06174): trades
/// compute for memory. Scores and gradients are bitwise identical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivationCheckpointing {
    /// Keeps all activations that are expensive to compute.
    #[default]
    None,
    /// Recomputes attention.
    Attention,
    /// Keeps only each layer's input.
    Block,
}

/// Settings of the embedded training engine, `[stage.trainer]` in a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSettings {
    /// Maximum number of tokens (prompt and completion; a shared prompt counts once) per forward and backward pass. A
    /// longer sequence is a micro-batch of its own. Bounds the memory of activations; results change by rounding only.
    pub micro_batch_tokens: usize,
    /// Computes a group's common prompt once for all of its completions. Scores are bitwise identical; gradients change
    /// by rounding only.
    pub share_prompts: bool,
    /// Activations to recompute in the backward pass: none, attention, or all of a layer but its input. Trades compute
    /// for memory; results are bitwise identical.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Threads for training; 0 for all threads of the run, also if rollouts run at the same time. Does not affect
    /// results.
    pub threads: usize,
    /// Maximum number of optimiser steps of a stage that are skipped because a score, the loss or the gradient is not
    /// finite: the weights stay as they are, and training continues. One more ends the run. 0 ends it at the first.
    pub max_skipped_steps: u64,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            micro_batch_tokens: 4096,
            share_prompts: true,
            activation_checkpointing: ActivationCheckpointing::None,
            threads: 0,
            max_skipped_steps: 0,
        }
    }
}
