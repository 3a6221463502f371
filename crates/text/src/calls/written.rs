use std::collections::BTreeMap;

use crate::{TextError, Tokenizer};

/// The text of a turn, with the places of the marks that are tokens of their own.
#[derive(Debug, Clone, Default)]
pub struct Written {
    text: String,
    /// Places of marks in ascending order: of those that are tokens of the tokenizer, and in [`indexed`](Self::indexed) of all.
    places: BTreeMap<&'static str, Vec<usize>>,
}

impl Written {
    /// Text whose marks are characters like all others.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), places: BTreeMap::new() }
    }

    pub(super) fn decode(
        tokenizer: &Tokenizer,
        tokens: &[u32],
        marks: &'static [&'static str],
    ) -> Result<Self, TextError> {
        let known: BTreeMap<u32, &'static str> =
            marks.iter().filter_map(|mark| Some((tokenizer.token_to_id(mark)?, *mark))).collect();
        let mut written =
            Self { text: String::new(), places: known.values().map(|mark| (*mark, Vec::new())).collect() };
        let mut start = 0;
        for (at, token) in tokens.iter().enumerate() {
            let Some(mark) = known.get(token) else { continue };
            written.text.push_str(&tokenizer.decode(&tokens[start..at], false)?);
            if let Some(places) = written.places.get_mut(mark) {
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

    /// The turn with the places of all marks. A parser that searches a mark after each call would otherwise read the rest of the turn
    /// each time if the mark is missing there.
    pub(super) fn indexed(&self, marks: &[&'static str]) -> Self {
        let mut places = self.places.clone();
        for mark in marks {
            places
                .entry(mark)
                .or_insert_with(|| self.text.match_indices(mark).map(|(place, _)| place).collect());
        }
        Self { text: self.text.clone(), places }
    }

    /// The first place of a mark in `from..to`.
    pub(super) fn find_in(&self, mark: &str, from: usize, to: usize) -> Option<usize> {
        match self.places.get(mark) {
            Some(places) => {
                let next = places.partition_point(|place| *place < from);
                places.get(next).copied().filter(|place| place + mark.len() <= to)
            }
            None => self.text.get(from..to)?.find(mark).map(|place| from + place),
        }
    }

    /// The first place of a mark from a place on.
    pub(super) fn find(&self, mark: &str, from: usize) -> Option<usize> {
        self.find_in(mark, from, self.text.len())
    }
}
