use std::fmt::Write;

/// Result of a call, for the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The result, or the error.
    pub text: String,
    /// The call failed: the text says why.
    pub is_error: bool,
}

impl Output {
    /// A result.
    pub fn ok(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: false }
    }

    /// A failure that the policy sees.
    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true }
    }

    /// The result, cut off after a number of bytes.
    #[must_use]
    pub fn limited(mut self, bytes: usize) -> Self {
        if self.text.len() > bytes {
            let end = self.text.floor_char_boundary(bytes);
            let cut = self.text.len() - end;
            self.text.truncate(end);
            // Writing to a string does not fail.
            let _ = write!(self.text, "[truncated {cut} bytes]");
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::Output;

    #[test]
    fn long_results_say_how_much_is_missing() {
        assert_eq!(Output::ok("abc").limited(3).text, "abc");
        assert_eq!(Output::ok("abcd").limited(3).text, "abc[truncated 1 bytes]");
        // A character is never divided.
        assert_eq!(Output::error("aéé").limited(4), Output::error("aé[truncated 2 bytes]"));
    }
}
