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
            // An empty text is the form of a default that depends on something else, which the description states.
            if object.get("default").is_some_and(|default| default.is_null() || default == "") {
                object.shift_remove("default");
            }
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = unwrapped(text);
            }
            enumerate(object);
            flatten(object);
        }
        _ => {}
    }
}

/// Joins the lines of each paragraph.
fn unwrapped(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
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
        let Some(Value::Array(choices)) = object.get(keyword) else { continue };
        let (tables, others): (Vec<Value>, Vec<Value>) =
            choices.iter().cloned().partition(|choice| choice.get("properties").is_some());
        if tables.is_empty() {
            continue;
        }
        object.shift_remove(keyword);
        let common = object.shift_remove("properties");
        let table = one_table(&tables, common);
        if others.is_empty() {
            object.extend(table);
        } else {
            let choices: Vec<Value> = others.into_iter().chain([Value::Object(table)]).collect();
            object.insert("anyOf".to_owned(), Value::Array(choices));
        }
    }
}

/// One table with the keys of all kinds and `common` ones.
fn one_table(kinds: &[Value], common: Option<Value>) -> Map<String, Value> {
    let mut properties = Map::new();
    for kind in kinds {
        let Some(Value::Object(keys)) = kind.get("properties") else { continue };
        for key in keys.keys() {
            if !properties.contains_key(key) {
                properties.insert(key.clone(), merged(key, kinds));
            }
        }
    }
    if let Some(Value::Object(common)) = common {
        // A key that only some kinds have is listed with the schema `true`.
        properties.extend(common.into_iter().filter(|(_, schema)| *schema != json!(true)));
    }
    Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), Value::Object(properties)),
        ("additionalProperties".to_owned(), json!(false)),
    ])
}

/// The schema of a key in any of the kinds of a table.
fn merged(key: &str, kinds: &[Value]) -> Value {
    let with_key = || kinds.iter().filter_map(|kind| Some((kind, kind.get("properties")?.get(key)?)));
    let mut schemas = with_key().map(|(_, schema)| schema);
    if with_key().all(|(_, schema)| schema.get("const").is_some()) {
        let values: Vec<&Value> = schemas.map(|schema| &schema["const"]).collect();
        let docs: Vec<&str> = with_key().map(|(kind, _)| summary(text(kind, "description"))).collect();
        return json!({
            "description": "Kind of the table, which determines its other keys.",
            "type": "string",
            "enum": values,
            (VALUE_DOCS): { "docs": { "enumValues": docs } },
        });
    }
    let Some(mut schema) = schemas.next().cloned() else { return json!({}) };
    let Some(object) = schema.as_object_mut() else { return schema };
    let texts = by_kind(with_key().map(|(kind, schema)| (kind, text(schema, "description").to_owned())));
    let description = match texts.as_slice() {
        [(doc, _)] if with_key().count() == kinds.len() => doc.clone(),
        [(doc, kinds)] if !kinds.is_empty() => format!("{doc} Only with {kinds}."),
        [(doc, _)] => doc.clone(),
        several => {
            let with = |(doc, kinds): &(String, String)| {
                if kinds.is_empty() { doc.clone() } else { format!("With {kinds}: {doc}") }
            };
            several.iter().map(with).collect::<Vec<_>>().join(" ")
        }
    };
    let with_default =
        with_key().filter_map(|(kind, schema)| Some((kind, schema.get("default")?.to_string())));
    let defaults = by_kind(with_default);
    let suffix = if defaults.len() > 1 {
        object.shift_remove("default");
        let listed: Vec<String> =
            defaults.iter().map(|(default, kinds)| format!("`{default}` with {kinds}")).collect();
        format!(" Default: {}.", listed.join("; "))
    } else {
        String::new()
    };
    object.insert("description".to_owned(), format!("{description}{suffix}").into());
    schema
}

/// The distinct values in order, each with the kinds that have it.
fn by_kind<'a>(values: impl Iterator<Item = (&'a Value, String)>) -> Vec<(String, String)> {
    let mut distinct: Vec<(String, Vec<&Value>)> = Vec::new();
    for (kind, value) in values {
        match distinct.iter_mut().find(|(known, _)| *known == value) {
            Some((_, kinds)) => kinds.push(kind),
            None => distinct.push((value, vec![kind])),
        }
    }
    distinct.into_iter().map(|(value, kinds)| (value, selectors(&kinds))).collect()
}

/// The settings that select kinds, by their tag: `kind = "exact"`, `"math"`; or by their only required key.
fn selectors(kinds: &[&Value]) -> String {
    let mut listed: Vec<String> = Vec::new();
    let mut tagged = false;
    for kind in kinds {
        let properties = kind.get("properties").and_then(Value::as_object);
        let tag =
            properties.and_then(|p| p.iter().find_map(|(key, schema)| Some((key, schema.get("const")?))));
        let required = kind.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        match (tag, required) {
            (Some((_, value)), _) if tagged => listed.push(format!("`{value}`")),
            (Some((key, value)), _) => {
                tagged = true;
                listed.push(format!("`{key} = {value}`"));
            }
            (None, [Value::String(key)]) => listed.push(format!("`{key}`")),
            _ => {}
        }
    }
    listed.join(", ")
}

/// The first paragraph.
fn summary(text: &str) -> &str {
    text.split("\n\n").next().unwrap_or_default()
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
