use serde::{Deserialize, Serialize};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message.
    pub content: String,
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

/// A demonstration: the target of supervised training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Demonstration {
    /// A completion.
    Completion(String),
    /// The policy's turns in order. The observations between them come from the environment when it is replayed.
    Turns(Vec<String>),
}

impl Demonstration {
    /// The policy's turns in order; a completion is a single turn.
    pub fn turns(&self) -> &[String] {
        match self {
            Self::Completion(text) => std::slice::from_ref(text),
            Self::Turns(turns) => turns,
        }
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

/// A prompt with the data needed to judge a completion of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Position in the dataset (row number, or index in the generator's sequence). Identifies the task within a run.
    pub index: u64,
    /// The prompt.
    pub prompt: PromptSource,
    /// The reference answer, as the dataset has it.
    pub answer: String,
    /// The target of supervised stages, if the dataset has one.
    pub demonstration: Option<Demonstration>,
    /// Domain of the task, used for reward routing and quotas.
    pub domain: String,
}
