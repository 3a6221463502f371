//! Trajectories as text.

use rloom_core::Trajectory;
use rloom_text::{TextError, Tokenizer};

/// Text written by the policy, without special tokens: the input of rewards.
pub(crate) fn policy_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> Result<String, TextError> {
    let ids: Vec<u32> =
        trajectory.policy_ranges().flat_map(|range| trajectory.tokens[range].iter().copied()).collect();
    tokenizer.decode(&ids, true)
}

/// Text after the prompt for display, including observations, without special tokens.
pub fn completion_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> String {
    tokenizer.decode(&trajectory.tokens[trajectory.prompt_tokens()..], true).unwrap_or_default()
}

/// The prompt as text, special tokens included.
pub fn prompt_text(tokenizer: &Tokenizer, trajectory: &Trajectory) -> String {
    tokenizer.decode(&trajectory.tokens[..trajectory.prompt_tokens()], false).unwrap_or_default()
}
