use rloom_text::{IncrementalDecoder, TextError, Tokenizer};

/// Marks of reasoning.
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Tokens in which the mark that opens reasoning can end a header, at most.
const MAX_MARK_TOKENS: usize = 16;

/// The tokens of an episode without the reasoning of its earlier turns, as templates render it that drop this reasoning.
/// What is left is never tokenised again.
#[derive(Debug)]
pub(super) struct WithoutReasoning {
    tokenizer: Tokenizer,
    tokens: Vec<u32>,
}

impl WithoutReasoning {
    /// Begins with the prompt of an episode.
    pub(super) fn new(tokenizer: &Tokenizer, prompt: &[u32]) -> Self {
        Self { tokenizer: tokenizer.clone(), tokens: prompt.to_vec() }
    }

    /// Adds a turn and what follows it. Returns all tokens, the prompt of a new segment, if the turn had reasoning; `reasons`
    /// says that the header before the turn opened it.
    pub(super) fn add(
        &mut self,
        turn: &[u32],
        reasons: bool,
        observation: &[u32],
    ) -> Result<Option<Vec<u32>>, TextError> {
        let end = self.end_of_reasoning(turn, reasons)?;
        if end > 0 && reasons {
            self.remove_open_mark()?;
        }
        self.tokens.extend(&turn[end..]);
        self.tokens.extend(observation);
        Ok((end > 0).then(|| self.tokens.clone()))
    }

    /// Number of a turn's first tokens that are reasoning, the line breaks after it included.
    fn end_of_reasoning(&self, turn: &[u32], reasons: bool) -> Result<usize, TextError> {
        let mut decoder = IncrementalDecoder::new(&self.tokenizer, false);
        let (mut text, mut from) = (String::new(), 0);
        for (at, &token) in turn.iter().enumerate() {
            text += &decoder.push(token)?;
            if let Some(place) = text[from..].find(CLOSE) {
                let rest = &text[from + place + CLOSE.len()..];
                let is_reasoning = reasons || text.trim_start().starts_with(OPEN);
                // A token that also has text after the mark stays whole.
                if !is_reasoning || !rest.trim_matches('\n').is_empty() {
                    return Ok(0);
                }
                let after = &turn[at + 1..];
                let breaks = after.iter().take_while(|&&token| self.is_line_break(token)).count();
                return Ok(at + 1 + breaks);
            }
            from = text.floor_char_boundary(text.len().saturating_sub(CLOSE.len()));
        }
        Ok(0)
    }

    fn is_line_break(&self, token: u32) -> bool {
        let text = self.tokenizer.decode(&[token], false).unwrap_or_default();
        !text.is_empty() && text.chars().all(|c| c == '\n')
    }

    /// Removes the mark at the end of a header that opens reasoning.
    fn remove_open_mark(&mut self) -> Result<(), TextError> {
        for count in 1..=MAX_MARK_TOKENS.min(self.tokens.len()) {
            let start = self.tokens.len() - count;
            if self.tokenizer.decode(&self.tokens[start..], false)?.trim_end() == OPEN {
                self.tokens.truncate(start);
                break;
            }
        }
        Ok(())
    }
}
