use std::collections::BTreeMap;

use crate::{TextError, Tokenizer};

/// The text of a turn, with the places of the marks that are tokens of their own.
#[derive(Debug, Clone, Default)]
pub struct Written {
    text: String,
    /// Places of each mark that is a token of the tokenizer.
    atomic: BTreeMap<&'static str, Vec<usize>>,
}

impl Written {
    /// Text whose marks are characters like all others.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), atomic: BTreeMap::new() }
    }

    pub(super) fn decode(
        tokenizer: &Tokenizer,
        tokens: &[u32],
        marks: &'static [&'static str],
    ) -> Result<Self, TextError> {
        let known: BTreeMap<u32, &'static str> =
            marks.iter().filter_map(|mark| Some((tokenizer.token_to_id(mark)?, *mark))).collect();
        let mut written =
            Self { text: String::new(), atomic: known.values().map(|mark| (*mark, Vec::new())).collect() };
        let mut start = 0;
        for (at, token) in tokens.iter().enumerate() {
            let Some(mark) = known.get(token) else { continue };
            written.text.push_str(&tokenizer.decode(&tokens[start..at], false)?);
            if let Some(places) = written.atomic.get_mut(mark) {
                places.push(written.text.len());
            }
            written.text.push_str(mark);
            start = at + 1;
        }
        written.text.push_str(&tokenizer.decode(&tokens[start..], false)?);
        Ok(written)
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first place of a mark in `from..to`.
    pub(super) fn find_in(&self, mark: &str, from: usize, to: usize) -> Option<usize> {
        match self.atomic.get(mark) {
            Some(places) => places.iter().copied().find(|place| *place >= from && place + mark.len() <= to),
            None => self.text.get(from..to)?.find(mark).map(|place| from + place),
        }
    }

    /// The first place of a mark from a place on.
    pub(super) fn find(&self, mark: &str, from: usize) -> Option<usize> {
        self.find_in(mark, from, self.text.len())
    }
}
