use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::files::RowSink;
use crate::{DataError, JsonType, Location};

/// Most bytes of a line: a file without line breaks is not read into memory.
const MAX_LINE: u64 = 64 << 20;

/// Compression of a file as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

/// Reads a JSONL file row by row, and expands it meanwhile if it is compressed. Blank lines are skipped; a byte order mark is
/// accepted.
pub(crate) fn read(
    path: &Path,
    compression: Option<Compression>,
    sink: &mut RowSink<'_>,
) -> Result<(), DataError> {
    let io = |source| DataError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let content: Box<dyn Read> = match compression {
        None => Box::new(file),
        Some(Compression::Gzip) => Box::new(MultiGzDecoder::new(file)),
        Some(Compression::Zstd) => Box::new(zstd::Decoder::new(file).map_err(io)?),
    };
    let mut reader = BufReader::with_capacity(1 << 16, content);
    let mut bytes = Vec::new();
    let mut line = 0;
    loop {
        bytes.clear();
        let read = reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut bytes).map_err(io)?;
        if read == 0 {
            return Ok(());
        }
        line += 1;
        let at = || Location::Line { path: path.to_owned(), line };
        if read as u64 > MAX_LINE {
            return Err(DataError::LongLine { at: at(), limit: MAX_LINE });
        }
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
                return Err(DataError::NotAnObject { at: at(), found: JsonType::of(&other) });
            }
            Err(source) => return Err(DataError::NotJson { at: at(), source }),
        };
        if !sink(at(), row)? {
            return Ok(());
        }
    }
}
