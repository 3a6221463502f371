//! Reads and merges files and overrides.

use std::path::{Path, PathBuf};

use super::merge::{Choice, merge};
use super::overrides::parse_override;
use super::parse::parse;
use super::source::{Source, SourceKind, Sources};
use super::tree::Table;
use crate::problem::{Code, Problem};

/// The layers of a configuration.
#[derive(Debug)]
pub struct Layers {
    /// The texts that were read.
    pub sources: Sources,
    /// The merged tree.
    pub root: Table,
    /// Problems of reading, parsing and merging.
    pub problems: Vec<Problem>,
    choices: &'static [Choice],
}

impl Layers {
    /// Creates an empty configuration.
    pub fn new(choices: &'static [Choice]) -> Self {
        Self { sources: Sources::default(), root: Table::default(), problems: Vec::new(), choices }
    }

    /// Adds a TOML file as the layer of highest precedence.
    pub fn add_file(&mut self, path: &Path) {
        match std::fs::read_to_string(path) {
            Ok(text) => self.add_text(path.to_owned(), text),
            Err(error) => {
                let message = match error.kind() {
                    std::io::ErrorKind::NotFound => format!("{} does not exist", path.display()),
                    _ => format!("cannot read {}: {error}", path.display()),
                };
                let problem = Problem::new(Code::Unreadable, message);
                let config = path.join("config.toml");
                self.problems.push(if config.is_file() {
                    problem.hint(format!("the configuration of the run is {}", config.display()))
                } else if path.is_dir() {
                    problem.hint("give the path of a TOML file in it")
                } else {
                    problem
                });
            }
        }
    }

    /// Adds TOML text as the layer of highest precedence; `path` is its name in messages.
    pub fn add_text(&mut self, path: PathBuf, text: String) {
        // A byte order mark is not part of the text and would count as a column.
        let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
        let source = self.sources.add(Source { kind: SourceKind::File(path), text });
        let table = parse(&self.sources.get(source).text, source, &mut self.problems);
        merge(&mut self.root, table, self.choices, &mut self.problems);
    }

    /// Adds `path.to.key=value` as the layer of highest precedence.
    pub fn add_override(&mut self, text: &str) {
        let table = parse_override(text, &mut self.sources, &mut self.problems);
        merge(&mut self.root, table, self.choices, &mut self.problems);
    }
}
