//! Chat templates against `transformers`: `golden/chat.py` wrote `golden/chat.json`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::path::Path;

use rloom_text::{ChatTemplate, DateTime, RenderOptions, SpecialTokens, TextError};
use serde_json::Value;

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(name: &str) -> Value {
    serde_json::from_str(&golden(name)).unwrap()
}

fn special(stored: &Value) -> SpecialTokens {
    let text = |name: &str| stored[name].as_str().map(str::to_owned);
    SpecialTokens {
        bos: text("bos_token"),
        eos: text("eos_token"),
        pad: text("pad_token"),
        ..Default::default()
    }
}

fn date_time(stored: &Value) -> DateTime {
    let part = |i: usize| stored[i].as_u64().unwrap();
    DateTime {
        year: part(0) as u16,
        month: part(1) as u8,
        day: part(2) as u8,
        hour: part(3) as u8,
        minute: part(4) as u8,
        second: part(5) as u8,
    }
}

#[test]
fn rendering_matches_transformers() {
    let stored = json("chat.json");
    let conversations = json("conversations.json");
    let special = special(&stored["special"]);
    let (mut same, mut refused, mut marked) = (0, 0, 0);
    for case in stored["cases"].as_array().unwrap() {
        let (template, name) = (case["template"].as_str().unwrap(), case["conversation"].as_str().unwrap());
        let conversation = &conversations[name];
        let source = golden(&format!("templates/{template}.jinja"));
        let compiled = ChatTemplate::new(&source, &special).unwrap_or_else(|e| panic!("{template}: {e}"));
        let options = RenderOptions {
            add_generation_prompt: conversation["add_generation_prompt"] == true,
            tools: (conversation["tools"] == "all").then(|| stored["tools"].as_array().unwrap().as_slice()),
            documents: conversation["documents"].as_array().map(Vec::as_slice),
            variables: conversation["variables"].as_object(),
            now: Some(date_time(&stored["now"])),
            template: None,
        };
        let result = compiled.render_marked(conversation["messages"].as_array().unwrap(), &options);
        match (&result, case["text"].as_str()) {
            (Ok(rendered), Some(expected)) => {
                assert_eq!(rendered.text, expected, "{template} over {name}");
                if let Some(spans) = case["assistant"].as_array() {
                    let ours: Vec<&str> =
                        rendered.assistant.iter().map(|range| &rendered.text[range.clone()]).collect();
                    assert_eq!(ours, *spans, "{template} over {name}");
                    marked += 1;
                }
                same += 1;
            }
            (Err(TextError::Refused { message }), None) => {
                assert_eq!(case["refused"], message.as_str(), "{template} over {name}");
                refused += 1;
            }
            (Err(error), None) => assert!(case["fails"].is_string(), "{template} over {name}: {error}"),
            _ => panic!("{template} over {name}: {result:?}, but transformers: {case}"),
        }
    }
    // The golden file must not lose cases.
    assert!(
        same >= 190 && refused >= 8 && marked >= 15,
        "{same} rendered, {refused} refused, {marked} marked"
    );
}
