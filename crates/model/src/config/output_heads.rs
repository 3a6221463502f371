//! Which heads a model has, and how `config.json` says so.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{ConfigError, Family};

/// What is computed from the stream after the final norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputHeads {
    /// The distribution of the next token: a policy.
    #[default]
    Language,
    /// The distribution of the next token and, from the same backbone, the value of the prefix. Its folder is that of
    /// the policy; the value head is a file of its own ([`crate::Model::save_value_head`]).
    LanguageAndValue,
    /// The value of the prefix alone: a critic. Nothing of the size of the vocabulary is held or computed but the
    /// embedding table. Its folder is a token classifier with one label, as `transformers` opens it.
    Value,
}

impl OutputHeads {
    /// Whether tokens can be scored and sampled.
    pub fn language(self) -> bool {
        self != Self::Value
    }

    /// Whether prefixes have a value.
    pub fn value(self) -> bool {
        self != Self::Language
    }

    /// The class of `transformers` that opens the folder.
    pub(crate) fn architecture(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Language | Self::LanguageAndValue, Family::Llama) => "LlamaForCausalLM",
            (Self::Language | Self::LanguageAndValue, Family::Qwen2) => "Qwen2ForCausalLM",
            (Self::Language | Self::LanguageAndValue, Family::Qwen3) => "Qwen3ForCausalLM",
            (Self::Value, Family::Llama) => "LlamaForTokenClassification",
            (Self::Value, Family::Qwen2) => "Qwen2ForTokenClassification",
            (Self::Value, Family::Qwen3) => "Qwen3ForTokenClassification",
        }
    }

    /// What a folder of another architecture is told.
    pub(super) fn refusal(self) -> (&'static str, &'static str) {
        if self.language() {
            (
                "it is not a causal language model",
                "supported are LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM",
            )
        } else {
            (
                "it is not a critic",
                "supported are LlamaForTokenClassification, Qwen2ForTokenClassification and \
                 Qwen3ForTokenClassification with one label",
            )
        }
    }
}

/// Checks what `config.json` says of a critic's head. Without a number of labels, `transformers` takes two.
pub(super) fn check_critic(fields: Fields<'_>) -> Result<(), ConfigError> {
    const REASON: &str = "a critic has one value for each token";
    const HINT: &str = "use a token classifier with one label";
    if let Some(labels) = fields.object("id2label")?
        && labels.len() != 1
    {
        return Err(fields.unsupported("id2label", &Value::Object(labels.clone()), REASON, HINT));
    }
    match fields.count("num_labels")? {
        Some(labels) if labels != 1 => {
            return Err(fields.unsupported("num_labels", &json!(labels), REASON, HINT));
        }
        _ => {}
    }
    match fields.number("classifier_dropout")? {
        Some(rate) if rate != 0.0 => Err(fields.unsupported(
            "classifier_dropout",
            &json!(rate),
            "training is without dropout",
            "set it to 0 to train without it",
        )),
        _ => Ok(()),
    }
}

/// Sets the fields that make a folder's head a critic's: one label, and no dropout, of which `transformers` would take
/// a tenth.
pub(super) fn set_critic(fields: &mut Map<String, Value>) {
    if fields.get("id2label").and_then(Value::as_object).is_none_or(|labels| labels.len() != 1) {
        fields.insert("id2label".into(), json!({ "0": "value" }));
        fields.insert("label2id".into(), json!({ "value": 0 }));
    }
    if fields.contains_key("num_labels") {
        fields.insert("num_labels".into(), json!(1));
    }
    fields.insert("classifier_dropout".into(), json!(0.0));
}
