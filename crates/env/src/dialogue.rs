use rloom_core::{ChatMessage, PromptSource, StopReason};
use rloom_text::{RenderOptions, TextError, Tokenizer};

use crate::Turn;

/// Renders observations: as plain text after a plain prompt, and as user messages in a conversation.
#[derive(Debug)]
pub(crate) struct Dialogue {
    tokenizer: Tokenizer,
    /// Messages so far; `None` for a plain prompt.
    messages: Option<Vec<ChatMessage>>,
}

impl Dialogue {
    /// Starts with a task's prompt.
    pub(crate) fn new(prompt: &PromptSource, tokenizer: &Tokenizer) -> Self {
        let messages = match prompt {
            PromptSource::Text(_) => None,
            PromptSource::Messages(messages) => Some(messages.clone()),
        };
        Self { tokenizer: tokenizer.clone(), messages }
    }

    /// Text of a turn, without special tokens.
    pub(crate) fn read(&self, turn: &Turn) -> Result<String, TextError> {
        self.tokenizer.decode(&turn.tokens, true)
    }

    /// Tokens of an observation that follows a turn with the text `written`.
    pub(crate) fn observe(
        &mut self,
        turn: &Turn,
        written: &str,
        observation: &str,
    ) -> Result<Vec<u32>, TextError> {
        let Some(messages) = &mut self.messages else {
            return self.tokenizer.encode(observation, false);
        };
        messages.push(ChatMessage::new("assistant", written));
        let new = ChatMessage::new("user", observation);
        let end = match (turn.stop, turn.tokens.last()) {
            (StopReason::StopToken, Some(&token)) => self.tokenizer.decode(&[token], false)?,
            _ => String::new(),
        };
        let template = self.tokenizer.require_chat_template()?;
        let text =
            template.next_turn(messages, std::slice::from_ref(&new), &end, &RenderOptions::default())?;
        messages.push(new);
        self.tokenizer.encode(&text, false)
    }
}
