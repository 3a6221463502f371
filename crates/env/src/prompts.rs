//! Prompts that are made of a task's prompt.

use rloom_core::{ChatMessage, PromptSource};

/// A prompt with another text: that of the last message of the user in a conversation. Also returns the text before.
pub(crate) fn with_text(prompt: &PromptSource, text: impl FnOnce(&str) -> String) -> (PromptSource, String) {
    match prompt {
        PromptSource::Text(before) => (PromptSource::Text(text(before)), before.clone()),
        PromptSource::Messages(messages) => {
            let mut messages = messages.clone();
            let last = messages.iter().rposition(|m| m.role == "user" && m.plain_text().is_some());
            let before = last.and_then(|last| messages[last].plain_text()).unwrap_or_default().to_owned();
            let message = ChatMessage::new("user", text(&before));
            match last {
                Some(last) => messages[last] = message,
                None => messages.push(message),
            }
            (PromptSource::Messages(messages), before)
        }
    }
}
