use std::collections::VecDeque;
use std::sync::Arc;

use crate::TextError;

/// A stop string found in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Index of the stop string in the list.
    pub index: usize,
    /// Start of the match, in bytes from the start of all pushed text; the text to keep ends here.
    pub start: usize,
    /// End of the match.
    pub end: usize,
}

/// Searches streamed text for any of several stop strings, also across pieces.
///
/// The match is the one that completes first; of several that complete at the same position, the longest. It therefore
/// depends on the text alone, not on its division into tokens. Clone an unused value for each sequence.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Arc<[String]>,
    /// The last bytes, at most the length of the longest stop string.
    tail: VecDeque<u8>,
    longest: usize,
    seen: usize,
    found: Option<StopMatch>,
}

impl StopStrings {
    /// Searches for `stops`; an empty list never matches.
    ///
    /// # Errors
    ///
    /// [`TextError::EmptyStopString`].
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if stops.iter().any(String::is_empty) {
            return Err(TextError::EmptyStopString);
        }
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        let tail = VecDeque::with_capacity(longest);
        Ok(Self { stops: stops.into(), tail, longest, seen: 0, found: None })
    }

    /// True if there are no stop strings.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Searches the next piece of text. After a match the result does not change.
    pub fn push(&mut self, text: &str) -> Option<StopMatch> {
        if self.found.is_some() || self.stops.is_empty() {
            self.seen += text.len();
            return self.found;
        }
        for &byte in text.as_bytes() {
            if self.tail.len() == self.longest {
                self.tail.pop_front();
            }
            self.tail.push_back(byte);
            self.seen += 1;
            // UTF-8 is self-synchronising: a valid string within valid text lies on character boundaries.
            let complete = self.stops.iter().enumerate().filter(|(_, stop)| self.ends_with(stop.as_bytes()));
            if let Some((index, stop)) = complete.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index))
            {
                self.found = Some(StopMatch { index, start: self.seen - stop.len(), end: self.seen });
                break;
            }
        }
        self.found
    }

    fn ends_with(&self, stop: &[u8]) -> bool {
        self.tail.len() >= stop.len() && self.tail.range(self.tail.len() - stop.len()..).eq(stop)
    }
}
