use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{LabelledCompletion, LabelledSteps, Preference};

/// One message of a conversation, as the chat template receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool` or another role that the template renders.
    pub role: String,
    /// Content; `None` for a message without one, such as a call of a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Other fields of the message, such as `tool_calls`, `name` and `reasoning_content`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl ChatMessage {
    /// A message that consists of text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(text.into())), fields: Map::new() }
    }

    /// The text of a message that has no other content and no further fields.
    pub fn plain_text(&self) -> Option<&str> {
        match &self.content {
            Some(Content::Text(text)) if self.fields.is_empty() => Some(text),
            _ => None,
        }
    }
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Parts: objects with a `type`, such as `{"type": "text", "text": "…"}`.
    Parts(Vec<Map<String, Value>>),
}

/// The prompt of a task, before tokenisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptSource {
    /// Text, tokenised as is.
    Text(String),
    /// Messages, rendered by the chat template.
    Messages(Vec<ChatMessage>),
}

/// A demonstration: the target of supervised training, and what the other offline methods learn from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Demonstration {
    /// A completion.
    Completion(String),
    /// The policy's turns in order. The observations between them come from the environment when it is replayed.
    Turns(Vec<String>),
    /// The assistant's message in a conversation, for messages that are more than text: with tool calls, reasoning or
    /// content parts. The chat template renders it.
    Message(Box<ChatMessage>),
    /// The assistant's messages in a conversation. A message that calls tools can be followed by their results, as messages
    /// with the role `tool`; without them the tools of the environment run. The first message is the assistant's.
    Conversation(Vec<ChatMessage>),
    /// Two completions, of which one is preferred.
    Preference(Box<Preference>),
    /// A completion with a label.
    Labelled(Box<LabelledCompletion>),
    /// A completion in steps, each with a label.
    Steps(LabelledSteps),
}

impl Demonstration {
    /// The texts of the policy's turns in order; a completion is a single turn. Empty for messages that the chat template
    /// renders, and for demonstrations that contain others.
    pub fn turns(&self) -> &[String] {
        match self {
            Self::Completion(text) => std::slice::from_ref(text),
            Self::Turns(turns) => turns,
            Self::Message(_)
            | Self::Conversation(_)
            | Self::Preference(_)
            | Self::Labelled(_)
            | Self::Steps(_) => &[],
        }
    }

    /// The completions: both of a preference, the one with a label, or the demonstration itself.
    pub fn completions(&self) -> Vec<&Self> {
        match self {
            Self::Preference(pair) => vec![&pair.chosen, &pair.rejected],
            Self::Labelled(labelled) => vec![&labelled.completion],
            other => vec![other],
        }
    }
}

impl Demonstration {
    /// The completions of a preference as labelled ones: the chosen one is desirable, the other is not. `None` for others.
    pub fn unpaired(&self) -> Option<[Self; 2]> {
        let Self::Preference(pair) = self else { return None };
        Some([(&pair.chosen, true), (&pair.rejected, false)].map(|(completion, label)| {
            Self::Labelled(Box::new(LabelledCompletion { completion: completion.clone(), label }))
        }))
    }
}

impl From<String> for Demonstration {
    fn from(completion: String) -> Self {
        Self::Completion(completion)
    }
}

impl From<&str> for Demonstration {
    fn from(completion: &str) -> Self {
        Self::Completion(completion.to_owned())
    }
}

/// Place of a group's task in the order of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// Index of the domain with a quota whose tasks it is drawn from; 0 without quotas, where all tasks have one order.
    pub domain: u32,
    /// Number of tasks drawn there before.
    pub position: u64,
}

/// A prompt with the data needed to judge a completion of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Position in the dataset (row number, or index in the generator's sequence). Identifies the task within a run.
    pub index: u64,
    /// The prompt.
    pub prompt: PromptSource,
    /// The reference answer, as the dataset has it; empty if it has none.
    pub answer: String,
    /// The target of supervised stages, if the dataset has one.
    pub demonstration: Option<Demonstration>,
    /// Domain of the task, used for reward routing and quotas.
    pub domain: String,
    /// The other fields of the dataset's row, for rewards and environments. Shared by all clones of the task. Not stored
    /// with rollouts or in the journal: [`index`](Self::index) identifies the row.
    #[serde(skip)]
    pub extra: Arc<Map<String, Value>>,
}

impl Task {
    /// The same task with another demonstration.
    #[must_use]
    pub fn with_demonstration(&self, demonstration: &Demonstration) -> Self {
        let Self { index, prompt, answer, domain, extra, .. } = self;
        Self {
            index: *index,
            prompt: prompt.clone(),
            answer: answer.clone(),
            demonstration: Some(demonstration.clone()),
            domain: domain.clone(),
            extra: Arc::clone(extra),
        }
    }
}
