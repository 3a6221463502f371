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

/// One thing to do, with what is needed to judge the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Place in the dataset (row number, or index of the generator's sequence): the task's identity in a run.
    pub index: u64,
    /// What the policy sees.
    pub prompt: PromptSource,
    /// The reference answer, in the form that the dataset has it.
    pub answer: String,
    /// A worked completion for supervised stages, where the dataset has one.
    pub demonstration: Option<String>,
    /// What kind of task it is, for routing rewards and for quotas.
    pub domain: String,
}
