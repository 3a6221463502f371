//! Qwen3 (Yang et al., 2025, arXiv:2505.09388): Llama whose queries and keys are normalised per head before the rotation. Heads
//! have 128 elements, whatever the width.
//!
//! Layers can attend to a sliding window, as in Qwen2; published files switch it off.

use super::{Architecture, Bias, Window};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    model_type: "qwen3",
    class_prefix: "Qwen3",
    qkv_bias: Bias::AsConfigured,
    output_bias: Bias::AsConfigured,
    qk_norm: true,
    window: Window::SomeLayers { size: 4096, first_layer: 28 },
    default_head_dim: Some(128),
    defaults_to_full_kv_heads: false,
    default_max_positions: 32_768,
    fields: &["attention_bias", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
};
