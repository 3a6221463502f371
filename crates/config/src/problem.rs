//! What is wrong with a configuration.

use std::fmt;

use crate::layered::source::{Origin, Sources};
use crate::render::{Paint, render};

/// The kinds of configuration mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// A file could not be read.
    Unreadable,
    /// The text is not TOML.
    Syntax,
    /// No setting has this name.
    UnknownKey,
    /// A setting that cannot be left out is not there.
    MissingKey,
    /// The value has another type than the setting.
    WrongType,
    /// None of the names that the setting takes.
    UnknownName,
    /// The value lies outside what the setting takes.
    OutOfRange,
    /// Settings that contradict each other.
    Conflict,
    /// A setting that nothing would read.
    Unread,
    /// Names a stage that does not exist.
    UnknownStage,
    /// Two stages with one name.
    DuplicateStage,
    /// A secret in a file that would be copied into the run directory.
    Secret,
}

impl Code {
    /// Its name in messages, `config::` aside.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Syntax => "syntax",
            Self::UnknownKey => "unknown-key",
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

/// A place that a problem points at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Where.
    pub origin: Origin,
    /// What to say there; may be empty.
    pub text: String,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What kind it is.
    pub code: Code,
    /// What is wrong, in one sentence.
    pub message: String,
    /// Where: the place to change first, then what it collides with.
    pub labels: Vec<Label>,
    /// What to do about it.
    pub hints: Vec<String>,
}

impl Problem {
    /// A problem without a place.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), labels: Vec::new(), hints: Vec::new() }
    }

    /// Adds a place. The first is the main one.
    #[must_use]
    pub fn at(mut self, origin: Origin, text: impl Into<String>) -> Self {
        self.labels.push(Label { origin, text: text.into() });
        self
    }

    /// Adds a place, if the value was written anywhere; where it is a default there is nothing to point at.
    #[must_use]
    pub fn at_written(self, origin: Option<Origin>, text: impl Into<String>) -> Self {
        match origin {
            Some(origin) => self.at(origin, text),
            None => self,
        }
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.hints.push(text.into());
        self
    }
}

/// Everything that is wrong with a configuration, and the texts it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The texts.
    pub sources: Sources,
    /// The mistakes, in the order of their places; at least one.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// Collects problems, sorted by place, each once.
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

    /// The text for people, with ANSI colours if asked for.
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
