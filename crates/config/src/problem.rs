//! Errors of a configuration.

use std::fmt;

use crate::layered::source::{Origin, Sources};
use crate::render::{Paint, render};

/// Kind of a configuration error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// The file cannot be read.
    Unreadable,
    /// The text is not valid TOML.
    Syntax,
    /// No setting has this name.
    UnknownKey,
    /// The setting has a new name.
    RenamedKey,
    /// The value has a new name.
    RenamedValue,
    /// A required setting is missing.
    MissingKey,
    /// The value has the wrong type.
    WrongType,
    /// The value is not one of the names that the setting accepts.
    UnknownName,
    /// The value is outside the range of the setting.
    OutOfRange,
    /// Settings contradict each other.
    Conflict,
    /// The setting has no effect in this configuration.
    Unread,
    /// No stage has this name.
    UnknownStage,
    /// Two stages have the same name.
    DuplicateStage,
    /// A secret would be copied into the run directory.
    Secret,
}

impl Code {
    /// Name in messages, without `config::`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Syntax => "syntax",
            Self::UnknownKey => "unknown-key",
            Self::RenamedKey => "renamed-key",
            Self::RenamedValue => "renamed-value",
            Self::MissingKey => "missing-key",
            Self::WrongType => "wrong-type",
            Self::UnknownName => "unknown-name",
            Self::OutOfRange => "out-of-range",
            Self::Conflict => "conflict",
            Self::Unread => "unread-key",
            Self::UnknownStage => "unknown-stage",
            Self::DuplicateStage => "duplicate-stage",
            Self::Secret => "secret",
        }
    }
}

/// A marked range of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Range of the source.
    pub origin: Origin,
    /// Text next to the marker; may be empty.
    pub text: String,
}

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the error.
    pub code: Code,
    /// The error in one sentence.
    pub message: String,
    /// Marked ranges: first the one to change, then those that it conflicts with.
    pub labels: Vec<Label>,
    /// Suggested fixes.
    pub hints: Vec<String>,
}

impl Problem {
    /// Creates a problem without labels.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), labels: Vec::new(), hints: Vec::new() }
    }

    /// Adds a label. The first one is the primary label.
    #[must_use]
    pub fn at(mut self, origin: Origin, text: impl Into<String>) -> Self {
        self.labels.push(Label { origin, text: text.into() });
        self
    }

    /// Adds a label if the value was set; a default has no origin.
    #[must_use]
    pub fn at_if_set(self, origin: Option<Origin>, text: impl Into<String>) -> Self {
        match origin {
            Some(origin) => self.at(origin, text),
            None => self,
        }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.hints.push(text.into());
        self
    }
}

/// All errors of a configuration, with the sources that they point into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The texts that were read.
    pub sources: Sources,
    /// The errors in the order of their origins; at least one.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// Collects problems: sorted by origin, without duplicates.
    pub(crate) fn new(sources: Sources, problems: Vec<Problem>) -> Self {
        let mut distinct: Vec<Problem> = Vec::with_capacity(problems.len());
        for problem in problems {
            // A shared table is read once per stage.
            if !distinct.contains(&problem) {
                distinct.push(problem);
            }
        }
        distinct.sort_by_key(|p| p.labels.first().map(|l| l.origin));
        Self { sources, problems: distinct }
    }

    /// Returns the text of all errors, optionally with ANSI colours.
    pub fn render(&self, colour: bool) -> String {
        let paint = Paint { colour };
        let texts: Vec<String> = self.problems.iter().map(|p| render(p, &self.sources, paint)).collect();
        texts.join("\n")
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for ConfigErrors {}
