//! Programs in the sandbox: Python and SQL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rloom_core::Program;
use rloom_sandbox::code::{Language, execution};
use rloom_sandbox::{Choice, Ending, Limits, Outcome, Sandbox};
use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value, json};

use crate::places::Places;
use crate::source::{text, timed_out};
use crate::{Output, Source, ToolError};

/// Python programs.
#[derive(Debug)]
pub(crate) struct Programs {
    tool: ToolDeclaration,
    sandbox: Sandbox,
    places: Places,
    limits: Limits,
    readable: Vec<PathBuf>,
}

impl Programs {
    pub(crate) fn new(
        name: &str,
        choice: Choice,
        limits: Limits,
        readable: Vec<PathBuf>,
    ) -> Result<Self, ToolError> {
        let sandbox = Sandbox::detect(&Program::current(), choice)?;
        let description =
            "Runs a Python program and returns what it prints. Each call is a program of its own.";
        let tool = declaration(name, description, "code", "The program");
        Ok(Self { tool, sandbox, places: Places::of_machine(), limits, readable })
    }
}

impl Source for Programs {
    fn tools(&self) -> &[ToolDeclaration] {
        std::slice::from_ref(&self.tool)
    }

    fn call(&self, _: &str, arguments: &Map<String, Value>, timeout: Duration) -> Result<Output, ToolError> {
        let mut execution = execution(Language::Python, text(arguments, "code"), "", self.limits);
        execution.readable.clone_from(&self.readable);
        let _place = self.places.take();
        Ok(output(&self.sandbox.run(&execution)?, timeout))
    }
}

/// SQL queries.
#[derive(Debug)]
pub(crate) struct Sql {
    tool: ToolDeclaration,
    sandbox: Sandbox,
    places: Places,
    limits: Limits,
    /// Statements that make the database.
    database: String,
}

impl Sql {
    pub(crate) fn new(name: &str, path: &Path, choice: Choice, limits: Limits) -> Result<Self, ToolError> {
        let database = std::fs::read_to_string(path)
            .map_err(|source| ToolError::Read { path: path.to_owned(), source })?;
        let sandbox = Sandbox::detect(&Program::current(), choice)?;
        let description = "Runs an SQL query by SQLite and returns its rows, with | between the columns.";
        let tool = declaration(name, description, "query", "The query");
        Ok(Self { tool, sandbox, places: Places::of_machine(), limits, database })
    }
}

impl Source for Sql {
    fn tools(&self) -> &[ToolDeclaration] {
        std::slice::from_ref(&self.tool)
    }

    fn call(&self, _: &str, arguments: &Map<String, Value>, timeout: Duration) -> Result<Output, ToolError> {
        let execution = execution(Language::Sql, text(arguments, "query"), &self.database, self.limits);
        let _place = self.places.take();
        Ok(output(&self.sandbox.run(&execution)?, timeout))
    }
}

fn declaration(name: &str, description: &str, parameter: &str, meaning: &str) -> ToolDeclaration {
    ToolDeclaration {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: json!({
            "type": "object",
            "properties": { parameter: { "type": "string", "description": meaning } },
            "required": [parameter],
        }),
    }
}

/// What a program printed, and how it ended unless that was well.
fn output(outcome: &Outcome, timeout: Duration) -> Output {
    let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let problem = match outcome.ending {
        Ending::Exited(0) => return Output::ok(printed),
        Ending::TimedOut | Ending::CpuLimit => timed_out(timeout).text,
        // The last line of a traceback says what is wrong; the lines before name files of the sandbox.
        Ending::Exited(_) => String::from_utf8_lossy(&outcome.stderr).trim().to_owned(),
        Ending::Signaled(signal) => format!("the program was ended by signal {signal}"),
        Ending::MemoryLimit => "the program exceeded its memory".to_owned(),
        Ending::OutputLimit => "the program printed too much".to_owned(),
        Ending::DiskLimit => "the program wrote too much".to_owned(),
        Ending::ProcessLimit => "the program started too many processes".to_owned(),
    };
    Output::error(if printed.is_empty() { problem } else { format!("{}\n{problem}", printed.trim_end()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(ending: Ending, stdout: &str, stderr: &str) -> Output {
        let outcome = Outcome {
            ending,
            stdout: stdout.into(),
            stderr: stderr.into(),
            report: Vec::new(),
            outputs: Vec::new(),
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
        };
        output(&outcome, Duration::from_secs(3))
    }

    #[test]
    fn a_result_is_what_was_printed_and_how_the_program_ended() {
        assert_eq!(result(Ending::Exited(0), "6\n", "a warning"), Output::ok("6\n"));
        assert_eq!(result(Ending::Exited(1), "6\n", "NameError: x\n"), Output::error("6\nNameError: x"));
        for (ending, expected) in [
            (Ending::Exited(1), "NameError: x"),
            (Ending::TimedOut, "the call took longer than 3 s"),
            (Ending::CpuLimit, "the call took longer than 3 s"),
            (Ending::Signaled(11), "the program was ended by signal 11"),
            (Ending::MemoryLimit, "the program exceeded its memory"),
            (Ending::OutputLimit, "the program printed too much"),
            (Ending::DiskLimit, "the program wrote too much"),
            (Ending::ProcessLimit, "the program started too many processes"),
        ] {
            assert_eq!(result(ending, "", "NameError: x\n"), Output::error(expected));
        }
    }
}
