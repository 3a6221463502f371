//! Episodes as text.

use rloom_core::Trajectory;
use rloom_text::{TextError, Tokenizer};

/// Text written by the policy in all segments, without special tokens: the input of rewards. Dividing an episode into
/// segments does not change it.
pub(crate) fn policy_text(tokenizer: &Tokenizer, segments: &[Trajectory]) -> Result<String, TextError> {
    let of_segment = |own: &Trajectory| -> Vec<u32> {
        own.policy_ranges().flat_map(|range| own.tokens[range].iter().copied()).collect()
    };
    let ids: Vec<u32> = segments.iter().flat_map(of_segment).collect();
    tokenizer.decode(&ids, true)
}

/// Text after the prompts of all segments, including observations, without special tokens.
pub(crate) fn transcript(tokenizer: &Tokenizer, segments: &[Trajectory]) -> String {
    segments.iter().map(|segment| completion_text(tokenizer, segment)).collect()
}

/// An episode for display: the text after its prompt, with a line where each further segment begins.
pub fn episode_text(tokenizer: &Tokenizer, segments: &[Trajectory]) -> String {
    let shown = |(place, segment): (usize, &Trajectory)| {
        let text = completion_text(tokenizer, segment);
        if place == 0 { text } else { format!("\n--- segment {} ---\n{text}", segment.key.segment) }
    };
    segments.iter().enumerate().map(shown).collect()
}

/// Text after the prompt for display, including observations, without special tokens.
pub fn completion_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> String {
    tokenizer.decode(&trajectory.tokens[trajectory.leading_prompt()..], true).unwrap_or_default()
}

/// The prompt as text, special tokens included.
pub fn prompt_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> String {
    tokenizer.decode(&trajectory.tokens[..trajectory.leading_prompt()], false).unwrap_or_default()
}
