//! Heads of a model, and their representation in `config.json`.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{ConfigError, ModelConfig};
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
    /// Reward of the prefix only, saved as a sequence classifier with one label, which `transformers` opens. Its value head has no
    /// bias.
    Reward,
    /// Two logits of the prefix only, wrong and right, saved as a token classifier with two labels, which `transformers` opens.
    /// The value is their difference.
    ProcessReward,
}

impl OutputHeads {
    /// True if tokens can be scored and sampled.
    pub fn language(self) -> bool {
        matches!(self, Self::Language | Self::LanguageAndValue)
    }

    /// True if prefixes have a value.
    pub fn value(self) -> bool {
        self != Self::Language
    }

    /// Rows of the value head; 0 without one.
    pub(crate) fn labels(self) -> usize {
        match self {
            Self::Language => 0,
            Self::LanguageAndValue | Self::Value | Self::Reward => 1,
            Self::ProcessReward => 2,
        }
    }

    /// True if the value head has a bias.
    pub(crate) fn value_bias(self) -> bool {
        self.value() && self != Self::Reward
    }

    /// True for a reward model of completions or of steps.
    pub fn rewards(self) -> bool {
        matches!(self, Self::Reward | Self::ProcessReward)
    }

    /// Heads that a folder of this class of `transformers` and this number of labels has; those of a policy for any other.
    pub(crate) fn of_class(class: &str, labels: usize) -> Self {
        match (class, labels) {
            _ if class.ends_with("ForSequenceClassification") => Self::Reward,
            (_, 1) if class.ends_with("ForTokenClassification") => Self::Value,
            _ if class.ends_with("ForTokenClassification") => Self::ProcessReward,
            _ => Self::Language,
        }
    }

    /// Task of an adapter with these heads, as PEFT names it.
    pub(crate) fn peft_task(self) -> &'static str {
        match self {
            Self::Language | Self::LanguageAndValue => "CAUSAL_LM",
            Self::Reward => "SEQ_CLS",
            Self::Value | Self::ProcessReward => "TOKEN_CLS",
        }
    }

    /// Class of `transformers` that opens the folder.
    pub(crate) fn architecture(self, family: Family) -> String {
        let class = match self {
            Self::Language | Self::LanguageAndValue => "ForCausalLM",
            Self::Reward => "ForSequenceClassification",
            Self::Value | Self::ProcessReward => "ForTokenClassification",
        };
        format!("{}{class}", family.architecture().class_prefix)
    }

    /// Reason and hint of the error for a folder of another architecture.
    pub(super) fn refusal(self) -> (&'static str, &'static str) {
        match self {
            Self::Language | Self::LanguageAndValue => (
                "it is not a causal language model",
                "supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM",
            ),
            Self::Value => (
                "it is not a critic",
                "supported are LlamaForTokenClassification, MistralForTokenClassification, \
                 Qwen2ForTokenClassification and Qwen3ForTokenClassification with one label",
            ),
            Self::Reward => (
                "it is not a reward model",
                "supported are LlamaForSequenceClassification, MistralForSequenceClassification, \
                 Qwen2ForSequenceClassification and Qwen3ForSequenceClassification with one label",
            ),
            Self::ProcessReward => (
                "it is not a process-reward model",
                "supported are LlamaForTokenClassification, MistralForTokenClassification, \
                 Qwen2ForTokenClassification and Qwen3ForTokenClassification with two labels",
            ),
        }
    }
}

/// Labels of a classifier without any in its file, as `transformers` assumes.
const DEFAULT_LABELS: usize = 2;

/// Checks the fields of the head of a classifier.
pub(super) fn check_classifier(fields: Fields<'_>, heads: OutputHeads) -> Result<(), ConfigError> {
    let (reason, hint) = match heads {
        OutputHeads::Reward => ("a reward model has one value", "use a sequence classifier with one label"),
        OutputHeads::ProcessReward => (
            "a process-reward model has two labels",
            "use a token classifier with two labels, wrong and right",
        ),
        _ => ("a critic has one value per token", "use a token classifier with one label"),
    };
    let refused = |field: &str, value: &Value| Err(fields.unsupported(field, value, reason, hint));
    let (labels, names) = (heads.labels(), fields.object("id2label")?);
    if let Some(names) = names
        && names.len() != labels
    {
        return refused("id2label", &Value::Object(names.clone()));
    }
    match fields.count("num_labels")? {
        Some(number) if number != labels => return refused("num_labels", &json!(number)),
        // Critics of earlier versions may lack the labels.
        None if names.is_none() && heads == OutputHeads::Reward && labels != DEFAULT_LABELS => {
            return refused("num_labels", &json!(DEFAULT_LABELS));
        }
        _ => {}
    }
    match fields.number("classifier_dropout")? {
        // Sequence classifiers have none.
        Some(rate) if rate != 0.0 && heads != OutputHeads::Reward => Err(fields.unsupported(
            "classifier_dropout",
            &json!(rate),
            "training does not use dropout",
            "set it to 0 to train without it",
        )),
        _ => Ok(()),
    }
}

/// Field of this program in `config.json`, which `transformers` keeps and ignores.
const RLOOM: &str = "rloom";
/// Part of it in a reward model's: the texts that it was trained on end with an end-of-text token.
const END_TOKEN: &str = "end_token";

/// True if the reward model was trained on texts that end with an end-of-text token, as this program trains it.
pub(super) fn reads_end_token(fields: &Map<String, Value>) -> bool {
    fields.get(RLOOM).and_then(|own| own.get(END_TOKEN)) == Some(&Value::Bool(true))
}

/// Sets the fields of the head of a classifier: its labels, and no dropout, whose default in `transformers` is 0.1. A sequence
/// classifier takes the last token that is not padding, so that no end-of-text token may be one.
pub(super) fn set_classifier(fields: &mut Map<String, Value>, config: &ModelConfig) {
    let heads = config.output_heads;
    let labels = heads.labels();
    let [zero, one] = if heads == OutputHeads::ProcessReward { ["wrong", "right"] } else { ["value", ""] };
    if fields.get("id2label").and_then(Value::as_object).is_none_or(|names| names.len() != labels) {
        let (id2label, label2id) = if labels == 1 {
            (json!({ "0": zero }), json!({ zero: 0 }))
        } else {
            (json!({ "0": zero, "1": one }), json!({ zero: 0, one: 1 }))
        };
        fields.insert("id2label".into(), id2label);
        fields.insert("label2id".into(), label2id);
    }
    if fields.contains_key("num_labels") {
        fields.insert("num_labels".into(), json!(labels));
    }
    if heads == OutputHeads::Reward {
        fields.insert(RLOOM.into(), json!({ END_TOKEN: true }));
        if config.pad_token_id.is_some_and(|pad| config.eos_token_ids.contains(&pad)) {
            fields.insert("pad_token_id".into(), Value::Null);
        }
    } else {
        fields.insert("classifier_dropout".into(), json!(0.0));
    }
}
