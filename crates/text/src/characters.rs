use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{TextError, folder};

const PAD: &str = "<|pad|>";
const EOS: &str = "<|eos|>";
const BOS: &str = "<|bos|>";

/// A character-level tokenizer: one token per character of an alphabet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CharacterSettings {
    /// All characters of the texts, each once. Token ids follow their order.
    pub alphabet: String,
    /// Starts every text with the token `<|bos|>`.
    #[serde(default)]
    pub bos: bool,
    /// Chat template (Jinja) to save with the tokenizer. Without one, prompts must be plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
}

impl CharacterSettings {
    /// An alphabet, without `<|bos|>` and chat template.
    pub fn new(alphabet: impl Into<String>) -> Self {
        Self { alphabet: alphabet.into(), bos: false, chat_template: None }
    }

    /// The files of the equivalent Hugging Face folder.
    pub(crate) fn files(&self) -> Result<Vec<(String, Vec<u8>)>, TextError> {
        let special: &[&str] = if self.bos { &[PAD, EOS, BOS] } else { &[PAD, EOS] };
        let mut vocab: Map<String, Value> = Map::new();
        for token in special {
            vocab.insert((*token).to_owned(), json!(vocab.len()));
        }
        for character in self.alphabet.chars() {
            let id = vocab.len();
            if vocab.insert(character.to_string(), json!(id)).is_some() {
                return Err(TextError::RepeatedCharacter { character });
            }
        }
        if self.alphabet.is_empty() {
            return Err(TextError::EmptyAlphabet);
        }

        let described = |id: usize, token: &str| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let added: Vec<Value> = special.iter().enumerate().map(|(id, token)| described(id, token)).collect();
        let post_processor = if self.bos {
            json!({
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                         {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {BOS: {"id": BOS, "ids": [2], "tokens": [BOS]}},
            })
        } else {
            Value::Null
        };
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": null,
            // Every character, line breaks included, is a separate piece.
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": false},
            "post_processor": post_processor,
            "decoder": {"type": "Fuse"},
            // The unknown token is deliberately not in the vocabulary, so that unknown characters are errors.
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<|unknown|>"},
        });

        let decoder: Map<String, Value> = special
            .iter()
            .enumerate()
            .map(|(id, token)| {
                let mut entry = described(id, token);
                if let Some(fields) = entry.as_object_mut() {
                    fields.remove("id");
                }
                (id.to_string(), entry)
            })
            .collect();
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": decoder,
            "clean_up_tokenization_spaces": false,
            "padding_side": "left",
            "eos_token": EOS,
            "pad_token": PAD,
        });
        if self.bos {
            config["bos_token"] = json!(BOS);
        }

        let mut files = vec![
            (folder::TOKENIZER.to_owned(), pretty(&tokenizer)),
            (folder::TOKENIZER_CONFIG.to_owned(), pretty(&config)),
        ];
        if let Some(template) = &self.chat_template {
            files.push((folder::CHAT_TEMPLATE.to_owned(), template.clone().into_bytes()));
        }
        Ok(files)
    }
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = format!("{value:#}");
    text.push('\n');
    text.into_bytes()
}
