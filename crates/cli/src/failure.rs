//! Errors of commands and their exit codes.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use miette::Diagnostic;
use rloom_config::ConfigErrors;
use rloom_run::RunError;
use rloom_store::StoreError;
use serde_json::json;

use crate::output::{CYAN, Output, RED};

/// Exit code of a failed command.
pub(crate) const FAILED: u8 = 1;
/// Exit code for invalid usage or configuration.
pub(crate) const USAGE: u8 = 2;
/// Exit code of an interrupted run, which is saved.
pub(crate) const INTERRUPTED: u8 = 130;

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The command cannot be run with these arguments.
    #[error("{0}")]
    Usage(Report),
    /// The command failed.
    #[error("{0}")]
    Failed(Report),
    /// Interrupted and saved.
    #[error("interrupted")]
    Interrupted,
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

/// An error message with its hints.
#[derive(Debug)]
pub(crate) struct Report {
    message: String,
    hints: Vec<String>,
}

impl Report {
    fn text(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), hints: Vec::new() }
    }
}

impl<E: Diagnostic> From<E> for Report {
    /// The message of an error, with its hint and those of its causes.
    fn from(error: E) -> Self {
        Self { message: error.to_string(), hints: rloom_core::hints(&error) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    pub(crate) fn failed(error: impl Diagnostic) -> Self {
        Self::Failed(error.into())
    }

    pub(crate) fn usage(error: impl Diagnostic) -> Self {
        Self::Usage(error.into())
    }

    /// A failure with this message, for errors without hints.
    pub(crate) fn failed_text(message: impl fmt::Display) -> Self {
        Self::Failed(Report::text(message))
    }

    /// Wrong usage with this message, for errors without hints.
    pub(crate) fn usage_text(message: impl fmt::Display) -> Self {
        Self::Usage(Report::text(message))
    }

    #[cfg(test)]
    pub(crate) fn hints(&self) -> &[String] {
        match self {
            Self::Usage(report) | Self::Failed(report) => &report.hints,
            Self::Config(_) | Self::Interrupted | Self::Output(_) => &[],
        }
    }

    /// Adds a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Usage(report) | Self::Failed(report) = &mut self {
            report.hints.push(hint.into());
        }
        self
    }

    /// The failure of a run or of opening its policy: wrong names and paths are errors of usage.
    pub(crate) fn from_run(error: RunError) -> Self {
        use StoreError::{DirectoryInUse, Locked, NotARun};
        let is_usage = match &error {
            RunError::Store(error) => matches!(error, DirectoryInUse { .. } | NotARun { .. } | Locked { .. }),
            RunError::Model(error) => error.is_wrong_path(),
            RunError::Hub(error) => error.is_wrong_name(),
            RunError::Data(error) => error.is_wrong_name(),
            RunError::CannotChange { .. } | RunError::StepsAreDone { .. } | RunError::NoCheckpoint { .. } => {
                true
            }
            _ => false,
        };
        if is_usage { Self::usage(error) } else { Self::failed(error) }
    }

    /// Exit code of the process.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) => USAGE,
            Self::Interrupted => INTERRUPTED,
            // The reader closed the pipe (`rloom … | head`), which is not an error.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Failed(_) | Self::Output(_) => FAILED,
        }
    }

    /// Writes the error to standard error.
    pub(crate) fn report(&self, output: Output) {
        let text = match self {
            Self::Interrupted => return,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return,
            failure if output.json => failure.as_json(),
            Self::Config(errors) => errors.render(output.colour),
            Self::Usage(report) | Self::Failed(report) => plain(&report.message, &report.hints, output),
            Self::Output(_) => plain(&self.to_string(), &[], output),
        };
        let _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
    }

    /// Formats each problem as a JSON object on its own line.
    fn as_json(&self) -> String {
        let Self::Config(errors) = self else {
            let hints: &[String] = match self {
                Self::Usage(report) | Self::Failed(report) => &report.hints,
                _ => &[],
            };
            let message = self.to_string();
            return json!({"error": {"code": self.code(), "message": message, "hints": hints}}).to_string();
        };
        let lines: Vec<String> = errors
            .problems
            .iter()
            .map(|problem| {
                let places: Vec<_> = problem
                    .labels
                    .iter()
                    .map(|label| {
                        let at = errors.sources.position(label.origin);
                        json!({
                            "source": errors.sources.get(label.origin.source).to_string(),
                            "line": at.line,
                            "column": at.column,
                            "text": errors.sources.text(label.origin),
                            "label": label.text,
                        })
                    })
                    .collect();
                json!({"error": {
                    "code": USAGE,
                    "kind": format!("config::{}", problem.code.name()),
                    "message": problem.message,
                    "places": places,
                    "hints": problem.hints,
                }})
                .to_string()
            })
            .collect();
        lines.join("\n")
    }
}

/// `error: …`, with each hint on its own line.
fn plain(message: &str, hints: &[String], output: Output) -> String {
    let mut out = format!("{}: {message}", output.paint(RED, "error"));
    for hint in hints {
        let _ = write!(out, "\n{}: {hint}", output.paint(CYAN, "hint"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rloom_core::ErrorText;
    use rloom_run::StageError;
    use std::path::Path;

    fn reported(failure: Failure) -> (String, Vec<String>) {
        match failure {
            Failure::Usage(report) | Failure::Failed(report) => (report.message, report.hints),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_hint_of_an_error_inside_another_is_reported() {
        let full = StoreError::io("write", Path::new("runs/a"), io::ErrorKind::StorageFull.into());
        let hint = full.help().unwrap().to_string();
        let error = RunError::StartMissing { stage: 1, source_stage: "sft".into(), error: Box::new(full) };
        let (message, hints) = reported(Failure::failed(error).hint("try again"));
        assert!(message.starts_with("stage 1 starts from the end of `sft`: could not write"), "{message}");
        assert_eq!(hints, [hint.as_str(), "try again"]);
    }

    #[test]
    fn an_error_with_a_hint_also_reports_the_hint_of_its_cause() {
        let cause = ErrorText { message: "no reference".into(), hint: Some("name the field".into()) };
        let error = StageError::TooManyFailures {
            stage: "rl".into(),
            step: 3,
            failures: 2,
            last: "group 7 (task 1): no reference".into(),
            cause,
            checkpoint: "none".into(),
        };
        let (_, hints) = reported(Failure::from_run(error.into()));
        assert_eq!(hints, ["remove the cause, or raise `stage.rl.schedule.max_failures`", "name the field"]);
    }
}
