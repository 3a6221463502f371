//! The turns of a demonstration as texts.

use rloom_core::{ChatMessage, Demonstration, PromptSource};
use rloom_text::{RenderOptions, TextError, Tokenizer};
use serde_json::Value;

/// A turn of a demonstration.
#[derive(Debug)]
pub(crate) struct ScriptedTurn {
    /// What the policy writes.
    pub(crate) text: String,
    /// Results of the calls in the turn, in their order; empty if the environment responds.
    pub(crate) results: Vec<ChatMessage>,
}

impl From<String> for ScriptedTurn {
    fn from(text: String) -> Self {
        Self { text, results: Vec::new() }
    }
}

/// The turns of a demonstration; none if the environment is to suggest them.
pub(crate) fn turns(
    tokenizer: &Tokenizer,
    prompt: &PromptSource,
    demonstration: &Demonstration,
) -> Result<Vec<ScriptedTurn>, TextError> {
    match (prompt, demonstration) {
        (_, Demonstration::Turns(turns)) if turns.is_empty() => Ok(Vec::new()),
        (PromptSource::Messages(prompt), Demonstration::Conversation(messages)) => {
            conversation(tokenizer, prompt, messages)
        }
        _ => {
            let first = first_turn(tokenizer, prompt, demonstration)?;
            let others = demonstration.turns().iter().skip(1).cloned();
            Ok([first].into_iter().chain(others).map(ScriptedTurn::from).collect())
        }
    }
}

/// The turns of messages of the assistant with the results that follow them.
fn conversation(
    tokenizer: &Tokenizer,
    prompt: &[ChatMessage],
    messages: &[ChatMessage],
) -> Result<Vec<ScriptedTurn>, TextError> {
    let mut turns = Vec::new();
    let mut before = prompt.to_vec();
    for part in messages.chunk_by(|_, next| next.role != "assistant") {
        let [message, results @ ..] = part else { continue };
        let mut text = rendered_turn(tokenizer, &before, message)?
            .map_err(|position| TextError::NotPrefixPreserving { position })?;
        text.extend(end_of_call(tokenizer, &text, &before, message, results)?);
        turns.push(ScriptedTurn { text, results: in_call_order(message, results) });
        before.extend_from_slice(part);
    }
    Ok(turns)
}

/// The token that ends a turn with calls, where the template writes it with the results that follow (as GLM's does).
fn end_of_call(
    tokenizer: &Tokenizer,
    text: &str,
    before: &[ChatMessage],
    message: &ChatMessage,
    results: &[ChatMessage],
) -> Result<Option<String>, TextError> {
    // Where tools run, any result shows it.
    let followers = if results.is_empty() { vec![empty_result(message)] } else { results.to_vec() };
    let written = |id: &u32| tokenizer.decode(&[*id], false).ok();
    let ends: Vec<String> =
        tokenizer.eos_ids().iter().filter_map(written).filter(|end| !end.is_empty()).collect();
    if !message.fields.contains_key("tool_calls") || ends.iter().any(|end| text.contains(end)) {
        return Ok(None);
    }
    let template = tokenizer.require_chat_template()?;
    let render = |followers: &[ChatMessage]| {
        let messages: Vec<ChatMessage> = before.iter().chain([message]).chain(followers).cloned().collect();
        template.render(&messages, &RenderOptions::default())
    };
    let (turn, whole) = (render(&[])?, render(&followers)?);
    let rest = whole.strip_prefix(&turn).unwrap_or_default();
    Ok(ends.into_iter().find(|end| rest.starts_with(end)))
}

/// A result of the first call of a message.
fn empty_result(message: &ChatMessage) -> ChatMessage {
    let mut result = ChatMessage::new("tool", "");
    if let Some(call) = message.fields.get("tool_calls").and_then(|calls| calls.get(0)) {
        let name = call.get("function").and_then(|function| function.get("name"));
        for (field, value) in [("tool_call_id", call.get("id")), ("name", name)] {
            result.fields.extend(value.map(|value| (field.to_owned(), value.clone())));
        }
    }
    result
}

/// The results in the order of the calls, if identifiers tell it; otherwise as they are.
fn in_call_order(message: &ChatMessage, results: &[ChatMessage]) -> Vec<ChatMessage> {
    let calls = message.fields.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let place = |result: &ChatMessage| {
        let id = result.fields.get("tool_call_id")?;
        calls.iter().position(|call| call.get("id") == Some(id))
    };
    let mut results = results.to_vec();
    if results.iter().all(|result| place(result).is_some()) {
        results.sort_by_key(place);
    }
    results
}

/// Text of the first turn of a demonstration.
pub(crate) fn first_turn(
    tokenizer: &Tokenizer,
    prompt: &PromptSource,
    demonstration: &Demonstration,
) -> Result<String, TextError> {
    let text = match (prompt, demonstration, first_message(demonstration)) {
        (PromptSource::Messages(messages), _, Some(message)) => {
            return rendered_turn(tokenizer, messages, message)?
                .map_err(|position| TextError::NotPrefixPreserving { position });
        }
        (_, demonstration, _) => demonstration.turns().first().cloned().unwrap_or_default(),
    };
    match prompt {
        PromptSource::Messages(messages) => {
            let answer = ChatMessage::new("assistant", &text);
            Ok(rendered_turn(tokenizer, messages, &answer)?.unwrap_or(text))
        }
        PromptSource::Text(_) => Ok(text),
    }
}

/// The first message of a demonstration that consists of messages.
fn first_message(demonstration: &Demonstration) -> Option<&ChatMessage> {
    match demonstration {
        Demonstration::Message(message) => Some(message),
        Demonstration::Conversation(messages) => messages.first(),
        _ => None,
    }
}

/// The text that the chat template appends to the prompt for the assistant's message `answer`. An error contains the
/// position at which the template renders the prompt differently when the message follows.
fn rendered_turn(
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    answer: &ChatMessage,
) -> Result<Result<String, usize>, TextError> {
    let template = tokenizer.require_chat_template()?;
    let before = template.render(messages, &RenderOptions::prompt())?;
    let all: Vec<ChatMessage> = messages.iter().chain([answer]).cloned().collect();
    let after = template.render(&all, &RenderOptions::default())?;
    Ok(match after.strip_prefix(&before) {
        Some(turn) => Ok(turn.to_owned()),
        None => Err(before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count()),
    })
}
