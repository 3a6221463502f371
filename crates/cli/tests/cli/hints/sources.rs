//! Finds the hints in the sources, with a key for each.

use std::collections::BTreeMap;
use std::path::Path;

use crate::workspace::{crates, root, sources};

/// The hints of the workspace: key and place.
///
/// | hint | key |
/// | --- | --- |
/// | `#[diagnostic(help(…))]` | `Enum::Variant` or `Struct` |
/// | arm of a `fn help` | `Enum::Variant` |
/// | `.hint("…")`, `hint: "…"` | the text, with its placeholders |
/// | `.hint(value)` | `file.rs: value` |
/// | `refuse(…)` of an algorithm | `Refusal::Variant` |
/// | `checked("key", …)`, `check("key", …)` of an algorithm | `range of key` |
pub(super) fn hints() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in crates() {
        let folder = root().join("crates").join(&name).join("src");
        for (path, text) in sources(&folder) {
            if is_test(&path) {
                continue;
            }
            let place = path.strip_prefix(root()).unwrap().display().to_string();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let mut keys = [attributes(text), help_functions(text)].concat();
            match name.as_str() {
                "algo" => keys.extend(of_algorithms(&path, text)),
                "config" | "cli" => keys.extend(built(&path, text)),
                _ => {}
            }
            found.extend(keys.into_iter().map(|key| (key, place.clone())));
        }
    }
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str().to_str().unwrap();
        part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs")
    })
}

/// Keys of `#[diagnostic(help(…))]`.
fn attributes(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for (at, found) in text.match_indices("#[diagnostic(") {
        let (argument, rest) = balanced(&text[at + found.len()..]);
        if !argument.contains("help(") {
            continue;
        }
        let rest = rest.trim_start_matches(']');
        let mut lines = rest.lines().map(str::trim_start);
        let item = lines.find(|line| !line.is_empty() && !line.starts_with("//") && !line.starts_with("#["));
        let item = item.unwrap();
        keys.push(match declared(item) {
            Some(name) => name.to_owned(),
            None => format!("{}::{}", last_enum(&text[..at]), word(item)),
        });
    }
    keys
}

/// Name of the struct or enum that a line declares.
fn declared(line: &str) -> Option<&str> {
    let (_, name) = line.split_once("struct ").or(line.split_once("enum "))?;
    Some(word(name))
}

/// The enum around the end of `text`.
fn last_enum(text: &str) -> &str {
    word(text.rsplit("enum ").next().unwrap())
}

/// Keys of the arms of a `Diagnostic::help` that is not derived.
fn help_functions(text: &str) -> Vec<String> {
    let Some((before, after)) = text.split_once("fn help<'a>(") else { return Vec::new() };
    let implementing = word(before.rsplit("Diagnostic for ").next().unwrap());
    let body = after.split("\n    }\n").next().unwrap();
    let arms = body.split("Self::").skip(1).filter(|arm| !arm.contains("return None"));
    arms.map(|arm| format!("{implementing}::{}", word(arm))).collect()
}

/// Keys of hints that are added to an error by code.
fn built(path: &Path, text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for (at, found) in text.match_indices(".hint(") {
        let (argument, _) = balanced(&text[at + found.len()..]);
        // Forwards the hint of another error, or is the caption of all hints.
        if !matches!(argument, "hint.to_string()" | "\"hint:\"") {
            keys.push(key_of(path, argument));
        }
    }
    for (at, found) in text.match_indices(" hint: ") {
        let value = &text[at + found.len()..];
        if value.starts_with("format!(\"") || value.starts_with('"') {
            keys.push(literal(value).unwrap());
        }
    }
    keys
}

fn key_of(path: &Path, argument: &str) -> String {
    literal(argument)
        .unwrap_or_else(|| format!("{}: {}", path.file_name().unwrap().to_str().unwrap(), argument.trim()))
}

/// Keys of the hints of settings that an algorithm refuses.
fn of_algorithms(path: &Path, text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    if path.ends_with("refusal.rs") {
        let body = text.split("pub enum Refusal {").nth(1).unwrap().split("\n}").next().unwrap();
        let variants = body.lines().filter_map(|line| line.strip_prefix("    "));
        let variants = variants.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
        // Its hints are those of ranges.
        let variants = variants.map(word).filter(|name| *name != "OutOfRange");
        keys.extend(variants.map(|name| format!("Refusal::{name}")));
    }
    for function in ["check(", "checked(", "rate_scale("] {
        for (at, _) in text.match_indices(function) {
            let argument = text[at + function.len()..].trim_start();
            let is_call = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if let (true, true, Some(key)) = (is_call, argument.starts_with('"'), literal(argument)) {
                let file = path.file_stem().unwrap().to_str().unwrap();
                // Its settings belong to domains: their ranges have no hints.
                if file == "difficulty" {
                    continue;
                }
                let is_stage = path.parent().unwrap().ends_with("resolve");
                keys.push(if is_stage {
                    format!("range of {key}")
                } else {
                    format!("range of {file}.{key}")
                });
            }
        }
    }
    keys
}

/// The first word of a text.
fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()
}

/// The first string literal of a text, unescaped and in one line.
fn literal(text: &str) -> Option<String> {
    let (_, after) = text.split_once('"')?;
    let mut found = String::new();
    let mut rest = after.chars();
    loop {
        match rest.next()? {
            '"' => return Some(found),
            '\\' => match rest.next()? {
                '\n' => {
                    let tail = rest.as_str().trim_start();
                    rest = tail.chars();
                }
                escaped => found.push(escaped),
            },
            other => found.push(other),
        }
    }
}

/// Splits at the parenthesis that closes one before the text.
fn balanced(text: &str) -> (&str, &str) {
    let (mut depth, mut in_text, mut escaped) = (1, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = in_text,
            '"' => in_text = !in_text,
            '(' if !in_text => depth += 1,
            ')' if !in_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    (text, "")
}
