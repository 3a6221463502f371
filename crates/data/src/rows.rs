//! The rows of files: their tasks, and the places that errors name.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rloom_core::Task;
use serde_json::{Map, Value};

use crate::{DataError, FileSettings, Location, PromptFormat, RowKind};

/// Tasks of rows, with the rows' places, as they are read.
#[derive(Debug, Default)]
pub(crate) struct ReadRows {
    pub(crate) tasks: Vec<Task>,
    /// True if the rows are texts that are learned as a whole.
    pub(crate) are_texts: bool,
    places: Vec<Place>,
    files: Vec<PathBuf>,
}

/// Tasks of rows, or of some of them. Clones share the tasks.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    read: Arc<ReadRows>,
    /// Places of these rows among those that were read; `None` for all.
    kept: Option<Arc<[u32]>>,
}

/// Place of a row. Files are numbered, since there may be millions of rows.
#[derive(Debug, Clone, Copy)]
struct Place {
    file: u32,
    is_line: bool,
    number: u64,
}

impl ReadRows {
    /// Appends a task of a row. The rows of a file follow each other.
    pub(crate) fn push(&mut self, task: Task, at: Location) {
        let (path, is_line, number) = match at {
            Location::Line { path, line } => (path, true, line),
            Location::Row { path, row } => (path, false, row),
            Location::Generated { position, .. } => (PathBuf::new(), false, position),
        };
        if self.files.last().is_none_or(|last| *last != path) {
            self.files.push(path);
        }
        self.places.push(Place { file: self.files.len() as u32 - 1, is_line, number });
        self.tasks.push(task);
    }

    /// Place of the row of a task.
    pub(crate) fn location(&self, task: usize) -> Location {
        let Place { file, is_line, number } = self.places[task];
        let path = self.files[file as usize].clone();
        if is_line { Location::Line { path, line: number } } else { Location::Row { path, row: number } }
    }
}

impl From<ReadRows> for Rows {
    fn from(read: ReadRows) -> Self {
        Self { read: Arc::new(read), kept: None }
    }
}

impl Rows {
    /// Number of tasks.
    pub(crate) fn len(&self) -> usize {
        self.kept.as_ref().map_or(self.read.tasks.len(), |kept| kept.len())
    }

    /// The task at a position below [`Rows::len`].
    pub(crate) fn task(&self, position: usize) -> &Task {
        &self.read.tasks[self.place(position)]
    }

    /// The tasks in order.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Task> {
        (0..self.len()).map(|position| self.task(position))
    }

    /// Position of the task with an index: tasks are numbered in the order of the rows.
    pub(crate) fn find(&self, index: u64) -> Option<usize> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            if self.task(middle).index < index { from = middle + 1 } else { to = middle }
        }
        (from < self.len() && self.task(from).index == index).then_some(from)
    }

    /// True if the rows are texts that are learned as a whole.
    pub(crate) fn are_texts(&self) -> bool {
        self.read.are_texts
    }

    /// Place of the row at a position.
    pub(crate) fn location(&self, position: usize) -> Location {
        self.read.location(self.place(position))
    }

    fn place(&self, position: usize) -> usize {
        self.kept.as_ref().map_or(position, |kept| kept[position] as usize)
    }

    /// Keeps the tasks at the positions for which `keep` is true.
    pub(crate) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let kept = (0..self.len()).filter(|&position| keep(position));
        let kept: Arc<[u32]> = kept.map(|position| self.place(position) as u32).collect();
        if kept.len() < self.len() {
            self.kept = Some(kept);
        }
    }
}

/// What determines the tasks that are read from files.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    settings: FileSettings,
    format: PromptFormat,
    kind: RowKind,
    /// True for the files of `eval_path`.
    held_out: bool,
}

/// Rows that were read from files, so that the splits of a data set and the stages of a run share them. Clones are the same cache.
#[derive(Debug, Clone, Default)]
pub struct RowCache(Arc<Mutex<Vec<(Request, Rows)>>>);

impl RowCache {
    /// The rows of a request; `read` reads them if they are not here.
    pub(crate) fn rows(
        &self,
        settings: &FileSettings,
        format: &PromptFormat,
        kind: RowKind,
        held_out: bool,
        read: impl FnOnce() -> Result<ReadRows, DataError>,
    ) -> Result<Rows, DataError> {
        let request = Request { settings: settings.clone(), format: format.clone(), kind, held_out };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = entries.iter().find(|(own, _)| *own == request) {
            return Ok(rows.clone());
        }
        let rows = Rows::from(read()?);
        entries.push((request, rows.clone()));
        Ok(rows)
    }

    /// Drops the rows of files, by what is read from them, for which `keep` is false.
    pub fn retain(&self, keep: impl Fn(&FileSettings, RowKind) -> bool) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|(request, _)| keep(&request.settings, request.kind));
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

    pub(crate) fn check(self, rows: &ReadRows) -> Result<(), DataError> {
        let missing = self.wanted.iter().find(|(_, _, is_found)| !is_found);
        let Some((&(setting, field, _), first)) = missing.zip(rows.files.first()) else { return Ok(()) };
        Err(DataError::UnknownField {
            path: first.clone(),
            more_files: rows.files.len() - 1,
            field: field.to_owned(),
            found: self.found,
            setting,
        })
    }
}
