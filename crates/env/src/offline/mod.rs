//! Rows of stages that learn from data, as the trajectories that a rollout would give.

mod cut;
mod pieces;
mod steps;
mod transcript;

use rloom_core::{Demonstration, LossOn, PromptSource, SampleKey, Task, Ticket, Trajectory};
use rloom_data::RowRules;
use rloom_text::{TextError, Tokenizer};

use crate::demonstration::demonstration_length;
use crate::{EnvError, Environment, demonstrate, render_prompt};

/// A context that any row fits into. Rows are cut once they are complete.
const UNLIMITED: usize = usize::MAX / 4;

/// The episodes of a task in a stage that learns from rows, each with its segments: both completions of a preference, the
/// chosen one first, or the only one. `context` is the context length of the policy in tokens.
///
/// Completions are tokenised as [`demonstrate`] does. With [`LossOn::Assistant`] the chat template renders the whole
/// conversation, and the environment takes no part; each message of the assistant is tokenised as a turn of a rollout. Of
/// labelled steps, each ends a policy span, whose step reward is the label.
///
/// Rows with more tokens than fit are cut if the rules say so, and an error otherwise.
pub async fn read_row(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    rules: RowRules,
    context: usize,
    ticket: Ticket,
) -> Result<Vec<Vec<Trajectory>>, EnvError> {
    let Some(demonstration) = &task.demonstration else {
        return Err(EnvError::NoDemonstration { task: task.index });
    };
    let limit = rules.limit(context);
    let room = if rules.too_long.cuts() { UNLIMITED } else { limit };
    let learned = learned_of(rules, demonstration);
    let mut episodes = Vec::new();
    for (sample, completion) in (0..).zip(demonstration.completions()) {
        let key = SampleKey { ticket, sample, segment: 0 };
        let own = task.with_demonstration(completion);
        episodes.push(match whole_row(tokenizer, &own, learned) {
            Some(pieces) => {
                let pieces = pieces.map_err(|source| EnvError::Text { task: task.index, source })?;
                vec![pieces.ok_or(EnvError::NoEndToken)?.trajectory(key)]
            }
            None => demonstrate(environment, &own, tokenizer, room, key).await?,
        });
    }
    cut::cut(&mut episodes, limit, rules.too_long).map_err(|tokens| EnvError::RowTooLong {
        task: task.index,
        tokens,
        limit,
    })?;
    for segment in episodes.iter_mut().flatten() {
        if learned == LossOn::All {
            pieces::learn_all(segment);
        }
        if segment.policy_tokens() == 0 {
            return Err(EnvError::RowTooLong { task: task.index, tokens: segment.tokens.len(), limit });
        }
        segment.validate()?;
    }
    Ok(episodes)
}

/// The tokens that carry loss. Preferences, labels and steps are about completions.
fn learned_of(rules: RowRules, demonstration: &Demonstration) -> LossOn {
    match demonstration {
        Demonstration::Preference(_) | Demonstration::Labelled(_) | Demonstration::Steps(_) => {
            LossOn::Completion
        }
        _ => rules.loss_on,
    }
}

/// The pieces of a row that no environment plays; `None` for a demonstration that one does.
fn whole_row(
    tokenizer: &Tokenizer,
    task: &Task,
    learned: LossOn,
) -> Option<Result<Option<pieces::Pieces>, TextError>> {
    match (&task.prompt, task.demonstration.as_ref()?, learned) {
        (prompt, Demonstration::Steps(steps), _) => Some(steps::pieces(tokenizer, prompt, steps).map(Some)),
        (PromptSource::Text(text), Demonstration::Completion(completion), LossOn::All)
            if completion.is_empty() =>
        {
            Some(pieces::of_text(tokenizer, text))
        }
        (PromptSource::Messages(prompt), demonstration, LossOn::Assistant) => {
            Some(transcript::pieces(tokenizer, prompt, demonstration))
        }
        _ => None,
    }
}

/// Number of tokens of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLength {
    /// Tokens before the first that the policy writes.
    pub prompt: usize,
    /// Tokens after the prompt, in the longest of the completions; of a demonstration that an environment plays, those of its
    /// first turn.
    pub completion: usize,
    /// The fewest tokens of the completion that can be learned from.
    pub least: usize,
}

/// The length of a task's row, as [`read_row`] gives it before anything is cut.
pub fn row_length(tokenizer: &Tokenizer, task: &Task, rules: RowRules) -> Result<RowLength, TextError> {
    let Some(demonstration) = &task.demonstration else {
        let prompt = render_prompt(tokenizer, &task.prompt)?.len();
        return Ok(RowLength { prompt, completion: 0, least: 0 });
    };
    let learned = learned_of(rules, demonstration);
    let mut length = RowLength { prompt: 0, completion: 0, least: 1 };
    for completion in demonstration.completions() {
        let own = task.with_demonstration(completion);
        if let Some(pieces) = whole_row(tokenizer, &own, learned).transpose()?.flatten() {
            let prompt = pieces.leading_prompt();
            length.completion = length.completion.max(pieces.len() - prompt);
            (length.prompt, length.least) = (prompt, pieces.least_learned());
        } else {
            length.prompt = render_prompt(tokenizer, &task.prompt)?.len();
            length.completion = length.completion.max(demonstration_length(tokenizer, &own)?);
        }
    }
    if learned == LossOn::All {
        length.least = 0;
    }
    Ok(length)
}
