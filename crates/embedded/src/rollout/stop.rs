use rloom_text::{IncrementalDecoder, StopStrings, TextError, Tokenizer};

/// Watches one completion's text for stop strings. Special tokens count as their text, so that a stop string may name
/// one.
#[derive(Debug)]
pub(crate) struct StopWatch {
    decoder: IncrementalDecoder,
    strings: StopStrings,
}

impl StopWatch {
    /// `None` when there is nothing to watch for.
    pub(crate) fn new(tokenizer: &Tokenizer, stop: &[String]) -> Result<Option<Self>, TextError> {
        let strings = StopStrings::new(stop.to_vec())?;
        Ok((!strings.is_empty())
            .then(|| Self { decoder: IncrementalDecoder::new(tokenizer, false), strings }))
    }

    /// Whether a stop string is complete with this token.
    pub(crate) fn completes(&mut self, token: u32) -> Result<bool, TextError> {
        Ok(self.strings.push(&self.decoder.push(token)?).is_some())
    }
}
