//! `--set path.to.key=value`.
//!
//! The text is parsed as one line of TOML with a dotted key, so spans point into the argument. A value that is not valid
//! TOML is taken as a string without quotes: `--set run.name=first` needs no shell quoting.

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
            Problem::new(Code::Syntax, "an override needs an `=`")
                .at(whole, "")
                .hint("write `--set section.key=value`, for example `--set stage.rl.steps=20`"),
        );
        return Table::default();
    };
    let value_start = key.len() + 1 + (value.len() - value.trim_start().len());
    let bare = value.trim();
    if bare.is_empty() {
        problems.push(
            Problem::new(Code::Syntax, format!("`{}` has no value", key.trim()))
                .at(whole, "")
                .hint("an empty string is `''` (quoted for the shell as well)"),
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
    // The spans of the key are the same with any value.
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

/// Replaces the only leaf by `value`.
fn fill(table: &mut Table, value: &Node) {
    for entry in &mut table.entries {
        match &mut entry.node.value {
            Value::Table(inner) => fill(inner, value),
            _ => entry.node = value.clone(),
        }
    }
}
