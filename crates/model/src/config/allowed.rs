//! The fields that `config.json` may contain. A field that is not listed is an error, because it may change the computation.

use super::ConfigError;
use super::fields::Fields;
use super::unsupported;
use crate::family::Architecture;

/// Fields that are read.
#[rustfmt::skip] // a table
const READ: &[&str] = &[
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "tie_word_embeddings", "initializer_range", "bos_token_id", "eos_token_id",
    "pad_token_id", "rloom", "auto_map", "id2label", "num_labels", "classifier_dropout",
];

/// Fields without an effect on the scores: names and versions, the format of the weights, inputs and outputs of `transformers`,
/// training with its classes, and settings of sampling that older versions wrote.
#[rustfmt::skip] // a table
const IGNORED: &[&str] = &[
    "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "transformers.js_config", "model_name",
    "unsloth_fixed", "unsloth_version", "tokenizer_class", "dtype", "torch_dtype", "use_bfloat16", "torchscript",
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_experts_implementation",
    "_flash_attn_2_enabled", "use_cache", "return_dict", "output_hidden_states", "output_attentions",
    "chunk_size_feed_forward", "is_decoder", "cross_attention_hidden_size", "keys_to_ignore_at_inference", "label2id",
    "problem_type", "finetuning_task", "task_specific_params", "tf_legacy_loss", "prefix", "sep_token_id", "unk_token_id",
    "decoder_start_token_id", "max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
];

/// Checks that every field with a value is known.
pub(super) fn check(fields: Fields<'_>, architecture: &Architecture) -> Result<(), ConfigError> {
    let is_known = |name: &str| {
        [READ, IGNORED, architecture.fields].iter().any(|list| list.contains(&name))
            || unsupported::has_rule(name)
    };
    match fields.map.iter().find(|(name, value)| !value.is_null() && !is_known(name)) {
        Some((name, value)) => Err(fields.unsupported(
            name,
            value,
            "the field is unknown and may change the computation",
            "remove it from the file if it has no effect on the outputs of the model",
        )),
        None => Ok(()),
    }
}
