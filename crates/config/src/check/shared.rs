//! Tables at the root that stages share: those that nothing reads, and keys that every reader has overridden before.

use crate::compose::{Draft, SHARED};
use crate::layered::suggest;
use crate::layered::tree::{Entry, Node, Table, Value};
use crate::problem::{Code, Problem};

/// Reports shared settings without an effect.
pub(super) fn check(draft: &Draft, problems: &mut Vec<Problem>) {
    unread_tables(draft, problems);
    for name in SHARED {
        let readers = readers(draft, name);
        let table = draft.root.node.as_table().and_then(|root| root.table(name));
        if let (Some(table), false) = (table, readers.is_empty()) {
            overridden_keys(table, &mut vec![name], &readers, problems);
        }
    }
}

/// Reports shared tables that neither a stage nor evaluation reads.
fn unread_tables(draft: &Draft, problems: &mut Vec<Problem>) {
    let samples = draft.stages.iter().any(|s| s.rollout.is_some());
    for name in SHARED {
        let read = match name {
            "sampling" | "schedule" | "domains" => samples,
            "reward" | "rollout" => samples || draft.eval.is_some(),
            "validation" => draft.stages.iter().any(|stage| stage.validation.is_some()),
            _ => true,
        };
        if let (false, Some(origin)) = (read, draft.root.key_origin(name)) {
            let reason = match name {
                "validation" => "no stage learns from rows: all sample",
                _ => "no stage samples: all train on demonstrations",
            };
            let problem = Problem::new(Code::Unread, format!("nothing reads `{name}`")).at(origin, reason);
            problems.push(if name == "sampling" && draft.eval.is_some() {
                problem.hint("the sampling of evaluation is set in `[eval.sampling]`")
            } else {
                problem
            });
        }
    }
}

/// A merged table, with the path of the stage's or evaluation's own table.
struct Reader<'a> {
    path: &'a str,
    node: &'a Node,
}

/// The merged tables of stages and evaluation that read the shared table `name`.
fn readers<'a>(draft: &'a Draft, name: &str) -> Vec<Reader<'a>> {
    /// The path and node of a section.
    macro_rules! reader {
        ($section:expr) => {
            Reader { path: &$section.path, node: &$section.node }
        };
    }
    let mut found = Vec::new();
    for stage in &draft.stages {
        match (name, &stage.rollout) {
            ("data", _) => found.push(reader!(stage.data)),
            ("environment", _) => found.push(reader!(stage.environment)),
            ("trainer", _) => found.extend([reader!(stage.optimizer), reader!(stage.trainer)]),
            ("sampling", Some(rollout)) => found.push(reader!(rollout.sampling)),
            ("reward", Some(rollout)) => found.push(reader!(rollout.reward)),
            ("rollout", Some(rollout)) => found.push(reader!(rollout.engine)),
            ("schedule", Some(rollout)) => found.push(reader!(rollout.schedule)),
            ("domains", Some(rollout)) => found.push(reader!(rollout.domains)),
            _ => {}
        }
        if let ("validation", Some(section)) = (name, &stage.validation) {
            found.push(reader!(section));
        }
    }
    if let Some(eval) = &draft.eval {
        match name {
            "data" => found.push(reader!(eval.data)),
            "environment" => found.push(reader!(eval.environment)),
            "sampling" => found.push(reader!(eval.sampling)),
            "reward" => found.push(reader!(eval.reward)),
            "rollout" => found.push(reader!(eval.rollout)),
            _ => {}
        }
    }
    found
}

/// Reports the keys of `table`, at `path`, that no reader takes from there.
fn overridden_keys<'a>(
    table: &'a Table,
    path: &mut Vec<&'a str>,
    readers: &[Reader<'_>],
    problems: &mut Vec<Problem>,
) {
    for entry in &table.entries {
        path.push(&entry.key);
        if let Value::Table(inner) = &entry.node.value {
            overridden_keys(inner, path, readers, problems);
        } else if let Some(problem) = overridden_key(entry, path, readers) {
            problems.push(problem);
        }
        path.pop();
    }
}

fn overridden_key(entry: &Entry, path: &[&str], readers: &[Reader<'_>]) -> Option<Problem> {
    let local = &path[1..];
    let read = |reader: &Reader<'_>| reader.node.as_table().and_then(|table| table.find(local)).cloned();
    let shared = entry.node.origin;
    // A later file or `--set` may override the shared value.
    if readers
        .iter()
        .filter_map(read)
        .any(|own| own.node.origin == shared || own.node.origin.source > shared.source)
    {
        return None;
    }
    let overriding: Vec<(String, Entry)> = readers
        .iter()
        .filter_map(|reader| Some((format!("{}.{}", reader.path, local.join(".")), read(reader)?)))
        .collect();
    let problem = Problem::new(Code::Unread, format!("nothing reads `{}`", path.join(".")))
        .at(entry.key_origin, "all stages have their own value");
    Some(match overriding.as_slice() {
        [] => problem,
        [(name, own), ..] => {
            let names: Vec<&str> = overriding.iter().map(|(name, _)| name.as_str()).collect();
            problem.at(own.key_origin, format!("`{name}`")).hint(format!("set {}", suggest::list(&names)))
        }
    })
}
