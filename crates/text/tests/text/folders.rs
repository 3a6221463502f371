//! Hugging Face folders: reading, writing and error messages.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::path::{Path, PathBuf};

use miette::Diagnostic;
use proptest::prelude::*;
use rloom_text::{CharacterSettings, DateTime, RenderOptions, TextError, Tokenizer};
use serde_json::json;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A copy of a golden folder, to be modified.
fn copied(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

/// Message and hint of the error: `message [hint]`.
fn error(dir: &Path) -> String {
    let error = Tokenizer::load(dir).unwrap_err();
    let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
    format!("{error}{hint}").replace(&dir.display().to_string(), "DIR")
}

fn question() -> Vec<serde_json::Value> {
    vec![json!({"role": "user", "content": "hi"})]
}

#[test]
fn saving_writes_every_file_back_byte_for_byte() {
    for name in ["byte_level", "metaspace", "characters"] {
        let source = copied(name);
        let extra = [
            ("chat_template.jinja", "{{ messages[0].content }}\r\n"),
            ("additional_chat_templates/rag.jinja", "rag"),
            ("tokenizer.model", "\u{1}\u{2}"),
            ("merges.txt", "a b"),
        ];
        std::fs::create_dir(source.path().join("additional_chat_templates")).unwrap();
        for (file, content) in extra {
            std::fs::write(source.path().join(file), content).unwrap();
        }
        let target = tempfile::tempdir().unwrap();
        let saved = target.path().join("new/folder");
        Tokenizer::load(source.path()).unwrap().save(&saved).unwrap();
        let mut files: Vec<&str> = extra.iter().map(|(file, _)| *file).collect();
        files.extend(["tokenizer.json", "tokenizer_config.json"]);
        files.extend((name == "metaspace").then_some("special_tokens_map.json"));
        for file in files {
            let read = |dir: &Path| std::fs::read(dir.join(file)).unwrap();
            assert_eq!(read(&saved), read(source.path()), "{name}/{file}");
        }
        // The model's files are not the tokenizer's to write.
        assert!(!saved.join("generation_config.json").exists());
    }
}

#[test]
fn a_missing_tokenizer_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        error(dir.path()),
        "DIR/tokenizer.json is missing [a model folder needs the tokenizer.json that `transformers` saves \
         with the weights]"
    );
    std::fs::write(dir.path().join("tokenizer.model"), [0]).unwrap();
    let said = error(dir.path());
    assert!(said.contains("only has tokenizer.model (a sentencepiece model)"), "{said}");
    assert!(said.contains("save_pretrained"), "{said}");
    assert!(error(&dir.path().join("nowhere")).contains("[the folder DIR"));
}

#[test]
fn errors_in_files_name_file_and_line() {
    let dir = copied("characters");
    std::fs::write(dir.path().join("tokenizer.json"), "{\"version\": \"1.0\",\n \"model\": ").unwrap();
    let said = error(dir.path());
    assert!(said.starts_with("DIR/tokenizer.json is invalid: ") && said.contains("line 2"), "{said}");

    let dir = copied("characters");
    std::fs::write(dir.path().join("tokenizer_config.json"), "[]").unwrap();
    let said = error(dir.path());
    assert!(said.starts_with("DIR/tokenizer_config.json is invalid: it is not a JSON object"), "{said}");

    let dir = copied("byte_level");
    std::fs::write(dir.path().join("generation_config.json"), "{\"eos_token_id\": \"x\"}").unwrap();
    let said = error(dir.path());
    assert!(said.starts_with("DIR/generation_config.json is invalid: `eos_token_id` must be"), "{said}");

    let dir = copied("characters");
    std::fs::write(dir.path().join("chat_template.jinja"), "a\n{% if %}").unwrap();
    let said = error(dir.path());
    assert!(said.starts_with("chat template `default`, line 2: "), "{said}");
}

#[test]
fn an_added_token_at_another_id_is_an_error() {
    let dir = copied("characters");
    let path = dir.path().join("tokenizer_config.json");
    let config = std::fs::read_to_string(&path).unwrap().replace("\"1\": {", "\"7\": {");
    std::fs::write(&path, config).unwrap();
    let said = error(dir.path());
    assert!(said.contains("assigns id 7 to \"<|eos|>\", but tokenizer.json assigns 1"), "{said}");
}

#[test]
fn end_of_text_ids_fall_back_to_config_json() {
    let dir = copied("characters");
    std::fs::write(dir.path().join("config.json"), "{\"eos_token_id\": 7}").unwrap();
    assert_eq!(Tokenizer::load(dir.path()).unwrap().eos_ids(), [1, 7]);
    std::fs::write(dir.path().join("generation_config.json"), "{\"eos_token_id\": [9, 5]}").unwrap();
    assert_eq!(Tokenizer::load(dir.path()).unwrap().eos_ids(), [1, 5, 9]);
}

#[test]
fn a_character_outside_the_alphabet_is_named() {
    let tokenizer = Tokenizer::characters(&CharacterSettings::new("0123456789+= \n")).unwrap();
    let failed = tokenizer.encode("1+1=\u{e9}?", false).unwrap_err();
    assert!(
        matches!(failed, TextError::UnknownCharacter { character: 'é', position: 4 }),
        "{failed:?} should name é at 4"
    );
    assert_eq!(failed.to_string(), "the tokenizer has no token for 'é' (U+00E9) at position 4 of the text");
    assert_eq!(
        failed.help().unwrap().to_string(),
        "add the character to the alphabet, or remove it from the text"
    );
    let dir = tempfile::tempdir().unwrap();
    tokenizer.save(dir.path()).unwrap();
    let failed = Tokenizer::load(dir.path()).unwrap().encode("1+1=\u{e9}?", false).unwrap_err();
    assert!(matches!(failed, TextError::UnknownCharacter { character: 'é', position: 4 }), "{failed:?}");
}

#[test]
fn character_ids_follow_the_alphabet() {
    let tokenizer = Tokenizer::characters(&CharacterSettings::new("ba\n語")).unwrap();
    assert_eq!((tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.bos_id()), (Some(0), Some(1), None));
    assert_eq!(tokenizer.encode("ab\n語", true).unwrap(), [3, 2, 4, 5]);
    assert_eq!(tokenizer.vocab_size(), 6);
    assert_eq!(tokenizer.decode(&[3, 2, 4, 5, 1], true).unwrap(), "ab\n語");
    assert_eq!(tokenizer.decode(&[3, 1, 0, 99], false).unwrap(), "a<|eos|><|pad|>");
}

#[test]
fn invalid_alphabets_are_refused() {
    let said =
        |alphabet: &str| Tokenizer::characters(&CharacterSettings::new(alphabet)).unwrap_err().to_string();
    assert!(said("").contains("the alphabet is empty"));
    assert!(said("abca").contains("'a' more than once"));
}

#[test]
fn a_template_file_takes_precedence_over_the_configuration() {
    let dir = copied("byte_level");
    let render = |options: &RenderOptions<'_>| {
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        tokenizer.require_chat_template().unwrap().render(&question(), options)
    };
    let prompt = RenderOptions::prompt();
    let tools = [json!({"name": "é", "n": 1})];
    let with_tools = RenderOptions { tools: Some(&tools), ..prompt.clone() };
    assert_eq!(render(&prompt).unwrap(), "<|turn|>user\nhi<|stop|>\n<|turn|>assistant\n");
    assert_eq!(render(&with_tools).unwrap(), "[{\"name\": \"é\", \"n\": 1}]hi<|stop|>");
    let named = RenderOptions { template: Some("default"), ..with_tools.clone() };
    assert!(render(&named).unwrap().starts_with("<|turn|>user"));

    std::fs::write(dir.path().join("chat_template.jinja"), "from a file: {{ messages[0].content }}").unwrap();
    assert_eq!(render(&with_tools).unwrap(), "from a file: hi");

    std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    std::fs::write(dir.path().join("additional_chat_templates/rag.jinja"), "rag").unwrap();
    let said = render(&prompt).unwrap_err().to_string();
    assert_eq!(said, "none of the chat templates is named `default`; available: `rag`");
    assert_eq!(render(&RenderOptions { template: Some("rag"), ..prompt }).unwrap(), "rag");
}

#[test]
fn messages_without_a_template_are_an_error_with_a_hint() {
    let tokenizer = Tokenizer::characters(&CharacterSettings::new("abc")).unwrap();
    assert!(tokenizer.chat_template().is_none());
    let error = tokenizer.require_chat_template().unwrap_err();
    assert!(error.to_string().starts_with("the tokenizer has no chat template"), "{error}");
    assert!(error.help().is_some());
}

#[test]
fn a_character_tokenizer_can_carry_a_template() {
    let template = "{% for m in messages %}{{ m.content }}={% endfor %}{{ eos_token }}";
    let settings =
        CharacterSettings { chat_template: Some(template.to_owned()), ..CharacterSettings::new("12+=") };
    let dir = tempfile::tempdir().unwrap();
    Tokenizer::characters(&settings).unwrap().save(dir.path()).unwrap();
    let loaded = Tokenizer::load(dir.path()).unwrap();
    let messages = [rloom_core::ChatMessage::new("user", "1+1")];
    let text = loaded.require_chat_template().unwrap().render(&messages, &RenderOptions::prompt()).unwrap();
    assert_eq!(text, "1+1=<|eos|>");
    assert_eq!(loaded.encode(&text, false).unwrap(), [2, 4, 2, 5, 1]);
}

#[test]
fn without_a_date_the_template_uses_its_fallback() {
    let special = rloom_text::SpecialTokens::default();
    let source = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'fallback' }}";
    let template = rloom_text::ChatTemplate::new(source, &special).unwrap();
    let render =
        |now| template.render(&question(), &RenderOptions { now, ..RenderOptions::prompt() }).unwrap();
    assert_eq!(render(None), "fallback");
    assert_eq!(render(DateTime::date(2024, 2, 29)), "29 Feb 2024");
    assert_eq!(DateTime::date(2023, 2, 29), None);
}

/// Loops whose repetitions multiply would run for years.
#[test]
fn a_template_that_does_not_end_is_an_error() {
    let dir = copied("characters");
    let loops = "{% for a in range(90000) %}".repeat(4) + &"{% endfor %}".repeat(4);
    std::fs::write(dir.path().join("chat_template.jinja"), loops).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let template = tokenizer.require_chat_template().unwrap();
    let error = template.render(&question(), &RenderOptions::prompt()).unwrap_err();
    assert!(matches!(error, TextError::EndlessTemplate { .. }) && error.help().is_some(), "{error}");
    // Long conversations stay far below the limit.
    let long = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}";
    std::fs::write(dir.path().join("chat_template.jinja"), long).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let messages = vec![question().remove(0); 20_000];
    let text =
        tokenizer.require_chat_template().unwrap().render(&messages, &RenderOptions::prompt()).unwrap();
    assert_eq!(text.len(), 20_000 * "<user>hi".len());
}

#[test]
fn hostile_files_are_errors() {
    for (file, content) in [
        ("tokenizer.json", "[".repeat(100_000)),
        ("tokenizer_config.json", format!("{{\"a\":{}", "[".repeat(100_000))),
        ("tokenizer_config.json", r#"{"added_tokens_decoder": {"4294967296": {"content": "a"}}}"#.to_owned()),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"4294967295": {"content": "zz"}}}"#.to_owned(),
        ),
        ("tokenizer_config.json", r#"{"chat_template": 3}"#.to_owned()),
        ("generation_config.json", r#"{"eos_token_id": -1}"#.to_owned()),
        ("generation_config.json", r#"{"eos_token_id": [1, 1e300]}"#.to_owned()),
    ] {
        let dir = copied("characters");
        std::fs::write(dir.path().join(file), &content).unwrap();
        let text = error(dir.path());
        assert!(text.starts_with(&format!("DIR/{file} is invalid: ")), "{file}: {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Any change of a valid folder gives a tokenizer or an error.
    #[test]
    fn damaged_folders_do_not_panic(
        name in prop::sample::select(vec!["byte_level", "metaspace", "characters"]),
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        digit in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let dir = copied(name);
        let mut paths: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let path = &paths[file.index(paths.len())];
        let mut bytes = std::fs::read(path).unwrap();
        // A number that becomes longer, or any bytes.
        let digits: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i].is_ascii_digit()).collect();
        if let (Some(digit), false) = (digit, digits.is_empty()) {
            let at = digits[digit.index(digits.len())];
            bytes.splice(at..at, *b"429496729");
        } else {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        std::fs::write(path, bytes).unwrap();
        if let Ok(tokenizer) = Tokenizer::load(dir.path()) {
            let tokens = tokenizer.encode("1+2=3, a word", true).unwrap_or_default();
            tokenizer.decode(&tokens, false).ok();
        }
    }
}
