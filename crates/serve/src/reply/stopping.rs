//! Decodes tokens and ends the text before a stop string.

use std::ops::Range;

use rloom_text::{IncrementalDecoder, StopStrings, TextError, Tokenizer};

/// The text of a completion. Stop strings are searched in the text with special tokens, as the engine does; hidden tokens
/// are left out of what is returned.
#[derive(Debug)]
pub(super) struct StoppingText {
    decoder: IncrementalDecoder,
    watch: StopStrings,
    stops: Vec<String>,
    text: String,
    hidden: Vec<Range<usize>>,
    /// End of the text that was returned.
    returned: usize,
    /// Start and index of the stop string, once it has appeared.
    stop: Option<(usize, usize)>,
}

impl StoppingText {
    pub(super) fn new(tokenizer: &Tokenizer, stops: Vec<String>) -> Result<Self, TextError> {
        Ok(Self {
            decoder: IncrementalDecoder::new(tokenizer, false),
            watch: StopStrings::new(stops.clone())?,
            stops,
            text: String::new(),
            hidden: Vec::new(),
            returned: 0,
            stop: None,
        })
    }

    /// Adds a token; returns the text that is certain to be no part of a stop string. A hidden token comes with its text.
    pub(super) fn push(&mut self, token: u32, hidden: Option<&str>) -> Result<String, TextError> {
        let piece = self.decoder.push(token)?;
        if let Some(own) = hidden {
            let start = self.text.len() + piece.len() - own.len().min(piece.len());
            self.hidden.push(start..self.text.len() + piece.len());
        }
        Ok(self.extend(&piece))
    }

    /// The rest of the text.
    pub(super) fn finish(&mut self) -> Result<String, TextError> {
        let piece = self.decoder.flush()?;
        let before = self.extend(&piece);
        let end = self.stop.map_or(self.text.len(), |(start, _)| start);
        Ok(before + &self.take(end))
    }

    /// The whole text before the stop string, hidden tokens included.
    pub(super) fn whole(&self) -> &str {
        &self.text[..self.stop.map_or(self.text.len(), |(start, _)| start)]
    }

    /// The stop string and what follows it.
    pub(super) fn tail(&self) -> &str {
        self.stop.map_or("", |(start, _)| &self.text[start..])
    }

    /// The stop string that ended the text.
    pub(super) fn stop_string(&self) -> Option<&str> {
        self.stop.map(|(_, index)| self.stops[index].as_str())
    }

    fn extend(&mut self, piece: &str) -> String {
        self.text.push_str(piece);
        if self.stop.is_none() && !self.watch.is_empty() {
            self.stop = self.watch.push(piece).map(|found| (found.start, found.index));
        }
        let end = match self.stop {
            Some((start, _)) => start,
            None => self.text.len() - begun(&self.text, &self.stops),
        };
        self.take(end)
    }

    /// Returns the text up to `end` that was not returned yet.
    fn take(&mut self, end: usize) -> String {
        let start = self.returned;
        if end <= start {
            return String::new();
        }
        self.returned = end;
        let mut visible = String::with_capacity(end - start);
        let mut from = start;
        for hidden in self.hidden.iter().filter(|hidden| hidden.end > start && hidden.start < end) {
            visible.push_str(&self.text[from..hidden.start.clamp(from, end)]);
            from = hidden.end.clamp(from, end);
        }
        visible.push_str(&self.text[from..end]);
        visible
    }
}

/// Length of the longest end of a text with which one of `marks` may begin.
pub(super) fn begun<M: AsRef<str>>(text: &str, marks: &[M]) -> usize {
    let longest = |mark: &str| {
        let lengths = (1..mark.len()).rev().filter(|length| mark.is_char_boundary(*length));
        lengths.into_iter().find(|length| text.ends_with(&mark[..*length])).unwrap_or(0)
    };
    marks.iter().map(|mark| longest(mark.as_ref())).max().unwrap_or(0)
}
