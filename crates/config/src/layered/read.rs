//! A settings type from a tree, with all mistakes and their places.
//!
//! serde stops at the first error. To find the others, the reader cuts the offending value out of a copy of the tree
//! and reads again, until nothing is wrong or nothing is left to cut; a key that is missing because it was cut is not
//! reported.

use serde::de::DeserializeOwned;

use super::de::{Fault, NodeReader, ReadError};
use super::source::{Origin, Sources};
use super::suggest;
use super::tree::{Node, Step, Value, dotted};
use crate::problem::{Code, Problem};

/// The keys of the sections of a configuration, to say where a misplaced key belongs.
pub type Sections<'a> = [(&'a str, &'a [&'a str])];

/// What surrounds the value that is read.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The texts.
    pub sources: &'a Sources,
    /// The path to the value in the configuration, as messages show it: `stage.rl.algorithm`; empty at the root.
    pub path: &'a str,
    /// The tables that were merged into the value, lowest first. What one of them gave is called by its path.
    pub layers: &'a [Layer],
    /// Keys that the table has beside the type's own.
    pub also: &'a [&'a str],
    /// Where else a key may belong.
    pub sections: &'a Sections<'a>,
}

/// A table that went into a merged one.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Its path.
    pub path: String,
    /// What was written there.
    pub node: Node,
}

impl<'a> Context<'a> {
    /// The path in front of a value at `steps` whose place is `origin`.
    fn prefix(&self, steps: &[Step], origin: Origin) -> &'a str {
        let gave = |layer: &&Layer| layer.node.at(steps).is_some_and(|node| node.origin == origin);
        self.layers.iter().rev().find(gave).map_or(self.path, |layer| &layer.path)
    }
}

/// Reads a `T`. `None` when the tree cannot give one; then there is at least one problem more.
pub fn read<T: DeserializeOwned>(
    node: &Node,
    context: Context<'_>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let mut rest = node.clone();
    let mut cut: Vec<Vec<Step>> = Vec::new();
    loop {
        let error = match T::deserialize(NodeReader { node: &rest, sources: context.sources }) {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let steps = place(&error, &rest);
        if !follows_from(&error.fault, &steps, &cut) {
            problems.push(describe(&error, &steps, &rest, context));
        }
        if let Fault::UnknownKey { key, known } = &error.fault {
            // A misspelt key is reported once: not as a missing one, too.
            if let (Some(near), Some((_, table))) = (suggest::nearest(key, known), steps.split_last()) {
                cut.push([table, &[Step::Key(near.to_owned())]].concat());
            }
        }
        if !rest.remove(&steps) {
            return None;
        }
        cut.push(steps);
    }
}

/// Whether an error is there only because something was cut out.
fn follows_from(fault: &Fault, steps: &[Step], cut: &[Vec<Step>]) -> bool {
    match fault {
        Fault::MissingKey { key } => {
            cut.iter().any(|c| c.split_last() == Some((&Step::Key((*key).to_owned()), steps)))
        }
        Fault::WrongType { .. } | Fault::BadValue { .. } => {
            cut.iter().any(|c| c.len() > steps.len() && c.starts_with(steps))
        }
        _ => false,
    }
}

/// The path to what the error is about. serde reports an unknown key at the table that holds it.
fn place(error: &ReadError, root: &Node) -> Vec<Step> {
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
            let problem = Problem::new(Code::UnknownName, format!("`{name}` cannot be \"{given}\""))
                .at(node.origin, suggest::did_you_mean(given, known));
            problem.hint(format!("it is one of {}", suggest::list(known)))
        }
        Fault::WrongType { expected } | Fault::BadValue { expected } => {
            wrong_value(error, expected, &name, node, context.sources)
        }
        Fault::Custom(message) => custom(message, &name, node),
    }
}

/// `prefix.inner`, where either may be empty.
pub fn join(prefix: &str, inner: &str) -> String {
    let separator = if prefix.is_empty() || inner.is_empty() || inner.starts_with('[') { "" } else { "." };
    format!("{prefix}{separator}{inner}")
}

/// An error in a type's own words. Where it quotes a key of the table that it is about, the key is pointed at.
pub(crate) fn custom(message: &str, name: &str, node: &Node) -> Problem {
    let (message, hint) = split_hint(message);
    if let Some(problem) = not_of_this_kind(message, name, node) {
        return problem;
    }
    let text = if name.is_empty() { message.to_owned() } else { format!("`{name}`: {message}") };
    let entry =
        node.as_table().and_then(|t| message.split('`').skip(1).step_by(2).find_map(|key| t.entry(key)));
    let problem = match entry {
        Some(entry) => Problem::new(Code::Conflict, text).at(entry.key_origin, ""),
        None => Problem::new(Code::Conflict, text).at(node.origin, ""),
    };
    hint.into_iter().fold(problem, Problem::hint)
}

/// A flat table of one of several kinds refuses another kind's key in serde's words, with the kind in brackets behind.
fn not_of_this_kind(message: &str, name: &str, node: &Node) -> Option<Problem> {
    let (key, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let entry = node.as_table()?.entry(key)?;
    let (expected, kind) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let problem = Problem::new(Code::Unread, format!("nothing reads `{}`", join(name, key)));
    let keys = kind.trim_end_matches(')');
    let label = if keys.is_empty() { String::new() } else { format!("not among the {keys}") };
    let problem = problem.at(entry.key_origin, label);
    Some(match expected.strip_prefix(", expected ") {
        Some(keys) => problem.hint(format!("those are {}", keys.trim_start_matches("one of "))),
        None => problem.hint("there are none"),
    })
}

/// Splits `…\nhint: …`, the form of the workspace's errors.
pub fn split_hint(message: &str) -> (&str, Option<&str>) {
    match message.split_once("\nhint: ") {
        Some((message, hint)) => (message, Some(hint)),
        None => (message, None),
    }
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
    let problem = Problem::new(Code::UnknownKey, format!("unknown key `{key}`{place}"));
    if let Some(new) = renamed(name) {
        return problem.at(origin, format!("it has moved to `{new}`"));
    }
    if let Some(near) = suggest::nearest(key, known) {
        return problem.at(origin, format!("did you mean `{near}`?"));
    }
    let last = section.rsplit('.').next().unwrap_or(section);
    if let Some((here, whose)) = suggest::translate(key, last, known, context.sections) {
        return problem.at(origin, format!("{whose}; here it is `{here}`"));
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
        [] => "there are no keys here".to_owned(),
        known => format!("the keys here are {}", suggest::list(known)),
    };
    problem.at(origin, "").hint(keys)
}

/// The present name of an algorithm's key that has moved.
fn renamed(name: &str) -> Option<&'static str> {
    let (_, key) = name.split_once(".algorithm.")?;
    rloom_algo::RENAMED_KEYS.iter().find(|(old, _)| *old == key).map(|(_, new)| *new)
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
                .at(node.origin, format!("takes {expected}"))
        }
        _ => Problem::new(Code::WrongType, format!("`{name}` takes {expected}, not {given}"))
            .at(node.origin, ""),
    };
    match &node.value {
        Value::String(text) if expected.contains("number") && text.parse::<f64>().is_ok() => {
            problem.hint("leave out the quotes")
        }
        Value::String(text) if expected.contains("`true`") && matches!(text.as_str(), "true" | "false") => {
            problem.hint("leave out the quotes")
        }
        Value::Float(x) if expected.contains("whole number") && x.fract() == 0.0 && x.abs() < 1e15 => {
            problem.hint(format!("write {x:.0}"))
        }
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) if expected.contains("string") => {
            problem.hint("put it in quotes")
        }
        Value::Array(_) | Value::Table(_) => problem,
        _ if expected == "an array" => problem.hint(format!("a list of one is written `[{given}]`")),
        _ => problem,
    }
}

/// serde's names of types in the words of a TOML file.
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
