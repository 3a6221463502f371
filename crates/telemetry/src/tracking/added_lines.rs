//! Reading of an event file that grows.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::TelemetryError;
use crate::event_file::LONGEST_LINE;

/// Reads the lines of an event file, and those that are added to it later.
pub(super) struct AddedLines {
    path: PathBuf,
    file: BufReader<File>,
    text: Vec<u8>,
}

impl AddedLines {
    pub(super) fn open(directory: &Path) -> Result<Self, TelemetryError> {
        let path = directory.join("events.jsonl");
        let file = File::open(&path).map_err(|source| TelemetryError::io("open", &path, source))?;
        Ok(Self { path, file: BufReader::new(file), text: Vec::new() })
    }

    /// The next complete line. None at the end of the file as it is now.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, TelemetryError> {
        if self.text.ends_with(b"\n") || self.text.len() as u64 >= LONGEST_LINE {
            self.text.clear();
        }
        let mut rest = self.file.by_ref().take(LONGEST_LINE - self.text.len() as u64);
        let read = rest.read_until(b'\n', &mut self.text);
        read.map_err(|source| TelemetryError::io("read", &self.path, source))?;
        let is_complete = self.text.ends_with(b"\n") || self.text.len() as u64 >= LONGEST_LINE;
        Ok(is_complete.then_some(self.text.as_slice()))
    }
}
