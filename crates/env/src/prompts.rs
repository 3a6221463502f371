//! Prompts that are made of a task's prompt.

use rloom_core::{ChatMessage, PromptSource};

/// The prompt of a task with `position` in the place of `start`, its own position; `None` if it does not contain that.
pub(crate) fn with_position(prompt: &PromptSource, start: &str, position: &str) -> Option<PromptSource> {
    let mut is_found = false;
    let (prompt, _) = with_text(prompt, |text| match text.rsplit_once(start) {
        Some((before, after)) => {
            is_found = true;
            format!("{before}{position}{after}")
        }
        None => text.to_owned(),
    });
    is_found.then_some(prompt)
}

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
