//! `--set path.to.key=value`.
//!
//! The text is one line of TOML, dotted key and all, so spans point into the argument. A value that is not TOML is a
//! string without its quotes: `--set run.name=first` needs no shell quoting.

use super::parse::parse;
use super::source::{Origin, Source, SourceKind, Sources};
use super::tree::{Node, Table, Value};
use crate::problem::{Code, Problem};

/// Adds an override to the sources and parses it.
pub fn parse_override(text: &str, sources: &mut Sources, problems: &mut Vec<Problem>) -> Table {
    let source = sources.add(Source { kind: SourceKind::Override, text: text.to_owned() });
    let whole = Origin { source, start: 0, end: text.len() };
    let Some((key, value)) = text.split_once('=') else {
        problems.push(
            Problem::new(Code::Syntax, "an override needs a `=`")
                .at(whole, "")
                .hint("write `--set section.key=value`, for example `--set stage.rl.steps=20`"),
        );
        return Table::default();
    };
    let value_start = key.len() + 1 + (value.len() - value.trim_start().len());
    let bare = value.trim();
    if bare.is_empty() {
        problems.push(
            Problem::new(Code::Syntax, format!("`{}` is given no value", key.trim()))
                .at(whole, "")
                .hint("an empty text is written `''` (quote it for the shell, too)"),
        );
        return Table::default();
    }
    let mut found = Vec::new();
    let table = parse(text, source, &mut found);
    if found.is_empty() && !text.contains('\n') {
        return table;
    }
    if bare.starts_with(['"', '\'', '[', '{']) {
        problems.append(&mut found);
        return Table::default();
    }
    // The key alone, with a value that is replaced: its spans hold in the argument as well.
    found.clear();
    let mut table = parse(&format!("{key}=0"), source, &mut found);
    let string = Value::String(bare.to_owned());
    fill(
        &mut table,
        &Node { value: string, origin: Origin { source, start: value_start, end: value_start + bare.len() } },
    );
    problems.append(&mut found);
    table
}

/// Replaces the one leaf by `value`.
fn fill(table: &mut Table, value: &Node) {
    for entry in &mut table.entries {
        match &mut entry.node.value {
            Value::Table(inner) => fill(inner, value),
            _ => entry.node = value.clone(),
        }
    }
}
