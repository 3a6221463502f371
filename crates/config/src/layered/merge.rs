//! Merges layers.
//!
//! Tables merge key by key, at every depth. Any other value is replaced; arrays are never appended to. The exception is
//! the list of stages: an entry whose `name` exists is merged into that stage, any other is appended. Later layers may
//! also address stages as a table (`[stage.rl]`, `--set stage.rl.steps=20`); the name must then exist.
//!
//! TOML has no null, so a layer cannot delete a key of a lower one. Tables that describe one of several alternatives (a
//! model from a folder, or a new model) need that: a layer that selects another alternative drops the keys of the lower
//! layers.

use super::suggest;
use super::tree::{Entry, Node, Table, Value};
use crate::problem::{Code, Problem};

/// The array of tables that merges by `name`.
pub const STAGES: &str = "stage";

/// Tables with a short form, the name of their kind: `loss = "cispo"` is `loss = { kind = "cispo" }`.
const NAMED: [&str; 2] = ["loss", "advantage"];

/// A table that describes one of several alternatives.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// Name of the table.
    pub table: &'static str,
    /// Mutually exclusive keys.
    pub keys: &'static [&'static str],
    /// Keys whose value also selects an alternative.
    pub by_value: &'static [&'static str],
    /// Alternative of a table without any of the keys, if there is one.
    pub default: Option<&'static str>,
    /// Keys that all alternatives have. They stay when another one is selected.
    pub common: fn() -> Vec<&'static str>,
}

impl Choice {
    fn changes(&self, base: &Table, over: &Table) -> bool {
        let chosen = |table: &Table| -> Vec<&str> {
            self.keys.iter().copied().filter(|key| table.get(key).is_some()).collect()
        };
        let (mut before, now) = (chosen(base), chosen(over));
        if before.is_empty() && self.default.is_some() {
            before.clone_from(&now);
        }
        if before.is_empty() || now.is_empty() {
            return false;
        }
        let value = |table: &Table, key: &str| table.string(key).or(self.default).map(str::to_owned);
        let other_value = |key: &&str| self.by_value.contains(key) && value(base, key) != value(over, key);
        before != now || now.iter().any(other_value)
    }
}

/// Merges `over` into `base`.
pub fn merge(base: &mut Table, over: Table, choices: &[Choice], problems: &mut Vec<Problem>) {
    for entry in over.entries {
        if entry.key == STAGES {
            merge_stages(base, entry, choices, problems);
        } else {
            merge_entry(base, entry, choices);
        }
    }
}

/// Merges the table `over`, whose name is `name`, into `base`.
pub fn merge_section(base: &mut Table, over: Table, name: &str, choices: &[Choice]) {
    if let Some(choice) = choices.iter().find(|choice| choice.table == name && choice.changes(base, &over)) {
        let common = (choice.common)();
        base.entries.retain(|entry| common.contains(&entry.key.as_str()));
    }
    for entry in over.entries {
        merge_entry(base, entry, choices);
    }
}

fn merge_entry(base: &mut Table, entry: Entry, choices: &[Choice]) {
    match base.entry_mut(&entry.key) {
        None => base.entries.push(entry),
        Some(old) => {
            expand_kind(&entry.key, &mut old.node);
            old.key_origin = entry.key_origin;
            match (&mut old.node.value, entry.node.value) {
                (Value::Table(old_table), Value::Table(over)) => {
                    old.node.origin = entry.node.origin;
                    merge_section(old_table, over, &entry.key, choices);
                }
                (_, value) => old.node = Node { value, origin: entry.node.origin },
            }
        }
    }
}

/// Expands the short form of a table, the name of its kind.
fn expand_kind(key: &str, node: &mut Node) {
    if NAMED.contains(&key) && matches!(node.value, Value::String(_)) {
        let kind = Entry { key: "kind".to_owned(), key_origin: node.origin, node: node.clone() };
        node.value = Value::Table(Table { entries: vec![kind] });
    }
}

fn merge_stages(base: &mut Table, entry: Entry, choices: &[Choice], problems: &mut Vec<Problem>) {
    let Some(old) = base.entry_mut(STAGES) else {
        base.entries.push(entry);
        return;
    };
    let Value::Array(stages) = &mut old.node.value else {
        old.node = entry.node;
        return;
    };
    match entry.node.value {
        Value::Array(items) => {
            for item in items {
                let existing = item.as_table().and_then(|t| t.string("name")).and_then(|n| find(stages, n));
                match (existing, item.value) {
                    (Some(i), Value::Table(over)) => merge_stage(&mut stages[i], over, choices),
                    (_, value) => stages.push(Node { value, origin: item.origin }),
                }
            }
        }
        Value::Table(by_name) => {
            for named in by_name.entries {
                match (find(stages, &named.key), named.node.value) {
                    (Some(i), Value::Table(over)) => merge_stage(&mut stages[i], over, choices),
                    (Some(_), value) => problems.push(
                        Problem::new(
                            Code::WrongType,
                            format!("stage `{}` is a table, not {}", named.key, value.kind()),
                        )
                        .at(named.node.origin, "")
                        .hint(format!("set one of its keys: `stage.{}.steps=20`", named.key)),
                    ),
                    (None, _) => {
                        let names: Vec<&str> =
                            stages.iter().filter_map(|s| s.as_table()?.string("name")).collect();
                        problems.push(
                            Problem::new(Code::UnknownStage, format!("there is no stage `{}`", named.key))
                                .at(named.key_origin, suggest::did_you_mean(&named.key, &names))
                                .hint(format!("the stages are {}", suggest::list(&names))),
                        );
                    }
                }
            }
        }
        value => old.node = Node { value, origin: entry.node.origin },
    }
}

fn find(stages: &[Node], name: &str) -> Option<usize> {
    stages.iter().position(|s| s.as_table().and_then(|t| t.string("name")) == Some(name))
}

fn merge_stage(stage: &mut Node, over: Table, choices: &[Choice]) {
    if let Value::Table(table) = &mut stage.value {
        merge_section(table, over, STAGES, choices);
    }
}
