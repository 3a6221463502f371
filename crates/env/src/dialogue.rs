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

    /// True if the prompt is text.
    pub(crate) fn is_plain(&self) -> bool {
        self.messages.is_none()
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
        if self.is_plain() {
            return self.tokenizer.encode(observation, false);
        }
        self.observe_messages(turn, written, vec![ChatMessage::new("user", observation)])
    }

    /// Tokens of an observation that consists of messages. A plain prompt becomes no conversation.
    pub(crate) fn observe_messages(
        &mut self,
        turn: &Turn,
        written: &str,
        new: Vec<ChatMessage>,
    ) -> Result<Vec<u32>, TextError> {
        let messages = self.messages.get_or_insert_default();
        messages.push(ChatMessage::new("assistant", written));
        let end = match (turn.stop, turn.tokens.last()) {
            (StopReason::StopToken, Some(&token)) => self.tokenizer.decode(&[token], false)?,
            _ => String::new(),
        };
        let template = self.tokenizer.require_chat_template()?;
        let text = template.next_turn(messages, &new, &end, &RenderOptions::default())?;
        messages.extend(new);
        self.tokenizer.encode(&text, false)
    }
}
