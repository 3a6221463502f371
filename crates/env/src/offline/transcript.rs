//! Conversations in which all messages of the assistant carry loss.

use std::ops::Range;

use rloom_core::{ChatMessage, Demonstration};
use rloom_text::{ChatTemplate, RenderOptions, Rendered, TextError, Tokenizer};

use super::pieces::Pieces;
use crate::demonstration::turn_tokens;

/// Role of the policy's messages.
const ASSISTANT: &str = "assistant";

/// The pieces of a conversation up to the last text of the assistant; `None` if the tokenizer has no end-of-text token.
///
/// Each text of the assistant is tokenised separately, as a turn of a rollout is. It is what the template marks with
/// `{% generation %}`. Under a template without such blocks it is what the template adds for the message, up to its
/// end-of-text token.
pub(super) fn pieces(
    tokenizer: &Tokenizer,
    prompt: &[ChatMessage],
    demonstration: &Demonstration,
) -> Result<Option<Pieces>, TextError> {
    let messages = conversation(prompt, demonstration);
    let template = tokenizer.require_chat_template()?;
    let rendered = template.render_marked(&messages, &RenderOptions::default())?;
    let (ranges, are_marked) = match merged(&rendered.assistant) {
        marked if marked.is_empty() => (turns(tokenizer, template, &messages, &rendered)?, false),
        marked => (marked, true),
    };
    let (mut pieces, mut end) = (Pieces::default(), 0);
    for (number, range) in (1..).zip(&ranges) {
        pieces.push_given(tokenizer.encode(&rendered.text[end..range.start], false)?);
        let turn = &rendered.text[range.clone()];
        let tokens = if are_marked || number < ranges.len() {
            tokenizer.encode(turn, false)?
        } else {
            match turn_tokens(tokenizer, turn)? {
                Some(tokens) => tokens,
                None => return Ok(None),
            }
        };
        pieces.push_learned(tokens);
        end = range.end;
    }
    Ok(Some(pieces))
}

fn conversation(prompt: &[ChatMessage], demonstration: &Demonstration) -> Vec<ChatMessage> {
    let mut messages = prompt.to_vec();
    match demonstration {
        Demonstration::Message(message) => messages.push(ChatMessage::clone(message)),
        Demonstration::Conversation(turns) => messages.extend_from_slice(turns),
        texts => messages.extend(texts.turns().iter().map(|text| ChatMessage::new(ASSISTANT, text))),
    }
    messages
}

/// The marked ranges that have text, adjacent ones as one.
fn merged(marked: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in marked.iter().filter(|range| !range.is_empty()) {
        match merged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => merged.push(range.clone()),
        }
    }
    merged
}

/// What the template adds for each message of the assistant, up to the end of its turn.
fn turns(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[ChatMessage],
    whole: &Rendered,
) -> Result<Vec<Range<usize>>, TextError> {
    let written = |id: &u32| tokenizer.decode(&[*id], false).ok();
    let ends: Vec<String> =
        tokenizer.eos_ids().iter().filter_map(written).filter(|end| !end.is_empty()).collect();
    let mut turns = Vec::new();
    for (index, _) in messages.iter().enumerate().filter(|(_, message)| message.role == ASSISTANT) {
        let before = match index {
            0 => String::new(),
            _ => template.render(&messages[..index], &RenderOptions::prompt())?,
        };
        let after = template.render(&messages[..=index], &RenderOptions::default())?;
        for part in [&before, &after] {
            if !whole.text.starts_with(part.as_str()) || before.len() > after.len() {
                let position = part.bytes().zip(whole.text.bytes()).take_while(|(a, b)| a == b).count();
                return Err(TextError::TurnsNotSeparable { message: index + 1, position });
            }
        }
        let range = before.len()..after.len();
        turns.push(range.start..end_of_turn(&whole.text, range, &ends));
    }
    Ok(turns)
}

/// End of a turn: after its last end-of-text token, or after the one that the template writes with what follows.
fn end_of_turn(text: &str, turn: Range<usize>, ends: &[String]) -> usize {
    let inside = ends.iter().filter_map(|end| Some(text[turn.clone()].rfind(end)? + turn.start + end.len()));
    let after = || ends.iter().find(|end| text[turn.end..].starts_with(*end)).map(|end| turn.end + end.len());
    inside.max().or_else(after).unwrap_or(turn.end)
}
