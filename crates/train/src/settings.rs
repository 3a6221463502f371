use rloom_model::ActivationCheckpointing;
use serde::{Deserialize, Serialize};

/// How the embedded engine divides its work: a recipe's `[stage.trainer]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSettings {
    /// Tokens (prompt and completion; a shared prompt once) that one forward and backward pass holds at most; a longer
    /// sequence is a micro-batch of its own. It bounds the memory of activations and changes results by rounding alone.
    pub micro_batch_tokens: usize,
    /// Computes the prompt that a group's completions begin with once for all of them. The scores are the same bits, and
    /// gradients differ by rounding alone.
    pub share_prompts: bool,
    /// What the backward pass computes again instead of keeping it from the forward pass: nothing, attention, or all of a
    /// layer but its input. Less memory for more time, and the same bits.
    pub recompute: ActivationCheckpointing,
    /// Threads that train; 0 takes all of the run's, also where rollouts work at the same time on as many. No result
    /// depends on it.
    pub threads: usize,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self { micro_batch_tokens: 4096, share_prompts: true, recompute: ActivationCheckpointing::None, threads: 0 }
    }
}
