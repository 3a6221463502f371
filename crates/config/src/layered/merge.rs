//! How a later layer changes an earlier one.
//!
//! Tables merge key by key, at every depth. Anything else replaces what was there: an array is never appended to.
//! The one exception is the list of stages: an entry whose `name` already exists merges into that stage, any other is
//! appended. A layer above the first may also address stages as a table (`[stage.rl]`, `--set stage.rl.steps=20`);
//! then the name has to exist.
//!
//! TOML has no null, so a later layer cannot delete a key. It needs to where two keys exclude each other (a model that
//! is read from a folder or made from nothing): there, naming one drops the other from the layers below.

use super::suggest;
use super::tree::{Entry, Node, Table, Value};
use crate::problem::{Code, Problem};

/// The key whose array of tables merges by `name`.
pub const STAGES: &str = "stage";

/// Keys of a table that exclude each other, by the name of the table.
pub type Exclusive = [(&'static str, &'static [&'static str])];

/// Lays `over` on `base`.
pub fn merge(base: &mut Table, over: Table, exclusive: &Exclusive, problems: &mut Vec<Problem>) {
    for entry in over.entries {
        if entry.key == STAGES {
            merge_stages(base, entry, exclusive, problems);
        } else {
            merge_entry(base, entry, exclusive);
        }
    }
}

/// Lays the table `over`, called `name`, on `base`.
pub fn merge_section(base: &mut Table, over: Table, name: &str, exclusive: &Exclusive) {
    for (_, keys) in exclusive.iter().filter(|(table, _)| *table == name) {
        if keys.iter().any(|key| over.get(key).is_some()) {
            base.entries.retain(|e| !keys.contains(&e.key.as_str()) || over.get(&e.key).is_some());
        }
    }
    for entry in over.entries {
        merge_entry(base, entry, exclusive);
    }
}

fn merge_entry(base: &mut Table, entry: Entry, exclusive: &Exclusive) {
    match base.entry_mut(&entry.key) {
        None => base.entries.push(entry),
        Some(old) => match (&mut old.node.value, entry.node.value) {
            (Value::Table(old_table), Value::Table(over)) => {
                old.key_origin = entry.key_origin;
                old.node.origin = entry.node.origin;
                merge_section(old_table, over, &entry.key, exclusive);
            }
            (_, value) => {
                old.key_origin = entry.key_origin;
                old.node = Node { value, origin: entry.node.origin };
            }
        },
    }
}

fn merge_stages(base: &mut Table, entry: Entry, exclusive: &Exclusive, problems: &mut Vec<Problem>) {
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
                    (Some(i), Value::Table(over)) => merge_stage(&mut stages[i], over, exclusive),
                    (_, value) => stages.push(Node { value, origin: item.origin }),
                }
            }
        }
        Value::Table(by_name) => {
            for named in by_name.entries {
                match (find(stages, &named.key), named.node.value) {
                    (Some(i), Value::Table(over)) => merge_stage(&mut stages[i], over, exclusive),
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

fn merge_stage(stage: &mut Node, over: Table, exclusive: &Exclusive) {
    if let Value::Table(table) = &mut stage.value {
        merge_section(table, over, STAGES, exclusive);
    }
}
