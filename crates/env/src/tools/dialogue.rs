use std::sync::Arc;

use rloom_core::{ChatMessage, PromptSource, StopReason};
use rloom_text::calls::{CallFormat, Parsed, ToolDeclaration, call_message};
use rloom_text::{RenderOptions, TextError, Tokenizer};
use serde_json::Value;

use crate::Turn;

/// Result of an attempt to call a tool.
#[derive(Debug)]
pub(super) struct CallResult {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) text: String,
}

/// The tokens of an episode with tools: reads turns, renders results.
#[derive(Debug)]
pub(super) struct ToolDialogue {
    tokenizer: Tokenizer,
    format: CallFormat,
    declared: Arc<[Value]>,
    /// Texts of the tokens that end a turn.
    ends: Vec<String>,
    /// Messages so far; `None` for a plain prompt. What the policy wrote and what tools answered is left out: only the text
    /// that follows is rendered.
    messages: Option<Vec<ChatMessage>>,
}

/// True if a text ends inside of the policy's reasoning.
pub(super) fn opens_reasoning(text: &str) -> bool {
    text.trim_end().ends_with("<think>")
}

impl ToolDialogue {
    pub(super) fn new(
        prompt: &PromptSource,
        tokenizer: &Tokenizer,
        format: CallFormat,
        declared: Arc<[Value]>,
    ) -> Self {
        let messages = match prompt {
            PromptSource::Text(_) => None,
            PromptSource::Messages(messages) => Some(messages.clone()),
        };
        let text = |id: &u32| tokenizer.decode(&[*id], false).ok();
        let ends = tokenizer.eos_ids().iter().filter_map(text).filter(|text| !text.is_empty()).collect();
        Self { tokenizer: tokenizer.clone(), format, declared, ends, messages }
    }

    /// Reads a turn.
    pub(super) fn read(
        &self,
        turn: &Turn,
        reasons: bool,
        tools: &[ToolDeclaration],
    ) -> Result<Parsed, TextError> {
        let mut tokens = turn.tokens.as_slice();
        // In Harmony the stop token ends the call.
        if turn.stop == StopReason::StopToken && self.format != CallFormat::Harmony {
            tokens = tokens.split_last().map_or(tokens, |(_, rest)| rest);
        }
        Ok(self.format.parse(&self.format.written(&self.tokenizer, tokens)?, reasons, tools))
    }

    /// A result without special tokens. Its end is cut off after a number of bytes or tokens, and replaced by the length of
    /// what is missing.
    pub(super) fn limited(&self, result: &str, bytes: u64, tokens: u64) -> Result<String, TextError> {
        let limit = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        let end = result.floor_char_boundary(limit(bytes));
        let text = self.tokenizer.defused(&result[..end]);
        let kept = self.tokenizer.prefix_within(&text, limit(tokens))?;
        let missing = result.len() - end + text.len() - kept;
        if missing == 0 {
            return Ok(text);
        }
        Ok(format!("{}[truncated {missing} bytes]", &text[..kept]))
    }

    /// Format of the calls.
    pub(super) fn format(&self) -> CallFormat {
        self.format
    }

    /// Identifier of an attempt.
    pub(super) fn call_id(&self, call: &rloom_text::calls::CallAttempt, number: usize) -> String {
        self.format.call_id(call, number)
    }

    /// True if an observation ends inside of the policy's reasoning.
    pub(super) fn ends_in_reasoning(&self, observation: &[u32]) -> Result<bool, TextError> {
        Ok(opens_reasoning(&self.tokenizer.decode(observation, false)?))
    }

    /// Tokens of the results of a turn and of the header of the next one, and whether they end inside of reasoning.
    pub(super) fn observe(
        &mut self,
        turn: &Turn,
        results: &[CallResult],
    ) -> Result<(Vec<u32>, bool), TextError> {
        let texts: Vec<String> = results.iter().map(|result| self.tokenizer.defused(&result.text)).collect();
        let text = match &self.messages {
            None => self.format.plain_results(texts.iter().map(String::as_str)),
            Some(history) => {
                let new: Vec<ChatMessage> =
                    results.iter().zip(texts).map(|(result, text)| result_message(result, text)).collect();
                let end = match (turn.stop, turn.tokens.last()) {
                    (StopReason::StopToken, Some(&token)) => self.tokenizer.decode(&[token], false)?,
                    _ => String::new(),
                };
                let options = RenderOptions { tools: Some(&self.declared), ..RenderOptions::default() };
                let call = results.first().map(|first| (first.name.as_str(), first.id.as_str()));
                let template = self.tokenizer.require_chat_template()?;
                template.after_turn(history, call, &new, &end, &self.ends, &options)?
            }
        };
        self.remember(results);
        Ok((self.tokenizer.encode(&text, false)?, opens_reasoning(&text)))
    }

    /// Notes a turn and its results, without their texts.
    fn remember(&mut self, results: &[CallResult]) {
        let Some(messages) = &mut self.messages else { return };
        if let Some(first) = results.first() {
            messages.push(call_message(&first.name, &first.id, ""));
        }
        messages.extend(results.iter().map(|result| result_message(result, String::new())));
    }
}

fn result_message(result: &CallResult, text: String) -> ChatMessage {
    let mut message = ChatMessage::new("tool", text);
    message.fields.insert("name".to_owned(), Value::String(result.name.clone()));
    message.fields.insert("tool_call_id".to_owned(), Value::String(result.id.clone()));
    message
}
