//! The JSON schema of a recipe file, derived from the types that read it.
//!
//! It is more permissive than the program: every key is optional, because a file may be one of several layers, and a
//! table with several kinds accepts the keys of all of them. Names, types and the spelling of values are exact.

use rloom_algo::Method;
use rloom_engine::TrainSettings;
use rloom_model::OptimizerSettings;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::keys::RootKeys;

/// `[trainer]`, which two types read.
#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct TrainerTable {
    #[serde(flatten)]
    optimizer: OptimizerSettings,
    #[serde(flatten)]
    engine: TrainSettings,
}

/// Schema of `method`.
pub(crate) fn method_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
    let summaries: Vec<&str> = Method::ALL.iter().map(|method| method.info().summary).collect();
    json_schema!({ "type": "string", "enum": names, (VALUE_DOCS): { "docs": { "enumValues": summaries } } })
}

/// Extension of the TOML language server Taplo that documents the values of an enumeration.
pub(crate) const VALUE_DOCS: &str = "x-taplo";

/// Returns the JSON schema (draft 7) of a recipe file.
pub fn schema() -> Value {
    let mut settings = SchemaSettings::draft07();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<RootKeys>().to_value();
    simplify(&mut schema);
    remove_keywords(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), json!("RLoom recipe"));
        stages_by_name(root);
    }
    schema
}

/// Later files may address stages by name: `[stage.rl]` instead of `[[stage]]`.
fn stages_by_name(root: &mut Map<String, Value>) {
    let Some(stage) = root.get_mut("properties").and_then(|p| p.get_mut("stage")) else { return };
    let description = stage.as_object_mut().and_then(|s| s.shift_remove("description"));
    let items = stage.get("items").cloned();
    *stage = json!({
        "description": description,
        "anyOf": [stage.take(), { "type": "object", "additionalProperties": items }],
    });
}

/// Reduces a generated schema to the form of a recipe: see the module documentation.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(simplify),
        Value::Object(object) => {
            drop_null(object);
            for value in object.values_mut() {
                simplify(value);
            }
            if object.get("default").is_some_and(Value::is_null) {
                object.shift_remove("default");
            }
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            enumerate(object);
            flatten(object);
        }
        _ => {}
    }
}

/// TOML has no null: `Option<T>` is a `T` that may be left out.
fn drop_null(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            object["type"] = only.clone();
        }
    }
    let Some(Value::Array(choices)) = object.get_mut("anyOf") else { return };
    choices.retain(|choice| choice.get("type").is_none_or(|t| t != "null"));
    if let [Value::Object(only)] = choices.as_slice() {
        let only = only.clone();
        object.shift_remove("anyOf");
        for (keyword, value) in only {
            object.entry(keyword).or_insert(value);
        }
    }
}

/// Constants with descriptions, the form of a Rust enum, become one enumeration.
fn enumerate(object: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = object.get("oneOf") else { return };
    let mut values = Vec::new();
    let mut docs = Vec::new();
    for choice in choices {
        let doc = choice.get("description").cloned().unwrap_or_else(|| json!(""));
        if let Some(value) = choice.get("const") {
            values.push(value.clone());
            docs.push(doc);
        } else if let Some(Value::Array(several)) = choice.get("enum") {
            docs.extend(several.iter().map(|_| doc.clone()));
            values.extend(several.iter().cloned());
        } else {
            return;
        }
    }
    object.shift_remove("oneOf");
    object.insert("type".to_owned(), json!("string"));
    object.insert("enum".to_owned(), Value::Array(values));
    object.insert(VALUE_DOCS.to_owned(), json!({ "docs": { "enumValues": docs } }));
}

/// A table with several kinds becomes one table with the keys of all; descriptions name the kinds of a key.
fn flatten(object: &mut Map<String, Value>) {
    for keyword in ["oneOf", "anyOf"] {
        let is_table = |choice: &Value| choice.get("properties").is_some();
        if !matches!(object.get(keyword), Some(Value::Array(choices)) if choices.iter().all(is_table)) {
            continue;
        }
        let Some(Value::Array(choices)) = object.shift_remove(keyword) else { continue };
        let mut properties = Map::new();
        for choice in &choices {
            let Some(Value::Object(keys)) = choice.get("properties") else { continue };
            for key in keys.keys() {
                if !properties.contains_key(key) {
                    properties.insert(key.clone(), merged(key, &choices));
                }
            }
        }
        if let Some(Value::Object(common)) = object.shift_remove("properties") {
            properties.extend(common);
        }
        object.insert("type".to_owned(), json!("object"));
        object.insert("properties".to_owned(), Value::Object(properties));
        object.insert("additionalProperties".to_owned(), json!(false));
    }
}

/// The schema of a key in any of the kinds of a table.
fn merged(key: &str, kinds: &[Value]) -> Value {
    let with_key = || kinds.iter().filter_map(|kind| Some((kind, kind.get("properties")?.get(key)?)));
    let mut schemas = with_key().map(|(_, schema)| schema);
    if with_key().all(|(_, schema)| schema.get("const").is_some()) {
        let values: Vec<&Value> = schemas.map(|schema| &schema["const"]).collect();
        let docs: Vec<Value> = with_key().map(|(kind, _)| text(kind, "description").into()).collect();
        return json!({
            "description": "Kind of the table, which determines its other keys.",
            "type": "string",
            "enum": values,
            (VALUE_DOCS): { "docs": { "enumValues": docs } },
        });
    }
    let Some(mut schema) = schemas.next().cloned() else { return json!({}) };
    let same = schemas.all(|other| text(other, "description") == text(&schema, "description"));
    let labels: Option<Vec<String>> = with_key().map(|(kind, _)| label(kind)).collect();
    let description = match labels {
        Some(labels) if !same => with_key()
            .zip(&labels)
            .map(|((_, schema), label)| format!("With {label}: {}", text(schema, "description")))
            .collect::<Vec<_>>()
            .join(" "),
        Some(labels) if labels.len() < kinds.len() => {
            format!("{} Only with {}.", text(&schema, "description"), labels.join(", "))
        }
        _ => text(&schema, "description").to_owned(),
    };
    if let Some(object) = schema.as_object_mut() {
        let same_default = with_key().all(|(_, other)| other.get("default") == object.get("default"));
        let defaults = if same_default { String::new() } else { defaults(with_key()) };
        if !same_default {
            object.shift_remove("default");
        }
        object.insert("description".to_owned(), format!("{description}{defaults}").into());
    }
    schema
}

/// The defaults of a key in several kinds as a sentence.
fn defaults<'a>(kinds: impl Iterator<Item = (&'a Value, &'a Value)>) -> String {
    let with_default = kinds.filter_map(|(kind, schema)| Some((label(kind)?, schema.get("default")?)));
    let listed: Vec<String> =
        with_default.map(|(label, default)| format!("`{default}` with {label}")).collect();
    if listed.is_empty() { String::new() } else { format!(" Default: {}.", listed.join(", ")) }
}

/// The setting that selects a kind: its tag, or its only required key.
fn label(kind: &Value) -> Option<String> {
    let properties = kind.get("properties")?.as_object()?;
    let tag = properties.iter().find_map(|(key, schema)| Some((key, schema.get("const")?)));
    if let Some((key, value)) = tag {
        return Some(format!("`{key} = {value}`"));
    }
    match kind.get("required")?.as_array()?.as_slice() {
        [Value::String(key)] => Some(format!("`{key}`")),
        _ => None,
    }
}

fn text<'a>(schema: &'a Value, keyword: &str) -> &'a str {
    schema.get(keyword).and_then(Value::as_str).unwrap_or_default()
}

/// Removes keywords that do not apply to a single layer, at all depths.
fn remove_keywords(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(remove_keywords),
        Value::Object(object) => {
            for keyword in ["required", "format", "unevaluatedProperties"] {
                object.shift_remove(keyword);
            }
            object.values_mut().for_each(remove_keywords);
        }
        _ => {}
    }
}
