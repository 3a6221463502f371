use rloom_core::{Demonstration, Purpose, RandomKey, SampleKey, Task, Trajectory};
use rloom_text::{TextError, Tokenizer};

use crate::script::{self, ScriptedTurn};
use crate::{Attempt, EnvError, Environment, Progress, Turn};

/// Plays a task's demonstration for a supervised stage: the environment responds as in a rollout, and the policy's turns
/// are those of the demonstration. `context` is the maximum number of tokens of the trajectory.
///
/// Turns are tokenised separately from their prefix, as in a rollout, and each ends with an end-of-text token. In a
/// conversation, the first turn is the assistant's message as the chat template renders it after the prompt; if the
/// template renders the prompt differently when a message follows, it is the message itself and the end-of-text token.
///
/// Where a demonstration has the results of the calls in a turn, they take the place of what the tools would return: the
/// tokens are those of a rollout in which the tools return them, and no tool runs.
///
/// A demonstration without turns is played by the environment itself, if it can: its turns follow the rules without a
/// strategy.
///
/// Turns after the end of the episode are not played; in a demonstration that consists of messages they are an error. The
/// trajectory was not sampled: its log-probabilities are 0, and it has no policy versions.
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
    let turns = script::turns(tokenizer, &task.prompt, demonstration).map_err(text_error)?;
    let (suggests, total) = (turns.is_empty(), turns.len());
    let mut turns = turns.into_iter();
    let mut next_turn = |attempt: &mut Attempt| {
        if suggests { attempt.suggest().map(ScriptedTurn::from) } else { turns.next() }
    };
    let mut played = 0;
    while let Some(ScriptedTurn { text, results }) = next_turn(&mut attempt) {
        let tokens = turn_tokens(tokenizer, &text).map_err(text_error)?;
        let tokens = tokens.ok_or(EnvError::NoEndToken)?;
        let (before, length) = (attempt.tokens().len(), tokens.len());
        if length > attempt.room() {
            return Err(too_long(before, length));
        }
        let turn = Turn::unsampled(tokens);
        let progress = match results.as_slice() {
            [] => attempt.turn(turn).await?,
            results => attempt.turn_with_results(turn, results).await?.ok_or_else(|| EnvError::NoTools {
                task: task.index,
                environment: environment.name().to_owned(),
            })?,
        };
        played += 1;
        if attempt.is_out_of_room() {
            // The observation does not fit together with the first token of the next turn.
            return Err(too_long(before + length, 1));
        }
        if progress == Progress::Done {
            break;
        }
    }
    if matches!(demonstration, Demonstration::Conversation(_)) && played < total {
        return Err(EnvError::DemonstrationCut { task: task.index, played, turns: total });
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
    let text = script::first_turn(tokenizer, &task.prompt, demonstration)?;
    Ok(turn_tokens(tokenizer, &text)?.map_or(0, |tokens| tokens.len()))
}

/// Tokens of a turn, which ends with an end-of-text token; `None` if the tokenizer has no such token. Templates often write
/// more text after it, which the policy would not sample.
pub(crate) fn turn_tokens(tokenizer: &Tokenizer, text: &str) -> Result<Option<Vec<u32>>, TextError> {
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
