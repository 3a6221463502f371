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

#[cfg(test)]
mod tests {
    use rloom_core::{Author, SampleKey, Span, StopReason};
    use rloom_text::CharacterSettings;

    use super::*;

    fn tokenizer() -> Tokenizer {
        Tokenizer::characters(&CharacterSettings::new("abcdefgh>? ")).unwrap()
    }

    /// A segment of texts by authors.
    fn segment(number: u32, parts: &[(Author, &str)]) -> Trajectory {
        let (mut tokens, mut spans) = (Vec::new(), Vec::new());
        for &(author, text) in parts {
            let from = tokens.len();
            tokens.extend(tokenizer().encode(text, false).unwrap());
            spans.push(Span::new(author, from..tokens.len()));
        }
        Trajectory {
            key: SampleKey { segment: number, ..SampleKey::default() },
            agent: None,
            tokens,
            spans,
            logprobs: Vec::new(),
            versions: Vec::new(),
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        }
    }

    /// Rewards see the same texts, however an episode is divided.
    #[test]
    fn segments_do_not_change_what_rewards_see() {
        use Author::{Environment, Policy, Prompt};
        let tokenizer = tokenizer();
        let whole = [segment(
            0,
            &[
                (Prompt, "ab"),
                (Policy, "c"),
                (Environment, ">"),
                (Policy, "d"),
                (Environment, "?"),
                (Policy, "e"),
            ],
        )];
        let divided = [
            segment(0, &[(Prompt, "ab"), (Policy, "c"), (Environment, ">"), (Policy, "d")]),
            segment(1, &[(Prompt, "abd"), (Environment, "?"), (Policy, "e")]),
        ];
        for segments in [&whole[..], &divided] {
            assert_eq!(policy_text(&tokenizer, segments).unwrap(), "cde");
            assert_eq!(transcript(&tokenizer, segments), "c>d?e");
            assert_eq!(prompt_text(&tokenizer, &segments[0]), "ab");
        }
        assert_eq!(episode_text(&tokenizer, &whole), "c>d?e");
        assert_eq!(episode_text(&tokenizer, &divided), "c>d\n--- segment 1 ---\n?e");
    }
}
