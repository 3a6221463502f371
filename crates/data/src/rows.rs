//! The rows of files: their tasks, and the places that errors name.

use std::path::PathBuf;
use std::sync::Arc;

use rloom_core::Task;
use serde_json::{Map, Value};

use crate::{DataError, FileSettings, Location, RowKind};

/// Tasks of rows, with the rows' places.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    pub(crate) tasks: Vec<Task>,
    /// True if the rows are texts that are learned as a whole.
    pub(crate) are_texts: bool,
    places: Vec<Place>,
    files: Vec<Arc<PathBuf>>,
}

/// Place of a row. Files are numbered, since there may be millions of rows.
#[derive(Debug, Clone, Copy)]
struct Place {
    file: u32,
    is_line: bool,
    number: u64,
}

impl Rows {
    /// Appends a row. The rows of a file follow each other.
    pub(crate) fn push(&mut self, task: Task, at: Location) {
        let (path, is_line, number) = match at {
            Location::Line { path, line } => (path, true, line),
            Location::Row { path, row } => (path, false, row),
            Location::Generated { position, .. } => (PathBuf::new(), false, position),
        };
        if self.files.last().is_none_or(|last| **last != path) {
            self.files.push(Arc::new(path));
        }
        self.places.push(Place { file: self.files.len() as u32 - 1, is_line, number });
        self.tasks.push(task);
    }

    /// Place of the row at a position.
    pub(crate) fn location(&self, position: usize) -> Location {
        let Place { file, is_line, number } = self.places[position];
        let path = self.files[file as usize].to_path_buf();
        if is_line { Location::Line { path, line: number } } else { Location::Row { path, row: number } }
    }

    /// Keeps the rows at the positions for which `keep` is true.
    pub(crate) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut position = 0..;
        self.tasks.retain(|_| position.next().is_some_and(&keep));
        let mut position = 0..;
        self.places.retain(|_| position.next().is_some_and(&keep));
    }
}

/// Fields that the settings name and a row may lack. At least one row must have each of them.
pub(crate) struct NamedFields<'s> {
    /// Setting, field, and true once a row has it.
    wanted: Vec<(&'static str, &'s str, bool)>,
    /// Names of the fields of all rows, in order of appearance.
    found: Vec<String>,
}

impl<'s> NamedFields<'s> {
    pub(crate) fn new(settings: &'s FileSettings, kind: RowKind) -> Self {
        let mut named = vec![
            ("answer_field", &settings.answer_field),
            ("demonstration_field", &settings.demonstration_field),
        ];
        if kind == RowKind::Pairs {
            named = vec![("margin_field", &settings.margin_field)];
        }
        let named = named.into_iter().filter_map(|(setting, name)| Some((setting, name.as_deref()?, false)));
        Self { wanted: named.collect(), found: Vec::new() }
    }

    /// Notes the fields of a row.
    pub(crate) fn see(&mut self, row: &Map<String, Value>) {
        if self.wanted.iter().all(|(_, _, is_found)| *is_found) {
            return;
        }
        for (name, _) in row.iter().filter(|(_, v)| !v.is_null()) {
            for (_, field, is_found) in &mut self.wanted {
                *is_found |= field == name;
            }
            if !self.found.contains(name) {
                self.found.push(name.clone());
            }
        }
    }

    pub(crate) fn check(self, rows: &Rows) -> Result<(), DataError> {
        let missing = self.wanted.iter().find(|(_, _, is_found)| !is_found);
        let Some((&(setting, field, _), first)) = missing.zip(rows.files.first()) else { return Ok(()) };
        Err(DataError::UnknownField {
            path: first.to_path_buf(),
            more_files: rows.files.len() - 1,
            field: field.to_owned(),
            found: self.found,
            setting,
        })
    }
}
