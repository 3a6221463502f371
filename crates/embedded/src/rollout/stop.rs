use rloom_text::{IncrementalDecoder, StopStrings, TextError, Tokenizer};

/// Searches a completion's text for stop strings. Special tokens count as their text, so a stop string may contain one.
#[derive(Debug)]
pub(crate) struct StopWatch {
    decoder: IncrementalDecoder,
    strings: StopStrings,
}

impl StopWatch {
    /// `None` if there are no stop strings.
    pub(crate) fn new(tokenizer: &Tokenizer, stop: &[String]) -> Result<Option<Self>, TextError> {
        let strings = StopStrings::new(stop.to_vec())?;
        Ok((!strings.is_empty())
            .then(|| Self { decoder: IncrementalDecoder::new(tokenizer, false), strings }))
    }

    /// True if this token completes a stop string.
    pub(crate) fn completes(&mut self, token: u32) -> Result<bool, TextError> {
        Ok(self.strings.push(&self.decoder.push(token)?).is_some())
    }
}
