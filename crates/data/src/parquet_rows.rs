use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use crate::files::RowSink;
use crate::{DataError, Location};

/// Reads a Parquet file row by row, as JSON objects equal to those of a JSONL file with the same rows.
pub(crate) fn read(path: &Path, sink: &mut RowSink<'_>) -> Result<(), DataError> {
    // The `parquet` crate panics on some damaged metadata instead of returning an error.
    catch_unwind(AssertUnwindSafe(|| read_rows(path, sink)))
        .unwrap_or_else(|_| Err(DataError::ParquetMetadata { path: path.to_owned() }))
}

fn read_rows(path: &Path, sink: &mut RowSink<'_>) -> Result<(), DataError> {
    let invalid = |source: ParquetError| DataError::Parquet { path: path.to_owned(), source };
    let file = File::open(path).map_err(|source| DataError::Io { path: path.to_owned(), source })?;
    let reader = SerializedFileReader::new(file).map_err(invalid)?;
    for (row, fields) in (1..).zip(reader.get_row_iter(None).map_err(invalid)?) {
        let at = Location::Row { path: path.to_owned(), row };
        if !sink(at, object(&fields.map_err(invalid)?))? {
            break;
        }
    }
    Ok(())
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
