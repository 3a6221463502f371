//! Qwen2 and Qwen2.5 (Yang et al., 2024, arXiv:2407.10671, arXiv:2412.15115): Llama with a bias on the query, key and value
//! projections.
//!
//! The last layers can attend to a sliding window; published files switch it off.

use super::{Architecture, Bias, Window};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    model_type: "qwen2",
    class_prefix: "Qwen2",
    qkv_bias: Bias::Always,
    output_bias: Bias::Never,
    qk_norm: false,
    window: Window::SomeLayers { size: 4096, first_layer: 28 },
    default_head_dim: None,
    defaults_to_full_kv_heads: false,
    default_max_positions: 32_768,
    fields: &["use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "use_mrope"],
};
