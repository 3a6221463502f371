use rloom_core::{SettingError, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::TorchSettings;

/// Sizes by which ranks divide a model, besides its weights: the keys that Megatron has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ParallelSizes {
    /// Ranks that divide every layer's matrices among themselves and compute the same micro-batches. Must divide `ranks` and
    /// the key heads of the model.
    pub tensor_parallel: usize,
    /// Ranks that hold consecutive layers each (pipeline stages). Must divide `ranks`, and the layers of the model.
    pub pipeline_parallel: usize,
    /// Ranks that divide the tokens of every sequence among themselves, for long sequences. Must divide `ranks`.
    pub context_parallel: usize,
    /// Ranks that hold different experts of a mixture of experts. Must divide the ranks of a pipeline stage. Runs with more
    /// than 1 were not compared with those of one rank.
    pub expert_parallel: usize,
}

impl Default for ParallelSizes {
    fn default() -> Self {
        Self { tensor_parallel: 1, pipeline_parallel: 1, context_parallel: 1, expert_parallel: 1 }
    }
}

/// Keys of the DeepSpeed backend.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DeepspeedSettings {
    /// Keys of all backends with PyTorch ranks.
    #[serde(flatten)]
    pub ranks: TorchSettings,
    /// Ranks that divide every layer's matrices among themselves and compute the same micro-batches. Must divide `ranks` and
    /// the key heads of the model.
    #[schemars(default = "one")]
    pub tensor_parallel: usize,
}

/// Keys of the Megatron backend.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct MegatronSettings {
    /// Keys of all backends with PyTorch ranks.
    #[serde(flatten)]
    pub ranks: TorchSettings,
    /// Sizes by which ranks divide a model.
    #[serde(flatten)]
    pub sizes: ParallelSizes,
}

fn one() -> usize {
    ParallelSizes::default().tensor_parallel
}

impl ParallelSizes {
    pub(super) const KEYS: [&str; 4] =
        ["tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"];

    /// Groups of ranks that compute different micro-batches.
    pub(super) fn groups(&self, torch: &TorchSettings) -> usize {
        let of_group =
            torch.sequence_parallel * self.tensor_parallel * self.pipeline_parallel * self.context_parallel;
        (torch.ranks / of_group.max(1)).max(1)
    }

    /// Checks that the ways to divide a model together divide the ranks.
    pub(super) fn check(&self, torch: &TorchSettings) -> Result<(), SettingError> {
        let refuse = |key, size: usize, expected| {
            Err(SettingProblem::Invalid { value: size.to_string(), expected }.at(key))
        };
        let mut rest = torch.ranks;
        // Experts are divided among ranks that compute different tokens.
        for (key, size) in [
            ("sequence_parallel", torch.sequence_parallel),
            ("tensor_parallel", self.tensor_parallel),
            ("pipeline_parallel", self.pipeline_parallel),
            ("context_parallel", self.context_parallel),
        ] {
            if size == 0 || !torch.ranks.is_multiple_of(size) {
                return refuse(key, size, "a divisor of `ranks`");
            }
            if !rest.is_multiple_of(size) {
                return refuse(
                    key,
                    size,
                    "a size whose product with the other parallel sizes divides `ranks`",
                );
            }
            rest /= size;
        }
        let stage = torch.ranks / self.pipeline_parallel;
        if self.expert_parallel == 0 || !stage.is_multiple_of(self.expert_parallel) {
            return refuse(
                "expert_parallel",
                self.expert_parallel,
                "a divisor of the ranks of a pipeline stage (`ranks` / `pipeline_parallel`)",
            );
        }
        Ok(())
    }
}
