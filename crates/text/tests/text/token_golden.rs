//! Token ids and texts against `transformers`: `golden/tokens.py` wrote `golden/tokens.json`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::path::{Path, PathBuf};

use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn stored() -> Value {
    serde_json::from_slice(&std::fs::read(golden("tokens.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn ids_and_texts_match_transformers() {
    for (name, expected) in stored().as_object().unwrap() {
        let tokenizer = Tokenizer::load(&golden(name)).unwrap();
        assert_eq!(tokenizer.vocab_size() as u64, expected["vocab_size"].as_u64().unwrap(), "{name}");
        for case in expected["encoded"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let encoded = tokenizer.encode(text, true).unwrap();
            assert_eq!(encoded, ids(&case["ids"]), "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&case["plain_ids"]), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&encoded, false).unwrap(), case["decoded"], "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&encoded, true).unwrap(), case["decoded_plain"], "{name}: {text:?}");
        }
        for case in expected["decoded"].as_array().unwrap() {
            assert_eq!(tokenizer.decode(&ids(&case["ids"]), false).unwrap(), case["text"], "{name}: {case}");
        }
    }
}

#[test]
fn the_start_of_a_text_has_no_more_tokens_than_allowed() {
    for (name, expected) in stored().as_object().unwrap() {
        let tokenizer = Tokenizer::load(&golden(name)).unwrap();
        for case in expected["encoded"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let count = |text: &str| tokenizer.encode(text, false).unwrap().len();
            let mut before = 0;
            for limit in 0..count(text) + 2 {
                let end = tokenizer.prefix_within(text, limit).unwrap();
                assert!(count(&text[..end]) <= limit, "{name}: {text:?}, {limit} tokens");
                assert!(end >= before, "{name}: {text:?}, {limit} tokens");
                before = end;
            }
            assert_eq!(before, text.len(), "{name}: {text:?}");
        }
    }
    let characters = Tokenizer::characters(&CharacterSettings::new("aé")).unwrap();
    assert_eq!(characters.prefix_within("aéaéa", 3).unwrap(), "aéa".len());
    assert!(characters.prefix_within("ab", 1).unwrap_err().to_string().contains("'b'"));
}

#[test]
fn special_tokens_match_transformers() {
    for (name, expected) in stored().as_object().unwrap() {
        let tokenizer = Tokenizer::load(&golden(name)).unwrap();
        let named: serde_json::Map<String, Value> =
            tokenizer.special_tokens().named().map(|(role, text)| (role.to_owned(), text.into())).collect();
        assert_eq!(Value::Object(named), expected["special"], "{name}");
        let id = |role: &str| expected["special_ids"][role].as_u64().map(|id| id as u32);
        assert_eq!(tokenizer.bos_id(), id("bos_token"), "{name}");
        assert_eq!(tokenizer.eos_id(), id("eos_token"), "{name}");
        assert_eq!(tokenizer.pad_id(), id("pad_token"), "{name}");
    }
}

#[test]
fn generation_ends_at_each_end_token_of_the_folder() {
    let tokenizer = Tokenizer::load(&golden("byte_level")).unwrap();
    let id = |token| tokenizer.token_to_id(token).unwrap();
    assert_eq!(tokenizer.eos_ids(), [id("<|end|>"), id("<|stop|>")]);
    let characters = Tokenizer::load(&golden("characters")).unwrap();
    assert_eq!(characters.eos_ids(), [1]);
}

#[test]
fn tokens_declared_only_in_the_configuration_are_added() {
    let tokenizer = Tokenizer::load(&golden("byte_level")).unwrap();
    assert_eq!(tokenizer.token_to_id("<|late|>"), Some(484));
    assert_eq!(tokenizer.encode("a<|late|>", false).unwrap()[1..], [484]);
    assert_eq!(tokenizer.decode(&[484], true).unwrap(), "");
}

/// `Tokenizer::characters` still writes the folder that `transformers` opened for the golden values.
#[test]
fn character_tokenizers_write_the_golden_folder() {
    let settings =
        CharacterSettings { bos: true, ..CharacterSettings::new("0123456789+-*/= \n?abcéß語😀\"\\<|>") };
    let tokenizer = Tokenizer::characters(&settings).unwrap();
    let dir = tempfile::tempdir().unwrap();
    tokenizer.save(dir.path()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let written = std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(written, std::fs::read_to_string(golden("characters").join(file)).unwrap(), "{file}");
    }
    assert_eq!(tokenizer.encode("12\n", true).unwrap(), [2, 4, 5, 19]);
}
