use rloom_core::{ChatMessage, Demonstration, PromptSource, Purpose, RandomKey, SampleKey, Task, Trajectory};
use rloom_text::{RenderOptions, TextError, Tokenizer};

use crate::{Attempt, EnvError, Environment, Progress, Turn};

/// Plays a task's demonstration for a supervised stage: the environment responds as in a rollout, and the policy's turns
/// are those of the demonstration. `context` is the maximum number of tokens of the trajectory.
///
/// Turns are tokenised separately from their prefix, as in a rollout, and each ends with an end-of-text token. In a
/// conversation, the first turn is the assistant's message as the chat template renders it after the prompt; if the
/// template renders the prompt differently when a message follows, it is the message itself and the end-of-text token.
///
/// A demonstration without turns is played by the environment itself, if it can: its turns follow the rules without a
/// strategy.
///
/// Turns after the end of the episode are not played. The trajectory was not sampled: its log-probabilities are 0, and it
/// has no policy versions.
pub async fn demonstrate(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    context: usize,
    key: SampleKey,
) -> Result<Vec<Trajectory>, EnvError> {
    let Some(demonstration) = &task.demonstration else {
        return Err(EnvError::NoDemonstration { task: task.index });
    };
    let text_error = |source| EnvError::Text { task: task.index, source };
    let too_long =
        |prompt, completion| EnvError::DemonstrationTooLong { task: task.index, prompt, completion, context };
    let random = RandomKey::for_sample(0, 0, Purpose::Generator, key);
    let mut attempt = Attempt::start(environment, task, tokenizer, context, random).await?;
    let mut written = demonstration.turns().iter().skip(1).cloned();
    let mut next = match demonstration {
        Demonstration::Turns(turns) if turns.is_empty() => attempt.suggest(),
        _ => Some(first_turn(tokenizer, &task.prompt, demonstration).map_err(text_error)?),
    };
    while let Some(turn) = next {
        let tokens = turn_tokens(tokenizer, &turn).map_err(text_error)?;
        let tokens = tokens.ok_or(EnvError::NoEndToken)?;
        let (before, length) = (attempt.tokens().len(), tokens.len());
        if length > attempt.room() {
            return Err(too_long(before, length));
        }
        let progress = attempt.turn(Turn::unsampled(tokens)).await?;
        if attempt.is_out_of_room() {
            // The observation does not fit together with the first token of the next turn.
            return Err(too_long(before + length, 1));
        }
        if progress == Progress::Done {
            break;
        }
        next = match demonstration {
            Demonstration::Turns(turns) if turns.is_empty() => attempt.suggest(),
            _ => written.next(),
        };
    }
    let mut segments = attempt.finish()?;
    for segment in &mut segments {
        segment.versions.clear();
    }
    Ok(segments)
}

/// Number of tokens of the first turn of a task's demonstration, as [`demonstrate`] writes it; 0 without a demonstration.
pub fn demonstration_length(tokenizer: &Tokenizer, task: &Task) -> Result<usize, TextError> {
    let Some(demonstration) = &task.demonstration else { return Ok(0) };
    let text = first_turn(tokenizer, &task.prompt, demonstration)?;
    Ok(turn_tokens(tokenizer, &text)?.map_or(0, |tokens| tokens.len()))
}

/// Text of the first turn of a demonstration.
fn first_turn(
    tokenizer: &Tokenizer,
    prompt: &PromptSource,
    demonstration: &Demonstration,
) -> Result<String, TextError> {
    let text = match (prompt, demonstration) {
        (PromptSource::Messages(messages), Demonstration::Message(message)) => {
            return rendered_turn(tokenizer, messages, message)?
                .map_err(|position| TextError::NotPrefixPreserving { position });
        }
        (_, demonstration) => demonstration.turns().first().cloned().unwrap_or_default(),
    };
    match prompt {
        PromptSource::Messages(messages) => {
            let answer = ChatMessage::new("assistant", &text);
            Ok(rendered_turn(tokenizer, messages, &answer)?.unwrap_or(text))
        }
        PromptSource::Text(_) => Ok(text),
    }
}

/// The text that the chat template appends to the prompt for the assistant's message `answer`. An error contains the
/// position at which the template renders the prompt differently when the message follows.
fn rendered_turn(
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    answer: &ChatMessage,
) -> Result<Result<String, usize>, TextError> {
    let template = tokenizer.require_chat_template()?;
    let before = template.render(messages, &RenderOptions::prompt())?;
    let all: Vec<ChatMessage> = messages.iter().chain([answer]).cloned().collect();
    let after = template.render(&all, &RenderOptions::default())?;
    Ok(match after.strip_prefix(&before) {
        Some(turn) => Ok(turn.to_owned()),
        None => Err(before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count()),
    })
}

/// Tokens of a turn, which ends with an end-of-text token; `None` if the tokenizer has no such token. Templates often write
/// more text after it, which the policy would not sample.
fn turn_tokens(tokenizer: &Tokenizer, text: &str) -> Result<Option<Vec<u32>>, TextError> {
    let mut tokens = tokenizer.encode(text, false)?;
    let ends = tokenizer.eos_ids();
    match tokens.iter().rposition(|token| ends.contains(token)) {
        Some(last) => tokens.truncate(last + 1),
        None => match tokenizer.eos_id().or(ends.first().copied()) {
            Some(end) => tokens.push(end),
            None => return Ok(None),
        },
    }
    Ok(Some(tokens))
}
