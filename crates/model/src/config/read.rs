//! Conversion of the fields of `config.json` to a [`ModelConfig`], with each family's defaults from `transformers`.

use std::path::Path;

use serde_json::{Map, Value};

use super::fields::Fields;
use super::{
    ConfigError, Inconsistency, ModelConfig, OutputHeads, allowed, output_heads, rope, unsupported, windows,
};
use crate::{Dtype, Family};

pub(super) fn read(
    source: Map<String, Value>,
    path: &Path,
    expected_heads: OutputHeads,
) -> Result<ModelConfig, ConfigError> {
    let fields = Fields { map: &source, path, prefix: "" };
    let family = family(fields, expected_heads)?;
    let architecture = family.architecture();
    let required = |name: &str| fields.count(name)?.ok_or_else(|| fields.missing(name));

    let layers = required("num_hidden_layers")?;
    let heads = required("num_attention_heads")?;
    let hidden_size = required("hidden_size")?;
    unsupported::check(fields)?;
    allowed::check(fields, architecture)?;
    if !expected_heads.language() {
        output_heads::check_classifier(fields, expected_heads)?;
    }

    let head_dim = match fields.count("head_dim")?.or(architecture.default_head_dim) {
        Some(head_dim) => head_dim,
        None if heads > 0 && hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            return Err(ConfigError::Inconsistent {
                path: path.to_owned(),
                problem: Inconsistency::NoHeadDim { hidden_size, heads_field: "num_attention_heads", heads },
            });
        }
    };
    let max_positions =
        fields.count("max_position_embeddings")?.unwrap_or(architecture.default_max_positions);
    let windows = windows::read(fields, architecture.window, layers, max_positions)?;
    let (rope_theta, rope_scaling) = rope::read(fields, max_positions)?;
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let config = ModelConfig {
        family,
        vocab_size: required("vocab_size")?,
        hidden_size,
        intermediate_size: required("intermediate_size")?,
        layers,
        heads,
        kv_heads: match fields.count("num_key_value_heads")? {
            Some(kv_heads) => kv_heads,
            None if architecture.defaults_to_full_kv_heads => heads,
            None => return Err(fields.missing("num_key_value_heads")),
        },
        head_dim,
        windows,
        max_positions,
        rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        output_heads: expected_heads,
        tie_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias: architecture.qkv_bias.resolve(attention_bias),
        output_bias: architecture.output_bias.resolve(attention_bias),
        dtype: Dtype::default(),
        initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
        bos_token_id: fields.token_id("bos_token_id")?,
        eos_token_ids: fields.token_ids("eos_token_id")?,
        pad_token_id: fields.token_id("pad_token_id")?,
        source: Map::new(),
    };
    config.validate(path)?;
    Ok(ModelConfig { source, ..config })
}

fn family(fields: Fields<'_>, heads: OutputHeads) -> Result<Family, ConfigError> {
    let (reason, hint) = heads.refusal();
    let value = fields.get("model_type").ok_or_else(|| fields.missing("model_type"))?;
    let family = Family::ALL
        .into_iter()
        .find(|family| value.as_str() == Some(family.model_type()))
        .ok_or_else(|| fields.unsupported("model_type", value, "the architecture is not supported", hint))?;
    let class = heads.architecture(family);
    if let Some(architectures) = fields.list("architectures")?
        && !architectures.iter().any(|a| a.as_str() == Some(&class))
        && let Some(first) = architectures.first()
    {
        return Err(fields.unsupported("architectures", first, reason, hint));
    }
    Ok(family)
}
