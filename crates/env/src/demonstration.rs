use rloom_core::{ChatMessage, PromptSource, Task};
use rloom_text::{RenderOptions, TextError, Tokenizer};

use crate::{EnvError, render_prompt};

/// A worked example as tokens, for supervised stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demonstration {
    /// The prompt, exactly as a rollout of the task would have it.
    pub prompt: Vec<u32>,
    /// What the policy is to write, up to and with the token that ends it.
    pub completion: Vec<u32>,
}

impl Demonstration {
    /// Renders a task's demonstration. `context` is the number of tokens that the policy can hold.
    ///
    /// Prompt and completion are tokenised apart, as they are when the policy writes the completion itself.
    /// In a conversation, the completion is what the chat template makes of the assistant's message after the
    /// prompt; where it renders the prompt differently once an answer follows, it is the message itself and
    /// the end-of-text token.
    pub fn render(task: &Task, tokenizer: &Tokenizer, context: usize) -> Result<Self, EnvError> {
        let Some(text) = &task.demonstration else {
            return Err(EnvError::NoDemonstration { task: task.index });
        };
        let broken = |source| EnvError::Text { task: task.index, source };
        let prompt = render_prompt(tokenizer, &task.prompt).map_err(broken)?;
        if prompt.is_empty() {
            return Err(EnvError::EmptyPrompt { task: task.index });
        }
        let written = match &task.prompt {
            PromptSource::Text(_) => text.clone(),
            PromptSource::Messages(messages) => turn_text(tokenizer, messages, text).map_err(broken)?,
        };
        let completion = ended(tokenizer.encode(&written, false).map_err(broken)?, tokenizer)?;
        if prompt.len() + completion.len() > context {
            return Err(EnvError::DemonstrationTooLong {
                task: task.index,
                prompt: prompt.len(),
                completion: completion.len(),
                context,
            });
        }
        Ok(Self { prompt, completion })
    }
}

/// What the chat template appends to the prompt when the assistant says `text`.
fn turn_text(tokenizer: &Tokenizer, messages: &[ChatMessage], text: &str) -> Result<String, TextError> {
    let template = tokenizer.require_chat_template()?;
    let before = template.render(messages, &RenderOptions::prompt())?;
    let answer = ChatMessage { role: "assistant".into(), content: text.to_owned() };
    let all: Vec<ChatMessage> = messages.iter().cloned().chain([answer]).collect();
    let after = template.render(&all, &RenderOptions::default())?;
    Ok(after.strip_prefix(&before).map_or_else(|| text.to_owned(), str::to_owned))
}

/// Ends a completion: templates often write more after the token that ends a turn, which the policy never
/// would.
fn ended(mut completion: Vec<u32>, tokenizer: &Tokenizer) -> Result<Vec<u32>, EnvError> {
    let ends = tokenizer.eos_ids();
    match completion.iter().rposition(|token| ends.contains(token)) {
        Some(last) => completion.truncate(last + 1),
        None => completion.push(tokenizer.eos_id().or(ends.first().copied()).ok_or(EnvError::NoEndToken)?),
    }
    Ok(completion)
}
