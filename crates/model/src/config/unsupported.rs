//! Fields that enable unsupported computations. Each is accepted at its neutral value, which many files contain, and an
//! error otherwise.

use serde_json::Value;

use super::ConfigError;
use super::fields::Fields;

/// Values of a field that have no effect.
enum Neutral {
    /// `null`, `false`, `0`, or an empty list or object.
    Off,
    /// `Off`, or 1.
    OffOrOne,
    /// The string `silu`.
    Silu,
}

impl Neutral {
    fn holds(&self, value: &Value) -> bool {
        let off = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Number(n) => n.as_f64() == Some(0.0),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        match self {
            Self::Off => off,
            Self::OffOrOne => off || value.as_f64() == Some(1.0),
            Self::Silu => value.as_str() == Some("silu"),
        }
    }
}

const EXPERTS: &str = "it makes the feed-forward layer a mixture of experts";
const DENSE: &str = "use a dense model of the same family";
const SCALES: &str = "it scales activations";
const SOFT_CAP: &str = "it bounds logits by a tanh";
const FAMILY: &str = "use a model of the Llama, Mistral, Qwen2 or Qwen3 family";
const QUANTISED: &str = "the weights are quantised";
const FULL_PRECISION: &str = "use the model's f32, f16 or bf16 folder";

#[rustfmt::skip] // a table
const RULES: &[(&str, Neutral, &str, &str)] = &[
    ("hidden_act", Neutral::Silu, "the feed-forward layer must be SwiGLU", "only silu is supported"),
    ("hidden_activation", Neutral::Silu, "the feed-forward layer must be SwiGLU", "only silu is supported"),
    ("mlp_bias", Neutral::Off, "feed-forward layers have no bias", FAMILY),
    ("attention_dropout", Neutral::Off, "training does not use dropout", "set it to 0 to train without it"),
    ("hidden_dropout", Neutral::Off, "training does not use dropout", "set it to 0 to train without it"),
    ("resid_pdrop", Neutral::Off, "training does not use dropout", "set it to 0 to train without it"),
    ("embd_pdrop", Neutral::Off, "training does not use dropout", "set it to 0 to train without it"),
    ("num_experts", Neutral::Off, EXPERTS, DENSE),
    ("num_local_experts", Neutral::Off, EXPERTS, DENSE),
    ("n_routed_experts", Neutral::Off, EXPERTS, DENSE),
    ("num_experts_per_tok", Neutral::Off, EXPERTS, DENSE),
    ("moe_intermediate_size", Neutral::Off, EXPERTS, DENSE),
    ("quantization_config", Neutral::Off, QUANTISED, FULL_PRECISION),
    ("attn_logit_softcapping", Neutral::Off, SOFT_CAP, FAMILY),
    ("final_logit_softcapping", Neutral::Off, SOFT_CAP, FAMILY),
    ("logit_softcapping", Neutral::Off, SOFT_CAP, FAMILY),
    ("logit_scale", Neutral::OffOrOne, SCALES, FAMILY),
    ("logits_scaling", Neutral::OffOrOne, SCALES, FAMILY),
    ("embedding_multiplier", Neutral::OffOrOne, SCALES, FAMILY),
    ("residual_multiplier", Neutral::OffOrOne, SCALES, FAMILY),
    ("attention_multiplier", Neutral::Off, SCALES, FAMILY),
    ("query_pre_attn_scalar", Neutral::Off, SCALES, FAMILY),
    ("scale_emb", Neutral::OffOrOne, SCALES, FAMILY),
    ("scale_depth", Neutral::OffOrOne, SCALES, FAMILY),
    ("clip_qkv", Neutral::Off, "it clips queries, keys and values", FAMILY),
    ("use_qk_norm", Neutral::Off, "only Qwen3 normalises queries and keys", FAMILY),
    ("qk_layernorm", Neutral::Off, "only Qwen3 normalises queries and keys", FAMILY),
    ("use_mrope", Neutral::Off, "it rotates by several positions per token", FAMILY),
    ("tie_encoder_decoder", Neutral::Off, "it is not a decoder-only model", FAMILY),
    ("pruned_heads", Neutral::Off, "some heads are removed", "use the model with all heads"),
    ("no_rope_layers", Neutral::Off, "it leaves the rotary embedding out of some layers", FAMILY),
    ("no_rope_layer_interval", Neutral::Off, "it leaves the rotary embedding out of some layers", FAMILY),
    ("rope_interleaved", Neutral::Off, "it pairs different elements in the rotary embedding", FAMILY),
    ("attention_chunk_size", Neutral::Off, "it cuts attention into chunks", FAMILY),
    ("is_encoder_decoder", Neutral::Off, "it is not a decoder-only model", FAMILY),
    ("add_cross_attention", Neutral::Off, "it is not a decoder-only model", FAMILY),
    ("vision_config", Neutral::Off, "the model takes images", FAMILY),
    ("text_config", Neutral::Off, "the model is part of a larger one", FAMILY),
];

/// True if the field is accepted at its neutral value.
pub(super) fn has_rule(name: &str) -> bool {
    RULES.iter().any(|(field, ..)| *field == name)
}

pub(super) fn check(fields: Fields<'_>) -> Result<(), ConfigError> {
    for (name, neutral, reason, hint) in RULES {
        if let Some(value) = fields.get(name)
            && !neutral.holds(value)
        {
            return Err(fields.unsupported(name, value, reason, hint));
        }
    }
    check_partial_rotary(fields)?;
    if let Some(map) = fields.object("auto_map")?
        && let Some(code) = map.get("AutoModelForCausalLM")
    {
        return Err(fields.unsupported("auto_map", code, "the folder contains its own model code", FAMILY));
    }
    Ok(())
}

pub(super) fn check_partial_rotary(fields: Fields<'_>) -> Result<(), ConfigError> {
    match fields.number("partial_rotary_factor")? {
        Some(factor) if factor != 1.0 => Err(fields.unsupported(
            "partial_rotary_factor",
            &serde_json::json!(factor),
            "it rotates only a part of each head",
            FAMILY,
        )),
        _ => Ok(()),
    }
}
