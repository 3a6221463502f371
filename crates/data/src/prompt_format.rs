use rloom_core::{ChatMessage, PromptSource, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{DataError, DataSettingProblem};

/// Placeholder of the prompt in a template.
const PLACEHOLDER: &str = "{prompt}";

/// Format of the prompts, for every source of data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PromptFormat {
    /// System message. It turns plain prompts into conversations; conversations that have a system message keep theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Text around plain prompts, with the placeholder `{prompt}`. Not available for rows that are conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Turns plain prompts into user messages, which the chat template renders. Default: true if `system` is set, else
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat: Option<bool>,
    /// Variables of the chat template, such as `enable_thinking`. Lists `tools` and `documents` are those of every prompt.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub template_variables: Map<String, Value>,
}

impl PromptFormat {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), DataError> {
        if let Some(template) = &self.template
            && !template.contains(PLACEHOLDER)
        {
            return Err(DataSettingProblem::NoPlaceholder { template: template.clone() }.at("template"));
        }
        for (name, value) in &self.template_variables {
            let expected = match name.as_str() {
                "messages" | "add_generation_prompt" => {
                    "no `messages` or `add_generation_prompt`, which every rendering sets"
                }
                "tools" | "documents" if !value.is_array() => "lists as `tools` and `documents`",
                _ => continue,
            };
            let value = format!("{name} = {value}");
            return Err(DataSettingProblem::from(SettingProblem::Invalid { value, expected })
                .at("template_variables"));
        }
        if self.system.is_some() && self.chat == Some(false) {
            return Err(DataSettingProblem::SystemWithoutChat.at("chat"));
        }
        Ok(())
    }

    /// True if plain prompts become conversations.
    pub fn is_conversation(&self) -> bool {
        self.chat.unwrap_or(self.system.is_some())
    }

    /// Formats a plain prompt.
    pub fn plain(&self, prompt: String) -> PromptSource {
        let text = match &self.template {
            Some(template) => template.replace(PLACEHOLDER, &prompt),
            None => prompt,
        };
        if self.is_conversation() {
            let system = self.system.iter().map(|s| ChatMessage::new("system", s));
            PromptSource::Messages(system.chain([ChatMessage::new("user", text)]).collect())
        } else {
            PromptSource::Text(text)
        }
    }

    /// Formats a conversation.
    pub fn conversation(&self, mut messages: Vec<ChatMessage>) -> PromptSource {
        if let Some(system) = &self.system
            && messages.first().is_none_or(|m| m.role != "system")
        {
            messages.insert(0, ChatMessage::new("system", system));
        }
        PromptSource::Messages(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_prompts_become_conversations_by_chat_or_system() {
        let mut format = PromptFormat::default();
        assert_eq!(format.plain("2+2".into()), PromptSource::Text("2+2".into()));
        format.template = Some("Question: {prompt}\nAnswer:".into());
        assert_eq!(format.plain("2+2".into()), PromptSource::Text("Question: 2+2\nAnswer:".into()));
        format.chat = Some(true);
        assert_eq!(
            format.plain("2+2".into()),
            PromptSource::Messages(vec![ChatMessage::new("user", "Question: 2+2\nAnswer:")])
        );
        format.chat = None;
        format.system = Some("Be brief.".into());
        assert_eq!(
            format.plain("2+2".into()),
            PromptSource::Messages(vec![
                ChatMessage::new("system", "Be brief."),
                ChatMessage::new("user", "Question: 2+2\nAnswer:")
            ])
        );
    }

    #[test]
    fn conversations_keep_their_system_message() {
        let format = PromptFormat { system: Some("Be brief.".into()), ..PromptFormat::default() };
        let own = vec![ChatMessage::new("system", "Be long."), ChatMessage::new("user", "hi")];
        assert_eq!(format.conversation(own.clone()), PromptSource::Messages(own));
        assert_eq!(
            format.conversation(vec![ChatMessage::new("user", "hi")]),
            PromptSource::Messages(vec![
                ChatMessage::new("system", "Be brief."),
                ChatMessage::new("user", "hi")
            ])
        );
    }

    #[test]
    fn inconsistent_settings_are_refused() {
        let no_placeholder = PromptFormat { template: Some("Q:".into()), ..PromptFormat::default() };
        assert!(no_placeholder.validate().unwrap_err().to_string().contains("does not contain {prompt}"));
        let no_chat = PromptFormat { system: Some("s".into()), chat: Some(false), ..PromptFormat::default() };
        assert!(no_chat.validate().unwrap_err().to_string().starts_with("`chat`"));
        let with = |name: &str, value: serde_json::Value| {
            let template_variables = Map::from_iter([(name.to_owned(), value)]);
            PromptFormat { template_variables, ..PromptFormat::default() }
                .validate()
                .map_err(|e| e.to_string())
        };
        assert_eq!(with("enable_thinking", false.into()), Ok(()));
        assert_eq!(with("tools", serde_json::json!([{"name": "a"}])), Ok(()));
        assert!(with("tools", "a".into()).unwrap_err().contains("lists as `tools` and `documents`"));
        assert!(with("messages", serde_json::json!([])).unwrap_err().contains("which every rendering sets"));
    }
}
