//! Mistral (Jiang et al., 2023, arXiv:2310.06825): Llama without biases.
//!
//! In version 0.1, every layer attends to the last 4096 tokens; the files of later versions have `sliding_window: null`.

use super::{Architecture, Bias, Window};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    model_type: "mistral",
    class_prefix: "Mistral",
    qkv_bias: Bias::Never,
    output_bias: Bias::Never,
    qk_norm: false,
    window: Window::AllLayers { default: 4096 },
    default_head_dim: None,
    defaults_to_full_kv_heads: false,
    default_max_positions: 131_072,
    fields: &["sliding_window"],
};
