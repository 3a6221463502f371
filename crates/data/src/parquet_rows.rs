use std::fs::File;
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use crate::files::RowSink;
use crate::{DataError, Location};

/// Reads a Parquet file row by row, as the JSON objects that a JSONL file of the same rows would have.
pub(crate) fn read(path: &Path, sink: &mut RowSink<'_>) -> Result<(), DataError> {
    let broken = |e: ParquetError| DataError::Parquet { path: path.to_owned(), problem: describe(&e) };
    let file = File::open(path).map_err(|source| DataError::Io { path: path.to_owned(), source })?;
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    for (row, fields) in (1..).zip(reader.get_row_iter(None).map_err(broken)?) {
        let at = Location::Row { path: path.to_owned(), row };
        let values = object(&fields.map_err(broken)?, &at)?;
        if !sink(at, values)? {
            break;
        }
    }
    Ok(())
}

fn describe(error: &ParquetError) -> String {
    let text = error.to_string();
    text.strip_prefix("Parquet error: ").unwrap_or(&text).to_owned()
}

fn object(row: &Row, at: &Location) -> Result<Map<String, Value>, DataError> {
    row.get_column_iter().map(|(name, field)| Ok((name.clone(), value(name, field, at)?))).collect()
}

fn value(name: &str, field: &Field, at: &Location) -> Result<Value, DataError> {
    Ok(match field {
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
        Field::Group(row) => Value::Object(object(row, at)?),
        Field::ListInternal(list) => {
            list.elements().iter().map(|e| value(name, e, at)).collect::<Result<_, _>>()?
        }
        // A string column without its logical type is bytes.
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => text.into(),
            Err(_) => return Err(unreadable(name, "bytes that are not UTF-8", at)),
        },
        other => return Err(unreadable(name, &format!("of the Parquet type of {other}"), at)),
    })
}

fn unreadable(name: &str, found: &str, at: &Location) -> DataError {
    DataError::WrongType {
        at: at.clone(),
        field: name.to_owned(),
        expected: "text, a number, a list or a struct",
        found: found.to_owned(),
    }
}
