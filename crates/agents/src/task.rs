//! Tasks as agents receive them.

use rloom_core::{PromptSource, Task};
use serde_json::{Map, Value, json};

/// The task in JSON: its prompt, which is text or a list of messages, its answer unless it is hidden, and the other fields of
/// its row.
pub(crate) fn task_json(task: &Task, hide_answer: bool) -> Value {
    let mut fields = Map::new();
    fields.insert("index".to_owned(), json!(task.index));
    let prompt = match &task.prompt {
        PromptSource::Text(text) => json!(text),
        PromptSource::Messages(messages) => json!(messages),
    };
    fields.insert("prompt".to_owned(), prompt);
    fields.insert("domain".to_owned(), json!(task.domain));
    if !hide_answer {
        fields.insert("answer".to_owned(), json!(task.answer));
    }
    if !task.extra.is_empty() {
        fields.insert("fields".to_owned(), Value::Object((*task.extra).clone()));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_answer_is_hidden_on_request() {
        let extra = Map::from_iter([("repository".to_owned(), json!("a"))]);
        let task = Task {
            index: 3,
            prompt: PromptSource::Text("1+2=".to_owned()),
            answer: "3".to_owned(),
            demonstration: None,
            domain: "sums".to_owned(),
            extra: Arc::new(extra),
        };
        let shown = json!({"index": 3, "prompt": "1+2=", "domain": "sums", "answer": "3", "fields": {"repository": "a"}});
        assert_eq!(task_json(&task, false), shown);
        assert_eq!(task_json(&task, true).get("answer"), None);
    }
}
