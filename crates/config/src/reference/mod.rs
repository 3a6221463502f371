//! Documentation of the configuration keys, derived from the schema.

mod markdown;

use std::collections::BTreeSet;

use rloom_algo::Method;
use serde_json::Value;
use toml::Table;

pub use markdown::configuration;

use crate::compose::SHARED;
use crate::layered::merge::STAGES;
use crate::problem::ConfigErrors;
use crate::schema::{VALUE_DOCS, schema};
use crate::settings::Config;

/// Table of the policies, each with a table under its name.
const POLICIES: &str = "policies";

/// Documentation of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyDoc {
    /// Path of the key: `sampling.top_p`, `reward.components[].kind`, `stage.algorithm.group_size`. Tables that stages
    /// share appear once.
    pub path: String,
    /// Type of the value.
    pub value_type: String,
    /// Default as written in a recipe; `None` for required keys and for defaults that depend on other settings.
    pub default: Option<String>,
    /// Description.
    pub description: String,
    /// Values of an enumeration, as written in a recipe, with their descriptions.
    pub values: Vec<(String, String)>,
}

/// Documentation of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDoc {
    /// Path of the table: `run`, `model.new`, `stage.algorithm`.
    pub path: String,
    /// Description.
    pub description: String,
    /// Keys of the table, without those of tables in it.
    pub keys: Vec<KeyDoc>,
}

/// Implementation of rollouts and training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// The engines in the process.
    Embedded,
    /// PyTorch ranks and vLLM servers.
    TorchAndVllm,
}

impl EngineKind {
    fn overrides(self, method: Method) -> &'static [&'static str] {
        match self {
            Self::Embedded => &[],
            // A student is compared with its teacher in the process.
            Self::TorchAndVllm if method == Method::Distill => &["rollout.engine=vllm"],
            Self::TorchAndVllm => &["trainer.backend=torch", "rollout.engine=vllm"],
        }
    }
}

/// Returns the documentation of all tables, in the order of the reference.
pub fn tables() -> Vec<TableDoc> {
    let schema = schema();
    let mut tables = Vec::new();
    if let Some(Value::Object(properties)) = schema.get("properties") {
        for (name, table) in properties {
            collect(name, table, &mut tables);
        }
    }
    tables
}

/// Returns the keys that a resolved recipe with a method contains, each once. Of the recipes of that method it is one
/// with many keys: groups run ahead, failed ones are replaced, and held-out tasks are evaluated. Its model and its tasks
/// are files.
///
/// # Errors
///
/// The recipe is valid for every method, which a test checks.
pub fn keys(method: Method, engine: EngineKind) -> Result<Vec<KeyDoc>, ConfigErrors> {
    // Reward models have no rollout engine and are trained by the embedded one.
    let engine = if method.trains_reward_model() { EngineKind::Embedded } else { engine };
    let config = Config::from_text("recipe.toml", &recipe(method), engine.overrides(method))?;
    let used = key_paths(&config);
    let documented = tables().into_iter().flat_map(|table| table.keys);
    Ok(documented.filter(|key| used.contains(&key.path)).collect())
}

/// Returns the paths of a resolved configuration's keys, in the form of [`KeyDoc::path`].
pub fn key_paths(config: &Config) -> BTreeSet<String> {
    let resolved: Table = config.to_toml().parse().unwrap_or_default();
    let mut used = BTreeSet::new();
    for (name, value) in &resolved {
        paths(name, value, &mut used);
    }
    used
}

fn recipe(method: Method) -> String {
    let (tasks, reward) = match method {
        // Credit per step needs an environment with steps.
        Method::Gigpo => {
            ("generator = \"guess\"\n[environment]\nkind = \"guess\"", "{ kind = \"environment\" }")
        }
        _ => ("path = \"train.jsonl\"\neval_path = \"test.jsonl\"", "{ kind = \"math\" }"),
    };
    let more = match method {
        Method::Distill => "teacher = { path = \"teacher\" }\nalgorithm.distillation.on_policy_share = 0.5\n",
        _ => "",
    };
    let schedule = if method.is_supervised() && more.is_empty() {
        ""
    } else {
        "[schedule]\nmax_staleness = 1\ncut_order = \"completion\"\nmax_failures = 4\n"
    };
    // Reward models generate nothing to evaluate.
    let evaluation = if method.trains_reward_model() {
        String::new()
    } else {
        format!("[reward]\ncomponents = [{reward}]\n[eval]\n")
    };
    format!(
        "{schedule}[model]\npath = \"folder\"\n[data]\n{tasks}\n{evaluation}\
         [[stage]]\nname = \"train\"\nmethod = \"{method}\"\nsteps = 1\ngroups_per_batch = 32\n{more}"
    )
}

/// Adds the paths of all keys in a value.
fn paths(path: &str, value: &toml::Value, found: &mut BTreeSet<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                paths(&child(path, key), value, found);
            }
        }
        toml::Value::Array(items) if items.iter().all(toml::Value::is_table) && !items.is_empty() => {
            let inner = if path == STAGES { path.to_owned() } else { format!("{path}[]") };
            if path != STAGES {
                found.insert(path.to_owned());
            }
            for item in items {
                paths(&inner, item, found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Path of a key in the table at `path`. Tables that stages and evaluation override have the path of the shared table.
fn child(path: &str, key: &str) -> String {
    if path == POLICIES {
        return format!("{POLICIES}.NAME");
    }
    let overrides = [STAGES, "eval"].contains(&path) && SHARED.contains(&key);
    if overrides { key.to_owned() } else { format!("{path}.{key}") }
}

/// Adds the documentation of a table and of the tables in it.
fn collect(path: &str, schema: &Value, tables: &mut Vec<TableDoc>) {
    let description = text(schema, "description");
    // Stages are an array of tables, or a table by name.
    let schema = match path {
        STAGES => &schema["anyOf"][0]["items"],
        POLICIES => &schema["additionalProperties"],
        _ => schema,
    };
    let path = if path == POLICIES { "policies.NAME" } else { path };
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    let mut table = TableDoc { path: path.to_owned(), description, keys: Vec::new() };
    let mut inner = Vec::new();
    for (key, schema) in properties {
        let path = child(path, key);
        if path == *key {
            continue; // an override of a shared table
        }
        if schema.get("properties").is_some() {
            collect(&path, schema, &mut inner);
            continue;
        }
        table.keys.push(key_doc(path.clone(), schema));
        if schema.get("items").is_some_and(|items| items.get("properties").is_some()) {
            collect(&format!("{path}[]"), &schema["items"], &mut inner);
        }
        // A table with a short form, such as `loss`.
        if let Some(table) = alternatives(schema).iter().find(|choice| choice.get("properties").is_some()) {
            collect(&path, table, &mut inner);
        }
    }
    tables.push(table);
    tables.append(&mut inner);
}

fn key_doc(path: String, schema: &Value) -> KeyDoc {
    let names =
        std::iter::once(schema).chain(alternatives(schema)).find(|choice| choice.get("enum").is_some());
    let names = names.unwrap_or(&Value::Null);
    let docs = &names[VALUE_DOCS]["docs"]["enumValues"];
    let values = names.get("enum").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let values = values.iter().enumerate().map(|(i, value)| {
        let doc = docs.get(i).and_then(Value::as_str).unwrap_or_default();
        (value.to_string(), doc.to_owned())
    });
    KeyDoc {
        path,
        value_type: value_type(schema),
        default: schema.get("default").map(Value::to_string),
        description: text(schema, "description"),
        values: values.collect(),
    }
}

fn alternatives(schema: &Value) -> &[Value] {
    schema.get("anyOf").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Type of a value in words.
fn value_type(schema: &Value) -> String {
    let choices = alternatives(schema);
    if !choices.is_empty() {
        return choices.iter().map(value_type).collect::<Vec<_>>().join(" or ");
    }
    match schema.get("type").and_then(Value::as_str).unwrap_or_default() {
        "array" => match schema["items"].get("properties") {
            Some(_) => "array of tables".to_owned(),
            None => format!("array of {}s", value_type(&schema["items"])),
        },
        "object" => "table".to_owned(),
        "" if schema.get("enum").is_some() => "string".to_owned(),
        other => other.to_owned(),
    }
}

fn text(schema: &Value, keyword: &str) -> String {
    schema.get(keyword).and_then(Value::as_str).unwrap_or_default().to_owned()
}
