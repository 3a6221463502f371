//! Secrets come from the environment. One that is written into a file would be copied into the run directory.

use crate::layered::source::{Origin, Sources};
use crate::layered::tree::{Table, Value};
use crate::problem::{Code, Problem};

/// Beginnings of access tokens of services that a training run talks to.
const TOKEN_BEGINNINGS: [&str; 4] = ["hf_", "sk-", "wandb_v1_", "ghp_"];
/// Tokens are longer than names that happen to begin like one.
const SHORTEST_TOKEN: usize = 20;

/// Finds values that look like secrets. Their text is not repeated in the message.
pub(crate) fn find(table: &Table, sources: &Sources, problems: &mut Vec<Problem>) {
    for entry in &table.entries {
        visit(&entry.node.value, entry.node.origin, sources, problems);
    }
}

fn visit(value: &Value, origin: Origin, sources: &Sources, problems: &mut Vec<Problem>) {
    match value {
        Value::String(text) if is_secret(text) => {
            let at = sources.position(origin);
            let source = sources.get(origin.source);
            problems.push(
                Problem::new(
                    Code::Secret,
                    format!("an access token at {source}:{}:{} would be copied into the run directory", at.line, at.column),
                )
                .hint("take it out of the file (and revoke it, if others have seen the file); the environment's HF_TOKEN is used"),
            );
        }
        Value::Array(items) => {
            for item in items {
                visit(&item.value, item.origin, sources, problems);
            }
        }
        Value::Table(table) => find(table, sources, problems),
        _ => {}
    }
}

fn is_secret(text: &str) -> bool {
    text.len() >= SHORTEST_TOKEN
        && TOKEN_BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}
