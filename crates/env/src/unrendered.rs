//! Parts of a conversation that the chat template would drop without an error.

use std::fmt;

use rloom_core::{ChatMessage, Content, Demonstration, PromptSource, Task};
use rloom_text::{ChatTemplate, RenderOptions, TextError, Tokenizer};
use serde_json::{Map, Value, json};

/// Fields with content of their own. Others, such as `tool_call_id`, are only passed on to the template.
const FIELDS: [&str; 3] = ["tool_calls", "function_call", "name"];
/// Fields with the reasoning of a message. Templates drop the reasoning of earlier turns on purpose, so that it is only
/// required of a demonstration.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Roles that every template renders, or refuses.
const COMMON_ROLES: [&str; 3] = ["system", "user", "assistant"];

/// A part of a conversation that the chat template does not render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrendered {
    /// Number of the message, counted from 1.
    pub message: usize,
    /// Role of the message.
    pub role: String,
    /// The part.
    pub part: MessagePart,
}

/// Part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessagePart {
    /// The message as a whole, because of its role.
    Role,
    /// A field, such as `tool_calls`.
    Field(&'static str),
    /// A content that is a list of parts.
    ContentParts,
}

impl fmt::Display for Unrendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { message, role, part } = self;
        match part {
            MessagePart::Role => write!(f, "`role` of message {message} is {role:?}"),
            MessagePart::Field(field) => write!(f, "`{field}` of message {message} ({role})"),
            MessagePart::ContentParts => {
                write!(f, "`content` of message {message} ({role}) is a list of parts")
            }
        }
    }
}

/// Finds the first part of a task's conversation that the chat template does not render: a message whose role it ignores, a
/// field that it does not read, or content parts that it does not support. The demonstration is part of the conversation.
///
/// Templates ignore what they do not know, so this compares renderings with and without the part.
pub fn find_unrendered(tokenizer: &Tokenizer, task: &Task) -> Result<Option<Unrendered>, TextError> {
    let PromptSource::Messages(prompt) = &task.prompt else { return Ok(None) };
    let mut messages = prompt.clone();
    match &task.demonstration {
        Some(Demonstration::Message(message)) => messages.push(ChatMessage::clone(message)),
        Some(Demonstration::Conversation(turns)) => messages.extend_from_slice(turns),
        _ => {}
    }
    if messages.iter().all(is_common) {
        return Ok(None);
    }
    let template = tokenizer.require_chat_template()?;
    for (at, message) in messages.iter().enumerate() {
        if let Some(part) = unrendered_part(template, &messages, prompt.len(), at)? {
            return Ok(Some(Unrendered { message: at + 1, role: message.role.clone(), part }));
        }
    }
    Ok(None)
}

fn is_common(message: &ChatMessage) -> bool {
    message.plain_text().is_some() && COMMON_ROLES.contains(&message.role.as_str())
}

fn unrendered_part(
    template: &ChatTemplate,
    messages: &[ChatMessage],
    prompt: usize,
    at: usize,
) -> Result<Option<MessagePart>, TextError> {
    let message = &messages[at];
    let render = |messages: &[ChatMessage]| template.render(messages, &RenderOptions::default());
    let with = |changed: ChatMessage| {
        let mut messages = messages.to_vec();
        messages[at] = changed;
        render(&messages)
    };
    if let Some(Content::Parts(parts)) = &message.content
        && !supports_parts(parts, message, with)
    {
        return Ok(Some(MessagePart::ContentParts));
    }
    let whole = render(messages)?;
    // A template that refuses the changed conversation reads the part.
    let is_ignored = |changed: Result<String, TextError>| changed.is_ok_and(|changed| changed == whole);
    if !COMMON_ROLES.contains(&message.role.as_str()) {
        let without: Vec<ChatMessage> =
            messages.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, m)| m.clone()).collect();
        if is_ignored(render(&without)) {
            return Ok(Some(MessagePart::Role));
        }
    }
    let reasoning = REASONING.into_iter().filter(|_| at >= prompt);
    for field in FIELDS.into_iter().chain(reasoning) {
        // The name of a tool repeats that of its call.
        let repeats = field == "name" && message.role == "tool";
        if repeats || !message.fields.contains_key(field) {
            continue;
        }
        let mut changed = message.clone();
        changed.fields.shift_remove(field);
        if is_ignored(with(changed)) {
            return Ok(Some(MessagePart::Field(field)));
        }
    }
    Ok(None)
}

/// True if the template renders a list with one text part as it renders the text.
fn supports_parts(
    parts: &[Map<String, Value>],
    message: &ChatMessage,
    render_with: impl Fn(ChatMessage) -> Result<String, TextError>,
) -> bool {
    let text: String = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    let Value::Object(part) = json!({"type": "text", "text": text}) else { return false };
    let with = |content| render_with(ChatMessage { content: Some(content), ..message.clone() });
    matches!(
        (with(Content::Parts(vec![part])), with(Content::Text(text))),
        (Ok(parts), Ok(text)) if parts == text
    )
}
