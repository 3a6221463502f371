use super::Language;
use crate::{Execution, InputFile, Limits};

/// Runs SQL.
pub(super) const QUERY: &str = include_str!("query.py");

/// The execution of a program in a language that needs no compiler.
pub fn execution(language: Language, source: &str, stdin: &str, limits: Limits) -> Execution {
    let command = language.command().iter().map(|word| (*word).to_owned()).collect();
    let mut files = vec![InputFile::new(language.file(), source)];
    if language == Language::Sql {
        files.push(InputFile::new("query.py", QUERY));
    }
    Execution { command, files, stdin: stdin.as_bytes().to_vec(), limits, ..Execution::default() }
}
