//! Errors as text.

use miette::Diagnostic;

/// An error as text, with its hint: what remains of an error that crosses a thread, a process or a file.
#[derive(Debug, Clone, PartialEq, Eq, Diagnostic, thiserror::Error)]
#[error("{message}")]
pub struct ErrorText {
    /// The message.
    pub message: String,
    /// A suggestion for the user.
    #[help]
    pub hint: Option<String>,
}

impl ErrorText {
    /// The text of an error.
    pub fn of(error: &dyn Diagnostic) -> Self {
        Self { message: error.to_string(), hint: error.help().map(|hint| hint.to_string()) }
    }
}

/// Hints of an error and of the errors that it reports as its causes.
pub fn hints(error: &dyn Diagnostic) -> Vec<String> {
    let chain = std::iter::successors(Some(error), |error| error.diagnostic_source());
    chain.filter_map(miette::Diagnostic::help).map(|hint| hint.to_string()).collect()
}

impl From<String> for ErrorText {
    fn from(message: String) -> Self {
        Self { message, hint: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SettingProblem;

    #[test]
    fn the_hint_of_an_error_is_kept() {
        let text = ErrorText::of(&SettingProblem::Conflict { other: "path" }.at("generator"));
        assert_eq!(text.message, "`generator`: cannot be combined with `path`");
        assert_eq!(text.hint.as_deref(), Some("remove one of the two"));
        assert_eq!(ErrorText::of(&text), text);
        assert_eq!(ErrorText::of(&SettingProblem::Empty).hint, None);
    }
}
