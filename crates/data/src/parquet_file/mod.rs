//! Rows of Parquet files.

mod sizes;
mod thrift;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

pub use sizes::SizeProblem;

use crate::files::RowSink;
use crate::{DataError, Location};

/// Reads a Parquet file row by row, as JSON objects equal to those of a JSONL file with the same rows.
pub(crate) fn read(path: &Path, sink: &mut RowSink<'_>) -> Result<(), DataError> {
    let reader = guarded(|| open(path))
        .unwrap_or_else(|| Err(DataError::ParquetMetadata { path: path.to_owned() }))?;
    let rows = guarded(|| reader.get_row_iter(None)).unwrap_or_else(panicked);
    let mut rows = rows.map_err(|source| DataError::Parquet { path: path.to_owned(), source })?;
    for row in 1.. {
        let at = Location::Row { path: path.to_owned(), row };
        // Also the conversion: dates that a calendar does not have are a panic.
        let next = || Ok(rows.next().transpose()?.map(|fields| object(&fields)));
        let next = guarded(next).unwrap_or_else(panicked);
        match next {
            Ok(Some(fields)) => {
                if !sink(at, fields)? {
                    break;
                }
            }
            Ok(None) => break,
            Err(source) => return Err(DataError::ParquetRow { at, source }),
        }
    }
    Ok(())
}

/// Calls the `parquet` crate, which panics on some damaged files instead of returning an error. `None` if it did.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

fn panicked<T>() -> Result<T, ParquetError> {
    Err(ParquetError::General("the file is damaged: the parquet library panicked".into()))
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, DataError> {
    let io = |source| DataError::Io { path: path.to_owned(), source };
    let sizes = |problem| DataError::ParquetSizes { path: path.to_owned(), problem };
    let file = File::open(path).map_err(io)?;
    let copy = file.try_clone().map_err(io)?;
    sizes::check_columns(&copy).map_err(sizes)?;
    let reader = SerializedFileReader::new(file)
        .map_err(|source| DataError::Parquet { path: path.to_owned(), source })?;
    sizes::check_pages(&copy, reader.metadata()).map_err(sizes)?;
    Ok(reader)
}

fn object(row: &Row) -> Map<String, Value> {
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

/// Every column is read, also those that no task needs, so no column type is an error.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(v) => (*v).into(),
        Field::Byte(v) => (*v).into(),
        Field::Short(v) => (*v).into(),
        Field::Int(v) => (*v).into(),
        Field::Long(v) => (*v).into(),
        Field::UByte(v) => (*v).into(),
        Field::UShort(v) => (*v).into(),
        Field::UInt(v) => (*v).into(),
        Field::ULong(v) => (*v).into(),
        Field::Float(v) => f64::from(*v).into(),
        Field::Double(v) => (*v).into(),
        Field::Str(v) => v.as_str().into(),
        Field::Group(row) => Value::Object(object(row)),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        // A string column without its logical type is bytes; bytes that are not UTF-8 cannot be part of a task.
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).map_or(Value::Null, Value::from),
        // Dates, times and decimals, as text.
        other => other.to_string().into(),
    }
}
