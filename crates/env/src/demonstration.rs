use rloom_core::{
    ChatMessage, PolicyId, PolicyVersion, PromptSource, SampleKey, StopReason, Task, Trajectory, VersionSpan,
};
use rloom_text::{RenderOptions, TextError, Tokenizer};

use crate::{Attempt, EnvError, Environment, Progress, Turn};

/// Plays a task's worked example, for supervised stages: the environment says what it would say in a rollout, and the
/// policy's turns are those of the example. `context` is the number of tokens that the policy can hold.
///
/// Turns are tokenised apart from what stands before them, as they are when the policy writes them itself, and each
/// ends with the token that ends a turn. In a conversation, the first turn is what the chat template makes of the
/// assistant's message after the prompt; where it renders the prompt differently once an answer follows, it is the
/// message itself and the end-of-text token.
///
/// Turns that are left when the environment ends the episode are not played. Nobody sampled the trajectory: its
/// log-probabilities are 0, and it has no versions.
pub async fn demonstrate(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    context: usize,
    key: SampleKey,
) -> Result<Trajectory, EnvError> {
    let Some(example) = &task.demonstration else {
        return Err(EnvError::NoDemonstration { task: task.index });
    };
    let broken = |source| EnvError::Text { task: task.index, source };
    let too_long =
        |prompt, completion| EnvError::DemonstrationTooLong { task: task.index, prompt, completion, context };
    let mut attempt = Attempt::start(environment, task, tokenizer, context, key).await?;
    for (n, text) in example.turns().iter().enumerate() {
        let written = match &task.prompt {
            PromptSource::Messages(messages) if n == 0 => {
                turn_text(tokenizer, messages, text).map_err(broken)?
            }
            _ => text.clone(),
        };
        let tokens = ended(tokenizer.encode(&written, false).map_err(broken)?, tokenizer)?;
        let (before, length) = (attempt.tokens().len(), tokens.len());
        if length > attempt.room() {
            return Err(too_long(before, length));
        }
        let progress = attempt.turn(unsampled(tokens)).await?;
        if attempt.is_out_of_room() {
            // The observation does not fit, and at least one more token would have to follow it.
            return Err(too_long(before + length, 1));
        }
        if progress == Progress::Done {
            break;
        }
    }
    let mut trajectory = attempt.finish()?;
    trajectory.versions.clear();
    Ok(trajectory)
}

fn unsampled(tokens: Vec<u32>) -> Turn {
    Turn {
        logprobs: vec![0.0; tokens.len()],
        versions: vec![VersionSpan {
            policy: PolicyId::MAIN,
            version: PolicyVersion(0),
            range: 0..tokens.len(),
        }],
        tokens,
        temperature: 1.0,
        stop: StopReason::StopToken,
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
