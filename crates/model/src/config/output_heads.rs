//! Heads of a model, and their representation in `config.json`.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::ConfigError;
use crate::Family;

/// Outputs computed from the hidden states after the final norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputHeads {
    /// Next-token distribution: a policy.
    #[default]
    Language,
    /// Next-token distribution and, from the same backbone, the value of the prefix. Saved as the policy's folder plus
    /// a separate file for the value head ([`crate::Model::save_value_head`]).
    LanguageAndValue,
    /// Value of the prefix only: a critic. Apart from the embedding table, nothing of the size of the vocabulary is
    /// stored or computed. Saved as a token classifier with one label, which `transformers` opens.
    Value,
}

impl OutputHeads {
    /// True if tokens can be scored and sampled.
    pub fn language(self) -> bool {
        self != Self::Value
    }

    /// True if prefixes have a value.
    pub fn value(self) -> bool {
        self != Self::Language
    }

    /// Class of `transformers` that opens the folder.
    pub(crate) fn architecture(self, family: Family) -> String {
        let class = if self.language() { "ForCausalLM" } else { "ForTokenClassification" };
        format!("{}{class}", family.architecture().class_prefix)
    }

    /// Reason and hint of the error for a folder of another architecture.
    pub(super) fn refusal(self) -> (&'static str, &'static str) {
        if self.language() {
            (
                "it is not a causal language model",
                "supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM",
            )
        } else {
            (
                "it is not a critic",
                "supported are LlamaForTokenClassification, MistralForTokenClassification, \
                 Qwen2ForTokenClassification and Qwen3ForTokenClassification with one label",
            )
        }
    }
}

/// Checks the fields of a critic's head. Without a number of labels, `transformers` assumes two.
pub(super) fn check_critic(fields: Fields<'_>) -> Result<(), ConfigError> {
    const REASON: &str = "a critic has one value per token";
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
            "training does not use dropout",
            "set it to 0 to train without it",
        )),
        _ => Ok(()),
    }
}

/// Sets the fields of a critic's head: one label, and no dropout, whose default in `transformers` is 0.1.
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
