//! The inputs of rewards: the texts of an episode and those of each agent.

use std::sync::Arc;

use rloom_core::{Author, Rewards, Task, Trajectory};
use rloom_reward::{AgentText, CurrentComponent, Judged, Scorer};
use rloom_text::{TextError, Tokenizer};

use crate::CollectError;
use crate::transcript::{policy_text, prompt_text, transcript};

/// What a judgement needs on its thread.
pub(crate) struct Judge {
    pub(crate) scorer: Arc<Scorer>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) task: Task,
}

impl Judge {
    /// Prompt, text and transcript of an episode; prompt and transcript are empty unless a component reads them. The text is
    /// the answer of several agents, if there is one.
    pub(crate) fn texts(
        &self,
        segments: &[Trajectory],
        answer: Option<&str>,
    ) -> Result<[String; 3], TextError> {
        let first = segments.first().filter(|_| self.scorer.reads_prompt());
        let prompt = first.map(|first| prompt_text(&self.tokenizer, first)).unwrap_or_default();
        let transcript = if self.scorer.reads_observations() {
            transcript(&self.tokenizer, segments)
        } else {
            String::new()
        };
        let text = match answer {
            Some(answer) => answer.to_owned(),
            None => policy_text(&self.tokenizer, segments)?,
        };
        Ok([prompt, text, transcript])
    }

    pub(crate) fn judged<'a>(
        &'a self,
        segments: &'a [Trajectory],
        [prompt, text, transcript]: &'a [String; 3],
    ) -> Judged<'a> {
        Judged { task: &self.task, segments, text, transcript, prompt }
    }

    /// Judges the agents of an episode of several with the components that do so.
    pub(crate) fn credit_agents(
        &self,
        segments: &[Trajectory],
        texts: &[String; 3],
        rewards: &mut Rewards,
        current: &CurrentComponent,
    ) -> Result<(), CollectError> {
        if !self.scorer.judges_agents() {
            return Ok(());
        }
        let agents = agent_texts(&self.tokenizer, segments)?;
        Ok(self.scorer.score_agents(&self.judged(segments, texts), &agents, rewards, current)?)
    }
}

/// What each agent has written, turn by turn after the number of the round; empty for an episode of a single agent.
fn agent_texts(tokenizer: &Tokenizer, segments: &[Trajectory]) -> Result<Vec<AgentText>, TextError> {
    let mut agents: Vec<AgentText> = Vec::new();
    for segment in segments {
        let Some(name) = &segment.agent else { return Ok(Vec::new()) };
        if agents.last().is_none_or(|agent| agent.name != *name) {
            agents.push(AgentText { name: name.clone(), text: String::new() });
        }
        let Some(AgentText { text, .. }) = agents.last_mut() else { continue };
        for span in segment.spans.iter().filter(|span| span.author == Author::Policy) {
            if !text.is_empty() {
                text.push('\n');
            }
            let round = span.round.map_or(0, |round| round + 1);
            let written = tokenizer.decode(&segment.tokens[span.range.clone()], true)?;
            *text += &["Round ", &round.to_string(), ": ", &written].concat();
        }
    }
    Ok(agents)
}

#[cfg(test)]
mod tests {
    use rloom_core::{SampleKey, Span, StopReason};
    use rloom_text::CharacterSettings;

    use super::*;

    #[test]
    fn agents_have_the_texts_of_their_turns_by_round() {
        let tokenizer = Tokenizer::characters(&CharacterSettings::new("abcdef")).unwrap();
        let segment = |agent: Option<&str>, parts: &[(Option<u32>, &str)]| {
            let (mut tokens, mut spans) = (Vec::new(), Vec::new());
            for (round, text) in parts {
                let from = tokens.len();
                tokens.extend(tokenizer.encode(text, false).unwrap());
                let author = if round.is_some() { Author::Policy } else { Author::Prompt };
                spans.push(Span { round: *round, ..Span::new(author, from..tokens.len()) });
            }
            Trajectory {
                key: SampleKey::default(),
                agent: agent.map(str::to_owned),
                tokens,
                spans,
                logprobs: Vec::new(),
                versions: Vec::new(),
                stop: StopReason::StopToken,
                attachments: Vec::new(),
            }
        };
        let segments = [
            segment(Some("x"), &[(None, "a"), (Some(0), "bc"), (None, "d"), (Some(2), "e")]),
            segment(Some("y"), &[(None, "a"), (Some(0), "f")]),
            segment(Some("y"), &[(None, "a"), (Some(1), "ff")]),
        ];
        let text = |name: &str, text: &str| AgentText { name: name.to_owned(), text: text.to_owned() };
        let expected = [text("x", "Round 1: bc\nRound 3: e"), text("y", "Round 1: f\nRound 2: ff")];
        assert_eq!(agent_texts(&tokenizer, &segments).unwrap(), expected);
        let single = segment(None, &[(None, "a"), (Some(0), "b")]);
        assert_eq!(agent_texts(&tokenizer, std::slice::from_ref(&single)).unwrap(), []);
    }
}
