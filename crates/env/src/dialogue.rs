use rloom_core::{ChatMessage, PromptSource, StopReason};
use rloom_text::{RenderOptions, TextError, Tokenizer};

use crate::Turn;

/// What was said so far, as far as it takes to say what comes next: observations follow a plain prompt as they stand,
/// and a conversation as messages of the user.
#[derive(Debug)]
pub(crate) struct Dialogue {
    tokenizer: Tokenizer,
    /// `None` for a plain prompt.
    messages: Option<Vec<ChatMessage>>,
}

impl Dialogue {
    /// Begins with a task's prompt.
    pub(crate) fn new(prompt: &PromptSource, tokenizer: &Tokenizer) -> Self {
        let messages = match prompt {
            PromptSource::Text(_) => None,
            PromptSource::Messages(messages) => Some(messages.clone()),
        };
        Self { tokenizer: tokenizer.clone(), messages }
    }

    /// What the policy wrote in a turn, without special tokens.
    pub(crate) fn read(&self, turn: &Turn) -> Result<String, TextError> {
        self.tokenizer.decode(&turn.tokens, true)
    }

    /// The tokens that follow a turn which reads `written`, when the environment answers `observation`.
    pub(crate) fn answer(
        &mut self,
        turn: &Turn,
        written: &str,
        observation: &str,
    ) -> Result<Vec<u32>, TextError> {
        let Some(messages) = &mut self.messages else {
            return self.tokenizer.encode(observation, false);
        };
        messages.push(ChatMessage { role: "assistant".into(), content: written.to_owned() });
        let new = ChatMessage { role: "user".into(), content: observation.to_owned() };
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
