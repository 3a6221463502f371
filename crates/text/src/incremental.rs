use crate::{TextError, Tokenizer};

/// Turns tokens into text as they come.
///
/// [`push`](Self::push) gives the text that has become complete with a token: never half a character, never something
/// that a later token would change. All pieces together, with [`flush`](Self::flush), are
/// [`Tokenizer::decode`] of all tokens, with one exception: for tokenizers that fall back to byte tokens
/// (sentencepiece), a run of bytes that begins with whole characters and *then* breaks UTF-8 decodes as a whole to
/// U+FFFD, while here the whole characters were already given.
///
/// It decodes a short window of the last tokens, with one piece of context before them, since a token's text can
/// depend on its predecessor (the space that begins a sentencepiece word).
#[derive(Debug, Clone)]
pub struct IncrementalDecoder {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Context, then the tokens whose text has not been given.
    window: Vec<u32>,
    /// How many tokens of the window are context.
    context: usize,
    /// The context's text.
    context_text: String,
}

impl IncrementalDecoder {
    /// A decoder for one sequence. `skip_special` leaves special tokens out of the text.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            skip_special,
            window: Vec::new(),
            context: 0,
            context_text: String::new(),
        }
    }

    /// Takes the next token and gives the text that is complete with it, which is often empty.
    ///
    /// # Errors
    ///
    /// Only what the tokenizer's own decoder refuses.
    pub fn push(&mut self, token: u32) -> Result<String, TextError> {
        self.window.push(token);
        let fresh = self.fresh()?;
        // A replacement character at the end may be a character whose other bytes are still to come.
        if fresh.is_empty() || fresh.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.window.drain(..self.context);
        self.context = self.window.len();
        self.context_text = self.tokenizer.decode(&self.window, self.skip_special)?;
        Ok(fresh)
    }

    /// Gives what is left at the end of the sequence: bytes that never became a character, as U+FFFD.
    ///
    /// # Errors
    ///
    /// Only what the tokenizer's own decoder refuses.
    pub fn flush(&mut self) -> Result<String, TextError> {
        let fresh = self.fresh()?;
        self.window.clear();
        self.context = 0;
        self.context_text.clear();
        Ok(fresh)
    }

    /// The part of the window's text that has not been given.
    fn fresh(&self) -> Result<String, TextError> {
        let text = self.tokenizer.decode(&self.window, self.skip_special)?;
        match text.strip_prefix(&self.context_text) {
            Some(fresh) => Ok(fresh.to_owned()),
            // Later bytes changed the reading of earlier ones; what was said stands, so the rest is read on its own.
            None => self.tokenizer.decode(&self.window[self.context..], self.skip_special),
        }
    }
}
