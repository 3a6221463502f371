//! The page of the events.

use std::fmt::Write as _;

use rloom_telemetry::EventLine;
use schemars::generate::SchemaSettings;
use serde_json::Value;

const INTRODUCTION: &str = "\
# Events

<!-- Generated from rloom_telemetry::EventLine. To update: UPDATE_REFERENCE=1 cargo test --test config reference -->

A run appends its events to `events.jsonl` in the run directory, one JSON object per line. The field `event` contains the
kind of the event; the other fields are the ones of every line and those of the kind.

## Fields of every line
";

pub(crate) fn page() -> String {
    let mut settings = SchemaSettings::draft07();
    settings.inline_subschemas = true;
    let schema = settings.into_generator().into_root_schema_for::<EventLine>().to_value();
    let mut page = INTRODUCTION.to_owned();
    fields(&mut page, &schema);
    for event in schema["oneOf"].as_array().unwrap() {
        let name = event["properties"]["event"]["const"].as_str().unwrap();
        let _ = writeln!(page, "\n## `{name}`\n\n{}", description(event));
        fields(&mut page, event);
    }
    page
}

/// Writes the table of an object's fields.
fn fields(page: &mut String, object: &Value) {
    let fields = object["properties"].as_object().unwrap();
    let fields: Vec<_> = fields.iter().filter(|(name, _)| *name != "event").collect();
    if fields.is_empty() {
        return;
    }
    page.push_str("\n| field | type | description |\n| --- | --- | --- |\n");
    for (name, field) in fields {
        row(page, name, field);
    }
}

/// Writes the row of a field, and one for each field of an object in it.
fn row(page: &mut String, name: &str, field: &Value) {
    let mut text = description(field);
    for (value, doc) in values(field) {
        let _ = write!(text, "<br>`{value}`: {doc}");
    }
    let _ = writeln!(page, "| `{name}` | {} | {text} |", type_of(field));
    let (inner, name) = match field.get("items") {
        Some(items) => (items, format!("{name}[]")),
        None => (field, name.to_owned()),
    };
    for (key, field) in inner.get("properties").and_then(Value::as_object).into_iter().flatten() {
        row(page, &format!("{name}.{key}"), field);
    }
}

/// The values of an enumeration with their descriptions.
fn values(field: &Value) -> Vec<(String, String)> {
    let choices = field.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    choices
        .filter_map(|choice| Some((choice.get("const")?.as_str()?.to_owned(), description(choice))))
        .collect()
}

fn type_of(field: &Value) -> String {
    match field.get("type") {
        Some(Value::String(name)) if name == "array" => format!("array of {}s", type_of(&field["items"])),
        Some(Value::String(name)) if name == "object" && field.get("properties").is_none() => {
            format!("object of {}", type_of(&field["additionalProperties"]))
        }
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => "string".to_owned(),
    }
}

fn description(schema: &Value) -> String {
    schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .replace('\n', " ")
        .replace('|', "\\|")
}
