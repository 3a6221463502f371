//! Completions in labelled steps.

use rloom_core::{LabelledSteps, PromptSource};
use rloom_text::{TextError, Tokenizer};

use super::pieces::Pieces;
use crate::render_prompt;

/// The prompt and the steps, each with the separator after it. Steps are tokenised separately; no end-of-text token follows
/// the last one.
pub(super) fn pieces(
    tokenizer: &Tokenizer,
    prompt: &PromptSource,
    steps: &LabelledSteps,
) -> Result<Pieces, TextError> {
    let separator = tokenizer.encode(&steps.separator, false)?;
    let mut pieces = Pieces::default();
    pieces.push_given(render_prompt(tokenizer, prompt)?);
    for step in &steps.steps {
        let mut tokens = tokenizer.encode(&step.text, false)?;
        tokens.extend(&separator);
        pieces.push_step(tokens, step.label);
    }
    Ok(pieces)
}
