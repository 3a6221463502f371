use serde_json::{Map, Value};

/// The special tokens, as text.
///
/// Chat templates see each token that is set under its name (`bos_token`, `eos_token`, …).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpecialTokens {
    /// Start of a sequence.
    pub bos: Option<String>,
    /// End of a sequence.
    pub eos: Option<String>,
    /// Padding of batches; never trained on.
    pub pad: Option<String>,
    /// Replacement of text that is not in the vocabulary.
    pub unk: Option<String>,
    /// Other named tokens (`sep_token`, `cls_token`, `mask_token`, and those specific to the model), in file order.
    pub others: Vec<(String, String)>,
}

/// Names in `transformers` of the roles without a field of [`SpecialTokens`].
const OTHER_STANDARD: [&str; 3] = ["sep_token", "cls_token", "mask_token"];

impl SpecialTokens {
    /// Reads the roles from `tokenizer_config.json` and, if that has no `added_tokens_decoder` (the older layout), from
    /// `special_tokens_map.json`, which then takes precedence.
    pub(crate) fn from_config(config: &Map<String, Value>, legacy_map: Option<&Map<String, Value>>) -> Self {
        let legacy_map = legacy_map.filter(|_| !config.contains_key("added_tokens_decoder"));
        let role = |name: &str| {
            legacy_map.and_then(|map| map.get(name)).or_else(|| config.get(name)).and_then(token_text)
        };
        let mut others: Vec<(String, String)> =
            OTHER_STANDARD.iter().filter_map(|name| Some(((*name).to_owned(), role(name)?))).collect();
        let named = |map: &Map<String, Value>, everything: bool| -> Vec<(String, String)> {
            let is_role = |name: &str| everything || name.ends_with("_token");
            map.iter()
                .filter(|(name, value)| is_role(name) && (everything || value.is_string()))
                .filter_map(|(name, value)| Some((name.clone(), token_text(value)?)))
                .collect()
        };
        let model_specific = config
            .get("extra_special_tokens")
            .and_then(Value::as_object)
            .map(|map| named(map, true))
            .into_iter()
            .chain([named(config, false)])
            .flatten();
        for (name, text) in model_specific {
            let standard = ["bos_token", "eos_token", "pad_token", "unk_token"].contains(&name.as_str());
            if !standard && !others.iter().any(|(known, _)| *known == name) {
                others.push((name, text));
            }
        }
        Self {
            bos: role("bos_token"),
            eos: role("eos_token"),
            pad: role("pad_token"),
            unk: role("unk_token"),
            others,
        }
    }

    /// The name in templates and the text of each token that is set.
    pub fn named(&self) -> impl Iterator<Item = (&str, &str)> {
        let fixed = [
            ("bos_token", &self.bos),
            ("eos_token", &self.eos),
            ("unk_token", &self.unk),
            ("pad_token", &self.pad),
        ];
        fixed
            .into_iter()
            .filter_map(|(name, text)| Some((name, text.as_deref()?)))
            .chain(self.others.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }
}

/// The text of a token in a configuration file, where it is a string or an object with matching options.
fn token_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(token) => token.get("content")?.as_str().map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn special(config: &Value, legacy: Option<&Value>) -> SpecialTokens {
        SpecialTokens::from_config(config.as_object().unwrap(), legacy.and_then(Value::as_object))
    }

    #[test]
    fn tokens_are_strings_or_objects_with_content() {
        let config = json!({
            "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null,
            "image_token": "<image>", "add_bos_token": true, "extra_special_tokens": {"video_token": "<video>"},
        });
        let found = special(&config, None);
        assert_eq!(
            (found.bos.as_deref(), found.eos.as_deref(), found.pad),
            (Some("<s>"), Some("</s>"), None)
        );
        let others = [("video_token", "<video>"), ("image_token", "<image>")];
        assert_eq!(found.others, others.map(|(n, t)| (n.to_owned(), t.to_owned())));
    }

    #[test]
    fn the_old_map_takes_precedence_only_in_the_old_layout() {
        let map = json!({"eos_token": {"content": "<old>"}});
        assert_eq!(special(&json!({"eos_token": "<new>"}), Some(&map)).eos.as_deref(), Some("<old>"));
        let config = json!({"eos_token": "<new>", "added_tokens_decoder": {}});
        assert_eq!(special(&config, Some(&map)).eos.as_deref(), Some("<new>"));
    }
}
