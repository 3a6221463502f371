use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Largest rank; larger numbers are typing errors.
const MAX_RANK: f64 = 4096.0;
const MAX_ALPHA: f64 = 1e6;
const MAX_DROPOUT: f64 = 0.99;

/// A LoRA adapter (Hu et al., 2021, arXiv:2106.09685), trained instead of the weights, which stay as they are:
/// `y = x·Wᵀ + s · (x·Aᵀ)·Bᵀ`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoraSettings {
    /// Rank of the matrices `A` and `B`, 1 to 4096.
    pub rank: usize,
    /// Numerator of the scale `s = alpha / rank`.
    pub alpha: f64,
    /// Scale by `alpha / √rank` (Kalajdzievski, 2023, arXiv:2312.03732), so that large ranks do not learn more slowly.
    pub rslora: bool,
    /// Trains the norms of the rows of the adapted weights as well (DoRA, Liu et al., 2024, arXiv:2402.09353). PyTorch ranks
    /// alone have it.
    pub dora: bool,
    /// Probability that an element of an adapted layer's input is dropped in training, 0 to 0.99. Only in stages that sample
    /// nothing.
    pub dropout: f64,
    /// The linear layers that are adapted, by their names in `transformers`; `"all-linear"` stands for all of them but the
    /// language head, `lm_head`.
    pub targets: Vec<LoraModule>,
    /// Number format in which the base's linear layers but the language head are kept (QLoRA, Dettmers et al., 2023,
    /// arXiv:2305.14314). Default: that of the computation. One PyTorch rank alone has it, with the package `bitsandbytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantize: Option<Quantization>,
}

/// Number format of a frozen base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// 4-bit numbers at quantiles of the normal distribution, scaled in blocks of 64; the scales have 8 bits.
    Nf4,
}

/// A linear layer that can be adapted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LoraModule {
    /// All of the layers below, without the language head.
    #[serde(rename = "all-linear")]
    AllLinear,
    /// Queries.
    #[serde(rename = "q_proj")]
    QProj,
    /// Keys.
    #[serde(rename = "k_proj")]
    KProj,
    /// Values.
    #[serde(rename = "v_proj")]
    VProj,
    /// Output of the attention.
    #[serde(rename = "o_proj")]
    OProj,
    /// Gate of the feed-forward layer.
    #[serde(rename = "gate_proj")]
    GateProj,
    /// Input of the feed-forward layer.
    #[serde(rename = "up_proj")]
    UpProj,
    /// Output of the feed-forward layer.
    #[serde(rename = "down_proj")]
    DownProj,
    /// The language head. If it is tied to the embedding, the embedding stays as it is.
    #[serde(rename = "lm_head")]
    LmHead,
}

impl Default for LoraSettings {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            rslora: false,
            dora: false,
            dropout: 0.0,
            targets: vec![LoraModule::AllLinear],
            quantize: None,
        }
    }
}

impl LoraSettings {
    /// True if the adapter gives the policy in any engine that opens it with its base; otherwise samplers need the sum that the
    /// trainer computes: no other engine computes DoRA, or has the weights of a quantized base.
    pub fn is_portable(&self) -> bool {
        !self.dora && self.quantize.is_none()
    }

    /// Checks the ranges; keys are relative to the table of the trainer.
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(1.0, MAX_RANK).check("lora.rank", self.rank as f64)?;
        ValueRange::above(0.0, MAX_ALPHA).check("lora.alpha", self.alpha)?;
        ValueRange::between(0.0, MAX_DROPOUT).check("lora.dropout", self.dropout)?;
        if self.targets.is_empty() {
            return Err(SettingProblem::Empty.at("lora.targets"));
        }
        Ok(())
    }
}
