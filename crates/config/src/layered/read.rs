//! Reads a settings type from a tree and reports all errors with their origins.
//!
//! serde stops at the first error. To find the others, the reader removes the offending value from a copy of the tree and
//! reads again until there is no error or nothing left to remove. Keys that are missing because they were removed are not
//! reported.

use rloom_core::ErrorText;
use serde::de::DeserializeOwned;

use super::de::{Fault, NodeReader, ReadError};
use super::renames::Renames;
use super::source::{Origin, Sources};
use super::suggest;
use super::tree::{Node, Step, Value, dotted};
use crate::problem::{Code, Problem};

/// The keys of the sections of a configuration, to suggest the section of a misplaced key.
pub type Sections<'a> = [(&'a str, &'a [&'a str])];

/// Context of the value that is read.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The texts that were read.
    pub sources: &'a Sources,
    /// Path of the value in messages: `stage.rl.algorithm`; empty at the root.
    pub path: &'a str,
    /// The tables that were merged into the value, lowest precedence first. Messages use the path of the table that set
    /// a key.
    pub layers: &'a [Layer],
    /// Keys of the table that belong to another type.
    pub also: &'a [&'a str],
    /// The keys of other sections.
    pub sections: &'a Sections<'a>,
    /// Former names of settings.
    pub renames: Renames<'a>,
}

/// One of the tables of a merged table.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Path of the table.
    pub path: String,
    /// Content of the table.
    pub node: Node,
}

impl<'a> Context<'a> {
    /// Path of the table that set the value at `steps` with the given origin.
    fn prefix(&self, steps: &[Step], origin: Origin) -> &'a str {
        let sets = |layer: &&Layer| layer.node.at(steps).is_some_and(|node| node.origin == origin);
        self.layers.iter().rev().find(sets).map_or(self.path, |layer| &layer.path)
    }
}

/// Reads a `T`. Returns `None`, with at least one more problem, if the tree does not contain a valid one.
pub fn read<T: DeserializeOwned>(
    node: &Node,
    context: Context<'_>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let mut rest = node.clone();
    let mut removed: Vec<Vec<Step>> = Vec::new();
    loop {
        let error = match T::deserialize(NodeReader { node: &rest, sources: context.sources }) {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let steps = path_of(&error, &rest);
        if !follows_from(&error.fault, &steps, &removed) {
            problems.push(describe(&error, &steps, &rest, context));
        }
        if let Fault::UnknownKey { key, known } = &error.fault {
            // A misspelt or renamed key is not reported as missing as well.
            let path = join(context.path, &dotted(&steps));
            let renamed = context.renames.key(&path, known).map(|(new, _)| new);
            let meant = renamed.or_else(|| suggest::nearest(key, known));
            if let (Some(meant), Some((_, table))) = (meant, steps.split_last()) {
                removed.push([table, &[Step::Key(meant.to_owned())]].concat());
            }
        }
        if !rest.remove(&steps) {
            return None;
        }
        removed.push(steps);
    }
}

/// True if an error is a consequence of removed values.
fn follows_from(fault: &Fault, steps: &[Step], removed: &[Vec<Step>]) -> bool {
    match fault {
        Fault::MissingKey { key } => {
            removed.iter().any(|r| r.split_last() == Some((&Step::Key((*key).to_owned()), steps)))
        }
        Fault::WrongType { .. } | Fault::BadValue { .. } => {
            removed.iter().any(|r| r.len() > steps.len() && r.starts_with(steps))
        }
        _ => false,
    }
}

/// The path to the offending value. serde reports an unknown key at the table that contains it.
fn path_of(error: &ReadError, root: &Node) -> Vec<Step> {
    let mut steps = error.path.clone();
    if let Fault::UnknownKey { key, .. } = &error.fault {
        let table = root.at(&steps).and_then(Node::as_table);
        if table.is_some_and(|t| t.get(key).is_some()) {
            steps.push(Step::Key(key.clone()));
        }
    }
    steps
}

fn describe(error: &ReadError, steps: &[Step], root: &Node, context: Context<'_>) -> Problem {
    let node = root.at(steps).unwrap_or(root);
    let name = join(context.prefix(steps, node.origin), &dotted(steps));
    match &error.fault {
        Fault::UnknownKey { key, known } => {
            let known = [known, context.also].concat();
            unknown_key(key, &known, &name, key_origin(steps, root), context)
        }
        Fault::MissingKey { key } => {
            let whole = if name.is_empty() { (*key).to_owned() } else { format!("{name}.{key}") };
            Problem::new(Code::MissingKey, format!("`{whole}` is missing"))
                .at(node.origin, format!("has no `{key}`"))
        }
        Fault::UnknownName { given, known } => {
            if let Some(new) = context.renames.value(&name, given, known) {
                return Problem::new(
                    Code::RenamedValue,
                    format!("`{name} = \"{given}\"` is now `\"{new}\"`"),
                )
                .at(node.origin, format!("write \"{new}\""));
            }
            let problem = Problem::new(Code::UnknownName, format!("`{name}` cannot be \"{given}\""))
                .at(node.origin, suggest::did_you_mean(given, known));
            problem.hint(format!("use one of {}", suggest::list(known)))
        }
        Fault::WrongType { expected } | Fault::BadValue { expected } => {
            wrong_value(error, expected, &name, node, context.sources)
        }
        Fault::Custom(message) => custom(&message.clone().into(), &name, node),
    }
}

/// Formats `prefix.inner`; either may be empty.
pub fn join(prefix: &str, inner: &str) -> String {
    let separator = if prefix.is_empty() || inner.is_empty() || inner.starts_with('[') { "" } else { "." };
    format!("{prefix}{separator}{inner}")
}

/// An error with a message of its type. If it quotes a key of the table, the key is marked.
pub(crate) fn custom(error: &ErrorText, name: &str, node: &Node) -> Problem {
    let ErrorText { message, hint } = error;
    if let Some(problem) = unread_by_kind(message, name, node) {
        return problem;
    }
    let text = if name.is_empty() { message.to_owned() } else { format!("`{name}`: {message}") };
    let entry =
        node.as_table().and_then(|t| message.split('`').skip(1).step_by(2).find_map(|key| t.entry(key)));
    let problem = match entry {
        Some(entry) => Problem::new(Code::Conflict, text).at(entry.key_origin, ""),
        None => Problem::new(Code::Conflict, text).at(node.origin, ""),
    };
    hint.iter().fold(problem, Problem::hint)
}

/// A key that the selected kind of a flat table does not read. The message is that of serde, followed by the kind in
/// parentheses.
fn unread_by_kind(message: &str, name: &str, node: &Node) -> Option<Problem> {
    let (key, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let entry = node.as_table()?.entry(key)?;
    let (expected, kind) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let problem = Problem::new(Code::Unread, format!("nothing reads `{}`", join(name, key)));
    let keys = kind.trim_end_matches(')');
    let label = if keys.is_empty() { String::new() } else { format!("not one of the {keys}") };
    let problem = problem.at(entry.key_origin, label);
    Some(match expected.strip_prefix(", expected ") {
        Some(keys) => problem.hint(format!("they are {}", keys.trim_start_matches("one of "))),
        None => problem.hint("remove it; there are no keys"),
    })
}

fn key_origin(steps: &[Step], root: &Node) -> Origin {
    let parent = steps.split_last().and_then(|(last, parents)| match last {
        Step::Key(key) => root.at(parents)?.as_table()?.entry(key),
        Step::Index(_) => None,
    });
    parent.map_or(root.origin, |entry| entry.key_origin)
}

fn unknown_key(key: &str, known: &[&str], name: &str, origin: Origin, context: Context<'_>) -> Problem {
    let section = name.strip_suffix(key).unwrap_or(name).trim_end_matches('.');
    let place = if section.is_empty() { String::new() } else { format!(" in `{section}`") };
    if let Some((new, path)) = context.renames.key(name, known) {
        return Problem::new(Code::RenamedKey, format!("`{name}` is now `{path}`"))
            .at(origin, format!("rename it to `{new}`"));
    }
    let problem = Problem::new(Code::UnknownKey, format!("unknown key `{key}`{place}"));
    if let Some(near) = suggest::nearest(key, known) {
        return problem.at(origin, format!("did you mean `{near}`?"));
    }
    let last = section.rsplit('.').next().unwrap_or(section);
    if let Some((ours, source)) = suggest::translate(key, last, known, context.sections) {
        return problem.at(origin, format!("{source}; use `{ours}`"));
    }
    let elsewhere: Vec<&str> = context
        .sections
        .iter()
        .filter(|(name, keys)| *name != last && keys.contains(&key))
        .map(|(name, _)| *name)
        .collect();
    if !elsewhere.is_empty() {
        return problem.at(origin, format!("`{key}` belongs to {}", suggest::list(&elsewhere)));
    }
    let keys = match known {
        [] => "remove it: this table has no keys".to_owned(),
        known => format!("the keys of this table are {}", suggest::list(known)),
    };
    problem.at(origin, "").hint(keys)
}

fn wrong_value(error: &ReadError, expected: &str, name: &str, node: &Node, sources: &Sources) -> Problem {
    let expected = plain(expected);
    let written = sources.text(node.origin);
    let given = match &node.value {
        Value::Array(_) | Value::Table(_) => node.value.kind(),
        _ if written.len() > 40 || written.contains('\n') => node.value.kind(),
        _ => written,
    };
    let problem = match (&error.fault, &node.value) {
        (Fault::BadValue { .. }, Value::Integer(i)) => {
            Problem::new(Code::OutOfRange, format!("`{name}` cannot be {i}"))
                .at(node.origin, format!("must be {expected}"))
        }
        _ => Problem::new(Code::WrongType, format!("`{name}` must be {expected}, not {given}"))
            .at(node.origin, ""),
    };
    match &node.value {
        Value::String(text) if expected.contains("number") && text.parse::<f64>().is_ok() => {
            problem.hint("remove the quotes")
        }
        Value::String(text) if expected.contains("`true`") && matches!(text.as_str(), "true" | "false") => {
            problem.hint("remove the quotes")
        }
        Value::Float(x) if expected.contains("whole number") && x.fract() == 0.0 && x.abs() < 1e15 => {
            problem.hint(format!("write {x:.0}"))
        }
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) if expected.contains("string") => {
            problem.hint("put it in quotes")
        }
        Value::Array(_) | Value::Table(_) => problem,
        _ if expected == "an array" => problem.hint(format!("write `[{given}]` for a list with one entry")),
        _ => problem,
    }
}

/// Translates serde's names of types.
fn plain(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or larger",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "path string" | "a string" | "a borrowed string" | "identifier" => "a string",
        "a boolean" => "`true` or `false`",
        "a map" | "a table" => "a table",
        "unit" => "nothing",
        _ if expected.starts_with("struct ") || expected.starts_with("internally tagged") => "a table",
        _ if expected.starts_with("a nonzero ") => "a whole number, 1 or larger",
        _ if expected.starts_with("a sequence") || expected.starts_with("an array") => "an array",
        _ => expected,
    }
}
