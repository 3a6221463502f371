use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use crate::files::RowSink;
use crate::record::type_name;
use crate::{DataError, Location};

/// Reads a JSONL file row by row. Blank lines are passed over; a byte order mark is accepted.
pub(crate) fn read(path: &Path, sink: &mut RowSink<'_>) -> Result<(), DataError> {
    let io = |source| DataError::Io { path: path.to_owned(), source };
    let mut reader = BufReader::with_capacity(1 << 16, File::open(path).map_err(io)?);
    let mut bytes = Vec::new();
    let mut line = 0;
    loop {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(io)? == 0 {
            return Ok(());
        }
        line += 1;
        let at = || Location::Line { path: path.to_owned(), line };
        let mut text = std::str::from_utf8(&bytes)
            .map_err(|e| DataError::NotUtf8 { at: at(), offset: e.valid_up_to() + 1 })?;
        if line == 1 {
            text = text.strip_prefix('\u{feff}').unwrap_or(text);
        }
        if text.trim().is_empty() {
            continue;
        }
        let row = match serde_json::from_str(text) {
            Ok(Value::Object(row)) => row,
            Ok(other) => {
                let problem = format!("the line is {}", type_name(&other));
                return Err(DataError::Malformed { at: at(), problem });
            }
            Err(e) => {
                return Err(DataError::Malformed { at: at(), problem: describe(&e) });
            }
        };
        if !sink(at(), row)? {
            return Ok(());
        }
    }
}

/// The parser's words with the column only: it saw one line, whose number in the file is said elsewhere.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let words = text.rsplit_once(" at line ").map_or(text.as_str(), |(words, _)| words);
    format!("{words} (column {})", error.column())
}
