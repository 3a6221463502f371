use rloom_core::{
    ChatMessage, PolicyId, PolicyVersion, PromptSource, SampleKey, StopReason, Task, Trajectory, VersionSpan,
};
use rloom_text::{RenderOptions, TextError, Tokenizer};

use crate::{Attempt, EnvError, Environment, Progress, Turn};

/// Plays a task's demonstration for a supervised stage: the environment responds as in a rollout, and the policy's turns
/// are those of the demonstration. `context` is the maximum number of tokens of the trajectory.
///
/// Turns are tokenised separately from their prefix, as in a rollout, and each ends with an end-of-text token. In a
/// conversation, the first turn is the assistant's message as the chat template renders it after the prompt; if the
/// template renders the prompt differently when a message follows, it is the message itself and the end-of-text token.
///
/// Turns after the end of the episode are not played. The trajectory was not sampled: its log-probabilities are 0, and it
/// has no policy versions.
pub async fn demonstrate(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    context: usize,
    key: SampleKey,
) -> Result<Trajectory, EnvError> {
    let Some(demonstration) = &task.demonstration else {
        return Err(EnvError::NoDemonstration { task: task.index });
    };
    let text_error = |source| EnvError::Text { task: task.index, source };
    let too_long =
        |prompt, completion| EnvError::DemonstrationTooLong { task: task.index, prompt, completion, context };
    let mut attempt = Attempt::start(environment, task, tokenizer, context, key).await?;
    for (n, text) in demonstration.turns().iter().enumerate() {
        let written = match &task.prompt {
            PromptSource::Messages(messages) if n == 0 => {
                turn_text(tokenizer, messages, text).map_err(text_error)?
            }
            _ => text.clone(),
        };
        let tokens = with_end_token(tokenizer.encode(&written, false).map_err(text_error)?, tokenizer)?;
        let (before, length) = (attempt.tokens().len(), tokens.len());
        if length > attempt.room() {
            return Err(too_long(before, length));
        }
        let progress = attempt.turn(unsampled(tokens)).await?;
        if attempt.is_out_of_room() {
            // The observation does not fit together with the first token of the next turn.
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

/// The text that the chat template appends to the prompt for the assistant's message `text`.
fn turn_text(tokenizer: &Tokenizer, messages: &[ChatMessage], text: &str) -> Result<String, TextError> {
    let template = tokenizer.require_chat_template()?;
    let before = template.render(messages, &RenderOptions::prompt())?;
    let answer = ChatMessage { role: "assistant".into(), content: text.to_owned() };
    let all: Vec<ChatMessage> = messages.iter().cloned().chain([answer]).collect();
    let after = template.render(&all, &RenderOptions::default())?;
    Ok(after.strip_prefix(&before).map_or_else(|| text.to_owned(), str::to_owned))
}

/// Ends a completion with an end-of-text token. Templates often write more text after it, which the policy would not
/// sample.
fn with_end_token(mut completion: Vec<u32>, tokenizer: &Tokenizer) -> Result<Vec<u32>, EnvError> {
    let ends = tokenizer.eos_ids();
    match completion.iter().rposition(|token| ends.contains(token)) {
        Some(last) => completion.truncate(last + 1),
        None => completion.push(tokenizer.eos_id().or(ends.first().copied()).ok_or(EnvError::NoEndToken)?),
    }
    Ok(completion)
}
