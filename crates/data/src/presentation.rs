use rloom_core::{ChatMessage, PromptSource};
use serde::{Deserialize, Serialize};

use crate::DataError;

/// Where a template takes the prompt.
const PLACEHOLDER: &str = "{prompt}";

/// How a prompt is put before the policy. Every source of data has these settings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Presentation {
    /// A system message. It makes a conversation of a plain prompt; a row whose messages begin with a system
    /// message of their own keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Text around a plain prompt: `{prompt}` stands for it. Rows that are conversations already cannot have
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Whether a plain prompt becomes a user message that the chat template renders (`true` when `system` is
    /// set).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat: Option<bool>,
}

impl Presentation {
    /// Checks the settings against each other.
    pub fn validate(&self) -> Result<(), DataError> {
        if let Some(template) = &self.template
            && !template.contains(PLACEHOLDER)
        {
            return Err(DataError::Setting {
                key: "template",
                problem: format!("{template:?} does not contain {PLACEHOLDER}"),
            });
        }
        if self.system.is_some() && self.chat == Some(false) {
            return Err(DataError::Setting {
                key: "chat",
                problem: "a `system` message needs a conversation\nhint: leave `chat` or `system` out".into(),
            });
        }
        Ok(())
    }

    /// Presents a plain prompt.
    pub fn plain(&self, prompt: String) -> PromptSource {
        let text = match &self.template {
            Some(template) => template.replace(PLACEHOLDER, &prompt),
            None => prompt,
        };
        if self.chat.unwrap_or(self.system.is_some()) {
            let system = self.system.iter().map(|s| message("system", s.clone()));
            PromptSource::Messages(system.chain([message("user", text)]).collect())
        } else {
            PromptSource::Text(text)
        }
    }

    /// Presents a conversation.
    pub fn conversation(&self, mut messages: Vec<ChatMessage>) -> PromptSource {
        if let Some(system) = &self.system
            && messages.first().is_none_or(|m| m.role != "system")
        {
            messages.insert(0, message("system", system.clone()));
        }
        PromptSource::Messages(messages)
    }
}

fn message(role: &str, content: String) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_prompt_stays_text_until_something_makes_it_a_conversation() {
        let mut presentation = Presentation::default();
        assert_eq!(presentation.plain("2+2".into()), PromptSource::Text("2+2".into()));
        presentation.template = Some("Question: {prompt}\nAnswer:".into());
        assert_eq!(presentation.plain("2+2".into()), PromptSource::Text("Question: 2+2\nAnswer:".into()));
        presentation.chat = Some(true);
        assert_eq!(
            presentation.plain("2+2".into()),
            PromptSource::Messages(vec![message("user", "Question: 2+2\nAnswer:".into())])
        );
        presentation.chat = None;
        presentation.system = Some("Be brief.".into());
        assert_eq!(
            presentation.plain("2+2".into()),
            PromptSource::Messages(vec![
                message("system", "Be brief.".into()),
                message("user", "Question: 2+2\nAnswer:".into())
            ])
        );
    }

    #[test]
    fn a_conversation_keeps_its_own_system_message() {
        let presentation = Presentation { system: Some("Be brief.".into()), ..Presentation::default() };
        let own = vec![message("system", "Be long.".into()), message("user", "hi".into())];
        assert_eq!(presentation.conversation(own.clone()), PromptSource::Messages(own));
        assert_eq!(
            presentation.conversation(vec![message("user", "hi".into())]),
            PromptSource::Messages(vec![message("system", "Be brief.".into()), message("user", "hi".into())])
        );
    }

    #[test]
    fn contradictions_are_refused() {
        let no_placeholder = Presentation { template: Some("Q:".into()), ..Presentation::default() };
        assert!(no_placeholder.validate().unwrap_err().to_string().contains("does not contain {prompt}"));
        let no_chat = Presentation { system: Some("s".into()), chat: Some(false), ..Presentation::default() };
        assert!(no_chat.validate().unwrap_err().to_string().starts_with("`chat`"));
    }
}
