//! How a later layer changes an earlier one.
//!
//! Tables merge key by key, at every depth. Anything else replaces what was there: an array is never appended to.
//! The one exception is the list of stages: an entry whose `name` already exists merges into that stage, any other is
//! appended. A layer above the first may also address stages as a table (`[stage.rl]`, `--set stage.rl.steps=20`);
//! then the name has to exist.
//!
//! TOML has no null, so a later layer cannot delete a key. It needs to where a table describes one of several things (a
//! model that is read from a folder or made from nothing): there, a layer that chooses another one drops everything
//! that the layers below say about the first.

use super::suggest;
use super::tree::{Entry, Node, Table, Value};
use crate::problem::{Code, Problem};

/// The key whose array of tables merges by `name`.
pub const STAGES: &str = "stage";

/// Tables that a name may stand for: `loss = "cispo"` is `loss = { kind = "cispo" }`.
const NAMED: [&str; 2] = ["loss", "advantage"];

/// A table that describes one of several things.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The table's name.
    pub table: &'static str,
    /// The keys that exclude each other.
    pub keys: &'static [&'static str],
    /// The keys among them whose value chooses, too: another value is another thing.
    pub by_value: &'static [&'static str],
}

impl Choice {
    fn changes(&self, base: &Table, over: &Table) -> bool {
        let chosen = |table: &Table| -> Vec<&str> {
            self.keys.iter().copied().filter(|key| table.get(key).is_some()).collect()
        };
        let (before, now) = (chosen(base), chosen(over));
        if before.is_empty() || now.is_empty() {
            return false;
        }
        let other_value = |key: &&str| self.by_value.contains(key) && base.string(key) != over.string(key);
        before != now || now.iter().any(other_value)
    }
}

/// Lays `over` on `base`.
pub fn merge(base: &mut Table, over: Table, choices: &[Choice], problems: &mut Vec<Problem>) {
    for entry in over.entries {
        if entry.key == STAGES {
            merge_stages(base, entry, choices, problems);
        } else {
            merge_entry(base, entry, choices);
        }
    }
}

/// Lays the table `over`, called `name`, on `base`.
pub fn merge_section(base: &mut Table, over: Table, name: &str, choices: &[Choice]) {
    if choices.iter().any(|choice| choice.table == name && choice.changes(base, &over)) {
        base.entries.clear();
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
                        .hint(format!("name the key that is to change: `stage.{}.steps=20`", named.key)),
                    ),
                    (None, _) => {
                        let names: Vec<&str> =
                            stages.iter().filter_map(|s| s.as_table()?.string("name")).collect();
                        problems.push(
                            Problem::new(Code::UnknownStage, format!("no stage is named `{}`", named.key))
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
