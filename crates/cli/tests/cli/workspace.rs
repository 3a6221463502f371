//! Rules of the workspace's structure: dependencies point one way, engines are assembled in one place, files stay small,
//! and the documentation names functions that exist.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The crates from the lowest to the highest: a crate depends only on those before it.
const ORDER: &[&str] = &[
    "core",
    "algo",
    "ops",
    "hub",
    "model",
    "text",
    "data",
    "function",
    "sandbox",
    "tools",
    "env",
    "reward",
    "engine",
    "embedded",
    "wire",
    "cluster",
    "remote",
    "sched",
    "sim",
    "store",
    "telemetry",
    "collect",
    "serve",
    "agents",
    "learn",
    "config",
    "stage",
    "run",
    "train_api",
    "cli",
    "python",
];

/// Longest source file in lines.
const MAX_LINES: usize = 600;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Rust files below a folder, with their text.
pub(crate) fn sources(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.insert(path, text);
            }
        }
    }
    found
}

pub(crate) fn crates() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn dependencies_point_downwards() {
    let rank = |name: &str| ORDER.iter().position(|known| *known == name);
    for name in crates() {
        let own = rank(&name).unwrap_or_else(|| panic!("crate `{name}` has no place in the order"));
        let manifest = std::fs::read_to_string(root().join("crates").join(&name).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let dependencies = manifest["dependencies"].as_table().unwrap();
        for dependency in dependencies.keys().filter_map(|key| key.strip_prefix("rloom-")) {
            assert!(rank(dependency) < Some(own), "`{name}` depends on `{dependency}`, which is above it");
        }
    }
}

fn metadata() -> serde_json::Value {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let metadata = std::process::Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    serde_json::from_slice(&metadata.stdout).unwrap()
}

/// `cargo build`, `cargo run` and `cargo test` leave the extension module out, which nothing but Python can load, and
/// nothing else.
#[test]
fn all_crates_but_the_extension_module_are_built_by_default() {
    let metadata = metadata();
    let default = metadata["workspace_default_members"].as_array().unwrap();
    let is_default =
        |name: &str| default.iter().any(|id| id.as_str().unwrap().contains(&format!("/crates/{name}#")));
    for name in crates() {
        assert_eq!(is_default(&name), name != "python", "{name}");
    }
}

/// The README's commands name no program.
#[test]
fn cargo_run_starts_rloom() {
    let metadata = metadata();
    let default: Vec<&str> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|package| package["default_run"].as_str())
        .collect();
    assert_eq!(default, ["rloom"]);
}

/// Local LTO is off, so functions of another codegen unit are called where they should be inlined. In a crate with kernels that
/// makes products five times slower, and no result differs.
#[test]
fn crates_with_kernels_are_one_codegen_unit() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let release = &manifest["profile"]["release"];
    assert_eq!(release["lto"].as_str(), Some("off"));
    for name in ["rloom-ops", "rloom-model", "rloom-embedded"] {
        let settings = &release["package"][name];
        assert_eq!(settings["codegen-units"].as_integer(), Some(1), "{name}");
        assert!(settings.get("opt-level").is_none(), "{name}");
    }
}

/// The training API works with the engines of this process only.
#[test]
fn embedded_engines_are_named_in_one_place() {
    for name in crates().into_iter().filter(|name| name != "embedded" && name != "train_api") {
        for (path, text) in sources(&root().join("crates").join(name).join("src")) {
            let assembles = path.parent().is_some_and(|folder| folder.ends_with("run/src/assembly"));
            assert!(
                assembles || !text.contains("rloom_embedded"),
                "{} names an embedded type",
                path.display()
            );
        }
    }
}

#[test]
fn source_files_are_short() {
    for (path, text) in sources(&root().join("crates")) {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines", path.display());
    }
}

/// The hint of an error is a field (`miette::Diagnostic::help`), which `cli/src/failure.rs` renders, and crate `python` for
/// Python's exceptions.
#[test]
fn no_message_contains_its_hint() {
    for name in crates().into_iter().filter(|name| name != "python") {
        for (path, text) in sources(&root().join("crates").join(name).join("src")) {
            // A string may continue on the next line.
            let mut joined = String::new();
            for line in text.lines() {
                let line = line.trim_start();
                joined += line.strip_suffix('\\').unwrap_or(line);
            }
            assert!(!joined.contains(r"\nhint: "), "{} has a message with a hint in it", path.display());
        }
    }
}

/// Functions that a page names as `` `crate::module::function` `` in a numbered list.
fn named_functions(page: &str) -> Vec<String> {
    let numbered = page.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let first_code = |line: &str| line.split('`').nth(1).map(str::to_owned);
    numbered.filter_map(first_code).filter(|code| code.contains("::")).collect()
}

#[test]
fn the_functions_of_one_step_exist() {
    let page = std::fs::read_to_string(root().join("docs/concepts/one-step.md")).unwrap();
    let functions = named_functions(&page);
    assert!((5..=15).contains(&functions.len()), "{functions:?}");
    for path in functions {
        let parts: Vec<&str> = path.split("::").collect();
        let [krate, modules @ .., function] = parts.as_slice() else { panic!("{path}") };
        let module = if modules.is_empty() { "lib".to_owned() } else { modules.join("/") };
        let module = root().join("crates").join(krate).join("src").join(module);
        let files = [module.with_extension("rs"), module.join("mod.rs")];
        let text: String = files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
        let definition = format!("fn {function}");
        let is_defined = text
            .match_indices(&definition)
            .any(|(at, found)| text[at + found.len()..].starts_with(['(', '<']));
        assert!(is_defined, "{path} does not exist");
    }
}
