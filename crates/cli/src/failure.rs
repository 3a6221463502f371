//! Errors of commands and their exit codes.

use std::fmt::Write as _;
use std::io::{self, Write as _};

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
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// The command failed.
    #[error("{0}")]
    Failed(String),
    /// The run was interrupted and saved.
    #[error("interrupted")]
    Interrupted,
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl Failure {
    pub(crate) fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    pub(crate) fn usage(error: impl std::fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// Converts an error of a run or of opening its policy. Wrong names and paths are usage errors.
    pub(crate) fn from_run(error: &RunError) -> Self {
        use StoreError::{DirectoryInUse, Locked, NotARun};
        let is_usage = match error {
            RunError::Store(error) => matches!(error, DirectoryInUse { .. } | NotARun { .. } | Locked { .. }),
            RunError::Model(error) => error.is_wrong_path(),
            RunError::Hub(error) => error.is_wrong_name(),
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
            other => plain(&other.to_string(), output),
        };
        let _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
    }

    /// Formats each problem as a JSON object on its own line.
    fn as_json(&self) -> String {
        let Self::Config(errors) = self else {
            let text = self.to_string();
            let (message, hints) = hints(&text);
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

/// Formats `error: …`, followed by one line per hint.
fn plain(text: &str, output: Output) -> String {
    let (message, hints) = hints(text);
    let mut out = format!("{}: {message}", output.paint(RED, "error"));
    for hint in hints {
        let _ = write!(out, "\n{}: {hint}", output.paint(CYAN, "hint"));
    }
    out
}

/// Separates the `hint: …` lines from a message.
fn hints(text: &str) -> (String, Vec<&str>) {
    let hints = text.lines().filter_map(|line| line.strip_prefix("hint: ")).collect();
    let message: Vec<&str> = text.lines().filter(|line| !line.starts_with("hint: ")).collect();
    (message.join("\n"), hints)
}
