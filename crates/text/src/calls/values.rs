//! Values of arguments that a format writes without quotation marks.

use serde_json::Value;

/// The value of an argument by its declared type, and whether it violates it: a string is taken as it is; everything else is
/// JSON, or a string if it is none.
pub(super) fn value(text: &str, schema: Option<&Value>) -> (Value, bool) {
    let declared = schema.and_then(|schema| schema.get("type"));
    let is_string = |kind: &Value| kind.as_str() == Some("string");
    let only_strings = match declared {
        Some(Value::Array(kinds)) => matches!(kinds.as_slice(), [kind] if is_string(kind)),
        Some(kind) => is_string(kind),
        None => false,
    };
    if only_strings {
        return (Value::String(text.to_owned()), false);
    }
    if let Ok(value) = serde_json::from_str(text) {
        return (value, false);
    }
    let branches = schema.and_then(|schema| schema.get("anyOf").or_else(|| schema.get("oneOf")));
    let mut kinds = branches
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|branch| branch.get("type"))
        .chain(declared.and_then(Value::as_array).into_iter().flatten());
    (Value::String(text.to_owned()), !kinds.any(is_string))
}
