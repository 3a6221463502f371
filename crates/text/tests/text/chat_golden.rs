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

/// A file of cases that `chat.py` or `published.py` has written.
pub(crate) struct Stored {
    pub(crate) json: Value,
}

/// Comparison of a rendering with that of `transformers`.
pub(crate) enum Outcome {
    Same { marked: bool },
    Refused,
    Failed,
    Different { what: String },
}

impl Stored {
    pub(crate) fn read(path: &Path) -> Self {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { json: serde_json::from_str(&text).unwrap() }
    }

    pub(crate) fn special(&self) -> SpecialTokens {
        let text = |name: &str| self.json["special"][name].as_str().map(str::to_owned);
        SpecialTokens {
            bos: text("bos_token"),
            eos: text("eos_token"),
            pad: text("pad_token"),
            ..Default::default()
        }
    }

    fn now(&self) -> DateTime {
        let part = |i: usize| self.json["now"][i].as_u64().unwrap();
        DateTime {
            year: part(0) as u16,
            month: part(1) as u8,
            day: part(2) as u8,
            hour: part(3) as u8,
            minute: part(4) as u8,
            second: part(5) as u8,
        }
    }

    /// Renders the conversation and compares text, marks and refusal.
    pub(crate) fn compare(&self, template: &ChatTemplate, conversation: &Value, case: &Value) -> Outcome {
        let all_tools = self.json["tools"].as_array().unwrap().as_slice();
        let options = RenderOptions {
            add_generation_prompt: conversation["add_generation_prompt"] == true,
            tools: (conversation["tools"] == "all").then_some(all_tools),
            documents: conversation["documents"].as_array().map(Vec::as_slice),
            variables: conversation["variables"].as_object(),
            now: Some(self.now()),
            template: None,
        };
        let result = template.render_marked(conversation["messages"].as_array().unwrap(), &options);
        match (&result, case["text"].as_str()) {
            (Ok(rendered), Some(expected)) if rendered.text == expected => {
                let Some(spans) = case["assistant"].as_array() else {
                    return Outcome::Same { marked: false };
                };
                let ours: Vec<&str> =
                    rendered.assistant.iter().map(|range| &rendered.text[range.clone()]).collect();
                if ours == *spans {
                    return Outcome::Same { marked: true };
                }
                Outcome::Different { what: format!("marks {ours:?}, expected {spans:?}") }
            }
            (Err(TextError::Refused { message }), None) if case["refused"] == message.as_str() => {
                Outcome::Refused
            }
            // Both fail; the text of Python's errors is not part of the contract.
            (Err(TextError::Render { .. }), None) if case["fails"].is_string() => Outcome::Failed,
            (Ok(rendered), Some(expected)) => {
                let same = expected.chars().zip(rendered.text.chars()).take_while(|(a, b)| a == b).count();
                let from = same.saturating_sub(20);
                let part = |text: &str| text.chars().skip(from).take(80).collect::<String>();
                Outcome::Different {
                    what: format!(
                        "from character {from} on {:?}, expected {:?}",
                        part(&rendered.text),
                        part(expected)
                    ),
                }
            }
            _ => Outcome::Different { what: format!("{result:?}, but transformers: {case}") },
        }
    }
}

#[test]
fn rendering_matches_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let stored = Stored::read(&folder.join("chat.json"));
    let conversations = json("conversations.json");
    let (mut same, mut refused, mut marked) = (0, 0, 0);
    for case in stored.json["cases"].as_array().unwrap() {
        let (template, name) = (case["template"].as_str().unwrap(), case["conversation"].as_str().unwrap());
        let source = golden(&format!("templates/{template}.jinja"));
        let compiled =
            ChatTemplate::new(&source, &stored.special()).unwrap_or_else(|e| panic!("{template}: {e}"));
        match stored.compare(&compiled, &conversations[name], case) {
            Outcome::Same { marked: has_marks } => {
                same += 1;
                marked += usize::from(has_marks);
            }
            Outcome::Refused => refused += 1,
            Outcome::Failed => {}
            Outcome::Different { what } => panic!("{template} over {name}: {what}"),
        }
    }
    // The golden file must not lose cases.
    assert!(
        same >= 190 && refused >= 8 && marked >= 15,
        "{same} rendered, {refused} refused, {marked} marked"
    );
}
