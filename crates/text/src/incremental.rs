use crate::{TextError, Tokenizer};

/// Decodes a token stream to text.
///
/// [`push`](Self::push) returns the text that a token completes: never a part of a character, and never text that a
/// later token would change. The concatenation of all pieces, with [`flush`](Self::flush), equals
/// [`Tokenizer::decode`] of all tokens, with one exception: for tokenizers with byte fallback (sentencepiece), a run of
/// bytes that starts with whole characters and then violates UTF-8 decodes to U+FFFD as a whole, while this decoder has
/// already returned the whole characters.
///
/// It decodes a short window of the last tokens and the piece before them, since the text of a token can depend on its
/// predecessor (the space at the start of a sentencepiece word).
#[derive(Debug, Clone)]
pub struct IncrementalDecoder {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Context tokens, then the tokens whose text is pending.
    window: Vec<u32>,
    /// Number of context tokens at the start of the window.
    context: usize,
    /// Text of the context tokens.
    context_text: String,
}

impl IncrementalDecoder {
    /// A decoder for one sequence. `skip_special` omits special tokens from the text.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            skip_special,
            window: Vec::new(),
            context: 0,
            context_text: String::new(),
        }
    }

    /// Adds the next token and returns the text that it completes, which is often empty.
    ///
    /// # Errors
    ///
    /// [`TextError::Decode`].
    pub fn push(&mut self, token: u32) -> Result<String, TextError> {
        self.window.push(token);
        let pending = self.pending()?;
        // A replacement character at the end may be the first bytes of an incomplete character.
        if pending.is_empty() || pending.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.window.drain(..self.context);
        self.context = self.window.len();
        self.context_text = self.tokenizer.decode(&self.window, self.skip_special)?;
        Ok(pending)
    }

    /// Returns the remaining text at the end of the sequence: incomplete characters, as U+FFFD.
    ///
    /// # Errors
    ///
    /// [`TextError::Decode`].
    pub fn flush(&mut self) -> Result<String, TextError> {
        let pending = self.pending()?;
        self.window.clear();
        self.context = 0;
        self.context_text.clear();
        Ok(pending)
    }

    /// Text of the window after the context.
    fn pending(&self) -> Result<String, TextError> {
        let text = self.tokenizer.decode(&self.window, self.skip_special)?;
        match text.strip_prefix(&self.context_text) {
            Some(pending) => Ok(pending.to_owned()),
            // Later bytes changed the decoding of the context, whose text was already returned: decode the rest alone.
            None => self.tokenizer.decode(&self.window[self.context..], self.skip_special),
        }
    }
}
