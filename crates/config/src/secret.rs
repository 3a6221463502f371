//! Detection of secrets, which belong in the environment: one in a file would be copied into the run directory.

use crate::layered::source::{Origin, Sources};
use crate::layered::tree::{Table, Value};
use crate::problem::{Code, Problem};

/// Prefixes of access tokens of services that training runs use.
const TOKEN_PREFIXES: [&str; 4] = ["hf_", "sk-", "wandb_v1_", "ghp_"];
/// Minimum length of a token; shorter names may have such a prefix by chance.
const MIN_TOKEN_LENGTH: usize = 20;

/// Finds values that look like secrets. The message does not repeat them.
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
                    format!("the access token at {source}:{}:{} would be copied into the run directory", at.line, at.column),
                )
                .hint("remove it from the file; the token of a Hugging Face hub is read from the environment variable HF_TOKEN. Revoke the token if others have seen the file"),
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
    text.len() >= MIN_TOKEN_LENGTH
        && TOKEN_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}
