//! Llama 2 and 3 (Touvron et al., 2023, arXiv:2307.09288; Grattafiori et al., 2024, arXiv:2407.21783): the layer that all families
//! share ([`super`]). Files can give all projections of attention a bias.

use super::{Architecture, Bias, Window};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    model_type: "llama",
    class_prefix: "Llama",
    qkv_bias: Bias::AsConfigured,
    output_bias: Bias::AsConfigured,
    qk_norm: false,
    window: Window::Never,
    default_head_dim: None,
    defaults_to_full_kv_heads: true,
    default_max_positions: 2048,
    // `is_llama_config` is in files of SmolLM.
    fields: &["attention_bias", "mlp_bias", "pretraining_tp", "is_llama_config"],
};
