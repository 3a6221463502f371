use serde::{Deserialize, Serialize};

/// How the embedded engine divides its work: a recipe's `[stage.trainer]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSettings {
    /// Tokens (prompt and completion) that one forward and backward pass holds at most; a longer sequence is a
    /// micro-batch of its own. It bounds the memory of activations and changes results by rounding alone.
    pub micro_batch_tokens: usize,
    /// Threads that train; 0 takes all of the run's, also where rollouts work at the same time on as many. No result
    /// depends on it.
    pub threads: usize,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self { micro_batch_tokens: 4096, threads: 0 }
    }
}
