use serde::{Deserialize, Serialize};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// What a task shows the policy, before tokenisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptSource {
    /// Text that is tokenised as it stands.
    Text(String),
    /// Messages that the chat template renders.
    Messages(Vec<ChatMessage>),
}

/// What the policy is shown to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WorkedExample {
    /// A completion.
    Completion(String),
    /// The policy's turns in order. Between them stands what the environment answers, which it says itself.
    Turns(Vec<String>),
}

impl WorkedExample {
    /// The policy's turns in order; a completion is one.
    pub fn turns(&self) -> &[String] {
        match self {
            Self::Completion(text) => std::slice::from_ref(text),
            Self::Turns(turns) => turns,
        }
    }
}

impl From<String> for WorkedExample {
    fn from(completion: String) -> Self {
        Self::Completion(completion)
    }
}

impl From<&str> for WorkedExample {
    fn from(completion: &str) -> Self {
        Self::Completion(completion.to_owned())
    }
}

/// One thing to do, with what is needed to judge the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Place in the dataset (row number, or index of the generator's sequence): the task's identity in a run.
    pub index: u64,
    /// What the policy sees.
    pub prompt: PromptSource,
    /// The reference answer, in the form that the dataset has it.
    pub answer: String,
    /// A worked example for supervised stages, where the dataset has one.
    pub demonstration: Option<WorkedExample>,
    /// What kind of task it is, for routing rewards and for quotas.
    pub domain: String,
}
