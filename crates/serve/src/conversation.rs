//! Conversations in one form, whichever API they came through.
//!
//! Messages are those that chat templates receive: content is text, arguments of calls are objects, reasoning is in
//! `reasoning_content`, and a result names the tool and the call that it belongs to.

use std::collections::HashMap;

use rloom_core::ChatMessage;
use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value, json};

use crate::fields::Fields;
use crate::problem::{Problem, shortened};

/// A conversation that the model continues.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<ChatMessage>,
    /// Tools that the model may call.
    pub(crate) tools: Vec<ToolDeclaration>,
    /// Further variables of the chat template.
    pub(crate) variables: Map<String, Value>,
}

/// A call in an earlier message.
#[derive(Debug)]
pub(crate) struct EarlierCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Value,
}

impl EarlierCall {
    /// A call whose arguments are JSON text; text that is not JSON stays as it is.
    pub(crate) fn of_text(id: String, name: String, arguments: String) -> Self {
        let parsed = if arguments.trim().is_empty() {
            Some(Value::Object(Map::new()))
        } else {
            serde_json::from_str(&arguments).ok()
        };
        Self { id, name, arguments: parsed.unwrap_or(Value::String(arguments)) }
    }
}

/// Builds the messages of a conversation in order.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    ended: Vec<ChatMessage>,
    /// Parts of the assistant's message that is being collected.
    open: Option<Assistant>,
    /// Names of the tools by the identifiers of their calls.
    names: HashMap<String, String>,
}

#[derive(Debug, Default)]
struct Assistant {
    reasoning: String,
    text: String,
    calls: Vec<EarlierCall>,
}

impl Messages {
    /// A message of another role than the assistant's.
    pub(crate) fn push(&mut self, role: &str, text: String) {
        self.end_turn();
        self.ended.push(ChatMessage::new(role, text));
    }

    /// Result of a call.
    pub(crate) fn push_result(&mut self, id: String, name: Option<String>, text: String) {
        self.end_turn();
        let mut message = ChatMessage::new("tool", text);
        if let Some(name) = name.or_else(|| self.names.get(&id).cloned()) {
            message.fields.insert("name".to_owned(), Value::String(name));
        }
        message.fields.insert("tool_call_id".to_owned(), Value::String(id));
        self.ended.push(message);
    }

    /// Reasoning of the assistant, which begins a new turn after text or calls.
    pub(crate) fn reasoning(&mut self, text: &str) {
        if self.open.as_ref().is_some_and(|open| !open.text.is_empty() || !open.calls.is_empty()) {
            self.end_turn();
        }
        self.open.get_or_insert_default().reasoning.push_str(text);
    }

    /// Text of the assistant, which begins a new turn after calls.
    pub(crate) fn text(&mut self, text: &str) {
        if self.open.as_ref().is_some_and(|open| !open.calls.is_empty()) {
            self.end_turn();
        }
        self.open.get_or_insert_default().text.push_str(text);
    }

    /// A call of the assistant.
    pub(crate) fn call(&mut self, call: EarlierCall) {
        self.names.insert(call.id.clone(), call.name.clone());
        self.open.get_or_insert_default().calls.push(call);
    }

    /// Ends the assistant's message.
    pub(crate) fn end_turn(&mut self) {
        let Some(Assistant { reasoning, text, calls }) = self.open.take() else { return };
        let mut message = ChatMessage::new("assistant", text);
        if !reasoning.is_empty() {
            message.fields.insert("reasoning_content".to_owned(), Value::String(reasoning));
        }
        if !calls.is_empty() {
            let call = |EarlierCall { id, name, arguments }| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            message.fields.insert("tool_calls".to_owned(), calls.into_iter().map(call).collect());
        }
        self.ended.push(message);
    }

    /// The messages.
    pub(crate) fn finish(mut self, field: &str) -> Result<Vec<ChatMessage>, Problem> {
        self.end_turn();
        if self.ended.is_empty() {
            return Err(Problem::field(field, "must contain at least one message"));
        }
        Ok(self.ended)
    }
}

/// Text of a message's content: a string, or an array of parts with one of the types `kinds`.
pub(crate) fn text_of(content: Value, path: &str, kinds: &[&str]) -> Result<String, Problem> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(Problem::field(path, "must be a string or an array of parts")),
    };
    let mut text = String::new();
    for (place, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of(part, &format!("{path}[{place}]"))?;
        let kind = part.required_text("type")?;
        if !kinds.contains(&kind.as_str()) {
            return Err(
                part.problem("type", format!("`{}` is not supported: only text is", shortened(&kind)))
            );
        }
        let field = if kind == "refusal" { "refusal" } else { "text" };
        text.push_str(&part.required_text(field)?);
        part.accept(&["annotations", "cache_control", "citations", "logprobs"]);
        part.finish()?;
    }
    Ok(text)
}

/// A declared tool from its name, description and schema.
pub(crate) fn declaration(fields: &mut Fields, schema: &str) -> Result<ToolDeclaration, Problem> {
    let name = fields.required_text("name")?;
    if name.is_empty() {
        return Err(fields.problem("name", "must not be empty"));
    }
    let description = fields.text("description")?.unwrap_or_default();
    let parameters = fields.object(schema)?;
    let parameters = parameters.map_or_else(|| json!({"type": "object", "properties": {}}), Value::Object);
    // Arguments are not constrained to the schema. Clients set it by default.
    fields.flag("strict")?;
    Ok(ToolDeclaration { name, description, parameters })
}
