//! Search in a corpus.

use std::path::PathBuf;

use rloom_tools::{Output, ToolError, Toolbox};
use serde_json::{Value, json};

use crate::support::{LONG, call, toolbox};

fn written(folder: &tempfile::TempDir, lines: &str) -> PathBuf {
    let path = folder.path().join("corpus.jsonl");
    std::fs::write(&path, lines).unwrap();
    path
}

fn corpus(lines: &str, more: &Value) -> Result<Toolbox, ToolError> {
    let folder = tempfile::tempdir().unwrap();
    let mut table = json!({"kind": "search", "corpus": written(&folder, lines)});
    table.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    toolbox(table, LONG)
}

#[test]
fn passages_are_found_by_their_titles_and_texts() {
    let lines = "{\"title\": \"Peru\", \"text\": \"Its capital is Lima.\"}\n\n{\"text\": \"Quito is a capital, too.\"}\n\
                 {\"text\": \"Nothing of interest.\"}\n";
    let toolbox = corpus(lines, &json!({"name": "find"})).unwrap();
    assert_eq!(toolbox.tools()[0].name, "find");
    let find = |query: &str| call(&toolbox.open(), "find", &json!({"query": query})).unwrap();
    assert_eq!(find("peru"), Output::ok("Peru: Its capital is Lima."));
    assert_eq!(find("CAPITAL?"), Output::ok("Peru: Its capital is Lima.\nQuito is a capital, too."));
    assert_eq!(find("Bolivia"), Output::ok("nothing found"));
    // Words beyond the 256th are not read.
    assert_eq!(find(&format!("{}peru", "word ".repeat(255))), Output::ok("Peru: Its capital is Lima."));
    assert_eq!(find(&format!("{}peru", "word ".repeat(256))), Output::ok("nothing found"));
    let one = corpus(lines, &json!({"top_k": 1})).unwrap();
    let best = call(&one.open(), "search", &json!({"query": "capital"})).unwrap();
    assert_eq!(best, Output::ok("Peru: Its capital is Lima."));
}

#[test]
fn a_corpus_that_cannot_be_read_is_an_error() {
    for (lines, expected) in [
        ("{\"text\": \"a\"}\n\n{\"title\": \"b\"}\n", "corpus.jsonl, line 3: missing field `text`"),
        ("text\n", "corpus.jsonl, line 1: expected"),
        ("{\"text\": 5}\n", "corpus.jsonl, line 1: invalid type: integer"),
    ] {
        let error = corpus(lines, &json!({})).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let missing = toolbox(json!({"kind": "search", "corpus": "/no/such/corpus"}), LONG).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read /no/such/corpus"), "{missing}");
}
