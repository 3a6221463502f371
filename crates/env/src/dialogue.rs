use rloom_core::{ChatMessage, EarlierReasoning, PromptSource, StopReason};
use rloom_text::{ChatTemplate, RenderOptions, TextError, Tokenizer};

use crate::{NewSegment, Next, Observation, Turn};

/// Renders observations: as plain text after a plain prompt, and as user messages in a conversation.
#[derive(Debug)]
pub(crate) struct Dialogue {
    tokenizer: Tokenizer,
    earlier_reasoning: EarlierReasoning,
    /// Messages so far; `None` for a plain prompt.
    messages: Option<Vec<ChatMessage>>,
}

impl Dialogue {
    /// Starts with a task's prompt.
    pub(crate) fn new(
        prompt: &PromptSource,
        tokenizer: &Tokenizer,
        earlier_reasoning: EarlierReasoning,
    ) -> Self {
        let messages = match prompt {
            PromptSource::Text(_) => None,
            PromptSource::Messages(messages) => Some(messages.clone()),
        };
        Self { tokenizer: tokenizer.clone(), earlier_reasoning, messages }
    }

    /// True if the prompt is text.
    pub(crate) fn is_plain(&self) -> bool {
        self.messages.is_none()
    }

    /// Text of a turn, without special tokens.
    pub(crate) fn read(&self, turn: &Turn) -> Result<String, TextError> {
        self.tokenizer.decode(&turn.tokens, true)
    }

    /// What follows a turn with the text `written`: an observation, before which `state` is the key.
    pub(crate) fn observe(
        &mut self,
        turn: &Turn,
        written: &str,
        observation: &str,
        state: Option<String>,
    ) -> Result<Next, TextError> {
        if self.is_plain() {
            let tokens = self.tokenizer.encode(observation, false)?;
            return Ok(Next::Observation(Observation { tokens, state }));
        }
        self.observe_messages(turn, written, vec![ChatMessage::new("user", observation)], state)
    }

    /// What follows a turn if the observation consists of messages. A plain prompt becomes no conversation.
    pub(crate) fn observe_messages(
        &mut self,
        turn: &Turn,
        written: &str,
        new: Vec<ChatMessage>,
        state: Option<String>,
    ) -> Result<Next, TextError> {
        let end = match (turn.stop, turn.tokens.last()) {
            (StopReason::StopToken, Some(&token)) => self.tokenizer.decode(&[token], false)?,
            _ => String::new(),
        };
        let template = self.tokenizer.require_chat_template()?;
        let before = self.messages.get_or_insert_default();
        let mut history = before.clone();
        history.push(ChatMessage::new("assistant", written));
        let appended = template.next_turn(&history, &new, &end, &RenderOptions::default());
        let is_dropped = matches!(appended, Err(TextError::NotPrefixPreserving { .. }))
            && drops_reasoning(template, &history);
        let text = if is_dropped { self.after_turn(&new, &end)? } else { appended? };
        history.extend(new);
        let tokens = self.tokenizer.encode(&text, false)?;
        let next = if is_dropped && self.earlier_reasoning == EarlierReasoning::NewSegment {
            let prompt = template.render(&history, &RenderOptions::prompt())?;
            let prompt = self.tokenizer.encode(&prompt, false)?;
            let observed = if prompt.ends_with(&tokens) { tokens.len() } else { 0 };
            Next::NewSegment(NewSegment { prompt, observed, attachments: Vec::new(), state })
        } else {
            Next::Observation(Observation { tokens, state })
        };
        self.messages = Some(history);
        Ok(next)
    }

    /// The text after a turn, whatever the template makes of the turn itself.
    fn after_turn(&self, new: &[ChatMessage], end: &str) -> Result<String, TextError> {
        let text = |&id: &u32| self.tokenizer.decode(&[id], false);
        let ends = self.tokenizer.eos_ids().iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let messages = self.messages.as_deref().unwrap_or_default();
        let template = self.tokenizer.require_chat_template()?;
        template.after_turn(messages, None, new, end, &ends, &RenderOptions::default())
    }
}

/// End of the reasoning in a turn.
const REASONED: &str = "</think>";

/// The part of a turn that is meant for others: the text after its reasoning.
pub(crate) fn after_reasoning(written: &str) -> &str {
    written.rsplit_once(REASONED).map_or(written, |(_, rest)| rest)
}

/// True if reasoning is what the template renders otherwise in earlier turns, as far as one can tell.
fn drops_reasoning(template: &ChatTemplate, messages: &[ChatMessage]) -> bool {
    template.mentions(REASONED)
        || messages.iter().filter_map(ChatMessage::plain_text).any(|text| text.contains(REASONED))
}
