//! Pages of `docs/reference` that are generated from types. A stale page fails; `UPDATE_REFERENCE=1` rewrites it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod events;
mod keys;
mod metrics;

use std::path::Path;

/// Compares a page with the file of that name, or writes the file.
fn check(name: &str, page: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let file = folder.join(name);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&file, page).unwrap();
        return;
    }
    let present = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        present == page,
        "docs/reference/{name} is stale; run UPDATE_REFERENCE=1 cargo test --test config reference"
    );
}

#[test]
fn configuration_page_is_current() {
    check("configuration.md", &rloom_config::reference::configuration());
}

#[test]
fn recipe_schema_is_current() {
    let mut text = serde_json::to_string_pretty(&rloom_config::schema()).unwrap();
    text.push('\n');
    check("recipe.schema.json", &text);
}

#[test]
fn metrics_page_is_current() {
    check("metrics.md", &metrics::page());
}

#[test]
fn events_page_is_current() {
    check("events.md", &events::page());
}
