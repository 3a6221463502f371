//! Mistral (Jiang et al., 2023, arXiv:2310.06825): Llama without biases. Version 0.1 has a sliding window, later ones do not.

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
