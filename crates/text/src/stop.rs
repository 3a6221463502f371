use std::collections::VecDeque;
use std::sync::Arc;

use crate::TextError;

/// Where a stop string was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Which stop string, by its place in the list.
    pub index: usize,
    /// Where it begins, in bytes from the start of all text pushed: the text to keep ends here.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
}

/// Watches text as it comes for any of several stop strings, also across the cuts between pieces.
///
/// The match is the one that is complete first; of several that are complete at the same place, the longest. So it
/// depends on the text alone, never on how it was cut into tokens. Clone an unused one for each sequence.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Arc<[String]>,
    /// The last bytes seen, as many as the longest stop string has.
    tail: VecDeque<u8>,
    longest: usize,
    seen: usize,
    found: Option<StopMatch>,
}

impl StopStrings {
    /// Watches for these strings; none at all never match.
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

    /// Whether there is nothing to watch for.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Takes the next piece of text. Once something was found, the answer stays the same.
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
            // UTF-8 synchronises itself: a valid string found among bytes of valid text lies on character boundaries.
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
