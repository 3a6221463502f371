//! Values as text, in the format of Python's `str`.
//!
//! minijinja already writes `True`, `None` and quoted strings in lists as Python does; floats with an exponent differ,
//! alone or inside a list or a mapping.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Output, State, Value};

use super::tojson::python_float;

/// Writes the value of a `{{ … }}` expression.
pub(super) fn write(out: &mut Output<'_>, _state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&text(value)?)?,
    }
    Ok(())
}

/// The `string` filter.
pub(super) fn string(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => text(value).map(Value::from),
    }
}

fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => Ok(float(f64::try_from(value.clone())?)),
        ValueKind::Seq => {
            let items = value.try_iter()?.map(|item| repr(&item)).collect::<Result<Vec<_>, _>>()?;
            let is_tuple = value.as_object().is_some_and(|object| object.downcast_ref::<Tuple>().is_some());
            Ok(match (is_tuple, items.as_slice()) {
                (true, [only]) => format!("({only},)"),
                (true, _) => format!("({})", items.join(", ")),
                (false, _) => format!("[{}]", items.join(", ")),
            })
        }
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in value.try_iter()? {
                entries.push(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            }
            Ok(format!("{{{}}}", entries.join(", ")))
        }
        _ => Ok(value.to_string()),
    }
}

/// A value inside a container; strings are quoted.
fn repr(value: &Value) -> Result<String, Error> {
    if value.kind() != ValueKind::String {
        return text(value);
    }
    let listed = Value::from(vec![value.clone()]).to_string();
    Ok(listed.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&listed).to_owned())
}

fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    python_float(value)
}
