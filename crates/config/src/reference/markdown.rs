//! The reference page of the configuration.

use std::fmt::Write as _;

use super::{KeyDoc, TableDoc, tables};

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the settings types. To update: UPDATE_REFERENCE=1 cargo test --test config reference -->

A recipe is a TOML file. `rloom train a.toml b.toml --set trainer.learning_rate=1e-5` reads the files in order, then the
overrides; later values take precedence. `--dry-run` prints the resolved configuration. An unknown key is an error, and so
is a key that has no effect.

The tables `[data]`, `[environment]`, `[sampling]`, `[reward]`, `[trainer]`, `[rollout]` and `[schedule]` are shared by all
stages. A stage overrides single keys in a table of the same name, such as `[stage.sampling]`, and evaluation in
`[eval.sampling]` and so on. [recipe.schema.json](recipe.schema.json) is the JSON schema for editors: a file with the line
`#:schema path/to/recipe.schema.json` is completed and checked by the TOML language server Taplo.
";

/// Returns the reference page in Markdown.
pub fn configuration() -> String {
    let mut page = INTRODUCTION.to_owned();
    for table in tables() {
        write_table(&mut page, &table);
    }
    page
}

fn write_table(page: &mut String, table: &TableDoc) {
    let (open, close) = if table.path == "stage" { ("[[", "]]") } else { ("[", "]") };
    let _ = match table.path.strip_suffix("[]") {
        Some(path) => writeln!(page, "\n## Entries of `{path}`"),
        None => writeln!(page, "\n## `{open}{}{close}`", table.path),
    };
    if !table.description.is_empty() {
        let link = "[docs/algorithms](../algorithms/README.md)";
        let _ = writeln!(page, "\n{}", table.description.replace("`docs/algorithms`", link));
    }
    if table.keys.is_empty() {
        return;
    }
    page.push_str("\n| key | type | default | description |\n| --- | --- | --- | --- |\n");
    for key in &table.keys {
        let name = key.path.rsplit('.').next().unwrap_or(&key.path);
        let default = key.default.as_ref().map_or_else(String::new, |default| format!("`{default}`"));
        let description = key.description.replace("\n\n", " ").replace('|', "\\|");
        let _ = writeln!(page, "| `{name}` | {} | {default} | {description} |", key.value_type);
    }
    let has_docs = |key: &&KeyDoc| key.values.iter().any(|(_, doc)| !doc.is_empty());
    for key in table.keys.iter().filter(has_docs) {
        write_values(page, key);
    }
}

fn write_values(page: &mut String, key: &KeyDoc) {
    let name = key.path.rsplit('.').next().unwrap_or(&key.path);
    let _ = writeln!(page, "\nValues of `{name}`:\n");
    for (value, doc) in &key.values {
        let separator = if doc.is_empty() { "" } else { ": " };
        let _ = writeln!(page, "- `{value}`{separator}{doc}");
    }
}
