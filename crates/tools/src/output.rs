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
}
