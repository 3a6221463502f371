//! Settings as in configuration files and their resolved copies.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use miette::Diagnostic;
use rloom_data::{DataSettings, Dataset, Operation, Source, Split, Style};

fn read(json: &str) -> Result<DataSettings, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

/// Message and hint of the error: `message [hint]`.
fn error_of(json: &str) -> String {
    match read(json) {
        Ok(settings) => {
            let error = settings.validate().unwrap_err();
            let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
            format!("{error}{hint}")
        }
        Err(error) => error,
    }
}

#[test]
fn a_flat_table_selects_its_source() {
    let settings = read(
        r#"{"generator": "arithmetic", "operations": ["+", "*"], "style": "worked", "size": 100, "template": "{prompt} "}"#,
    )
    .unwrap();
    let Source::Arithmetic(arithmetic) = &settings.source else { unreachable!() };
    assert_eq!(arithmetic.operations, [Operation::Add, Operation::Multiply]);
    assert_eq!((arithmetic.style, arithmetic.size, arithmetic.max_digits), (Style::Worked, Some(100), 2));
    assert_eq!(settings.prompt_format.template.as_deref(), Some("{prompt} "));
    let files = read(r#"{"path": ["a.jsonl", "b.parquet"], "answer_field": "x"}"#).unwrap();
    assert!(matches!(files.source, Source::Files(f) if f.path.0.len() == 2 && f.answer_marker == "####"));
}

#[test]
fn settings_round_trip_with_every_default() {
    for json in [
        r#"{"generator": "arithmetic"}"#,
        r#"{"generator": "arithmetic", "max_digits": 12, "digits": "power_law"}"#,
        r#"{"generator": "countdown", "chat": true, "system": "s"}"#,
        r#"{"generator": "sorting", "max_length": 9}"#,
        r#"{"path": "a.jsonl", "eval_path": ["b.jsonl", "c.jsonl"]}"#,
    ] {
        let settings = read(json).unwrap();
        let written = serde_json::to_string(&settings).unwrap();
        assert_eq!(read(&written).unwrap(), settings, "{written}");
        assert!(!written.contains("null"), "{written}");
    }
    assert_eq!(
        serde_json::to_string(&read(r#"{"generator": "sorting"}"#).unwrap()).unwrap(),
        r#"{"generator":"sorting","min_length":3,"max_length":5,"max_number":99,"held_out_share":0.25,"demonstration_share":0.5}"#
    );
    assert_eq!(
        serde_json::to_string(&read(r#"{"path": "a.jsonl"}"#).unwrap()).unwrap(),
        "{\"path\":\"a.jsonl\",\"domain\":\"default\",\"answer_marker\":\"####\"}"
    );
}

#[test]
fn unknown_keys_and_keys_of_other_sources_are_errors() {
    let unknown = error_of(r#"{"generator": "arithmetic", "max_digit": 3}"#);
    assert!(unknown.starts_with("unknown field `max_digit`, expected one of "), "{unknown}");
    let foreign = error_of(r#"{"generator": "countdown", "max_digits": 3}"#);
    assert!(foreign.starts_with("unknown field `max_digits`, expected one of `operations`"), "{foreign}");
    assert!(foreign.contains("(keys of `countdown` data)"), "{foreign}");
    let foreign = error_of(r#"{"path": "a.jsonl", "size": 3}"#);
    assert!(
        foreign.contains("unknown field `size`") && foreign.contains("(keys of `files` data)"),
        "{foreign}"
    );
}

#[test]
fn invalid_settings_are_errors() {
    for (json, expected) in [
        ("{}", "the data needs a `generator`"),
        (r#"{"generator": "arithmetic", "path": "a.jsonl"}"#, "`generator` and `path` cannot be combined"),
        (r#"{"generator": "algebra"}"#, "unknown variant `algebra`, expected one of `arithmetic`"),
        (r#"{"path": 3}"#, "invalid type: integer `3`, expected a path or a list of paths"),
        (r#"{"path": []}"#, "`path`: the list is empty"),
        (r#"{"path": "a.jsonl", "eval_path": "b.jsonl", "eval_rows": 3}"#, "`eval_rows`: "),
        (r#"{"path": "a.jsonl", "eval_rows": 0}"#, "`eval_rows`: must be at least 1, but is 0"),
        (r#"{"path": "a.jsonl", "limit": 0}"#, "`limit`: must be at least 1, but is 0"),
        (r#"{"path": "a.jsonl", "prompt_field": "p", "messages_field": "m"}"#, "`messages_field`: "),
        (r#"{"path": "a.jsonl", "template": "Q"}"#, "`template`: "),
        (r#"{"generator": "arithmetic", "operations": []}"#, "`operations`: the list is empty"),
        (r#"{"generator": "arithmetic", "operations": ["/"]}"#, "`operations`: `/` is not supported"),
        (
            r#"{"generator": "arithmetic", "operations": ["+", "+"]}"#,
            "`operations`: lists `+` more than once",
        ),
        (r#"{"generator": "arithmetic", "operations": ["plus"]}"#, "unknown variant `plus`"),
        (
            r#"{"generator": "arithmetic", "min_digits": 3}"#,
            "`min_digits`: must be between 1 and `max_digits` (2), but is 3",
        ),
        (r#"{"generator": "arithmetic", "max_digits": 9}"#, "`max_digits`: must be at most 8, but is 9"),
        (
            r#"{"generator": "arithmetic", "max_digits": 17, "digits": "power_law"}"#,
            "`max_digits`: must be at most 16, but is 17",
        ),
        (
            r#"{"generator": "arithmetic", "max_digits": 9, "digits": "power_law", "operations": ["*"]}"#,
            "`max_digits`: must be at most 8 with `*`, but is 9 [lower it to 8, or remove `*` from `operations`: the maximum \
             is then 16]",
        ),
        (r#"{"generator": "arithmetic", "digits": "zipf"}"#, "unknown variant `zipf`, expected `uniform` or"),
        (
            r#"{"generator": "arithmetic", "held_out_share": 0}"#,
            "`held_out_share`: must be between 0.01 and 0.99, but is 0",
        ),
        (
            r#"{"generator": "arithmetic", "demonstration_share": 1.0}"#,
            "`demonstration_share`: must be between 0.01 and 0.99, but is 1",
        ),
        (r#"{"generator": "arithmetic", "size": 0}"#, "`size`: must be at least 1, but is 0"),
        (r#"{"generator": "countdown", "min_numbers": 1}"#, "`min_numbers`: "),
        (r#"{"generator": "countdown", "max_numbers": 9}"#, "`max_numbers`: must be at most 8, but is 9"),
        (r#"{"generator": "countdown", "max_target": 1}"#, "`max_target`: "),
        (r#"{"generator": "sorting", "min_length": 6}"#, "`min_length`: "),
        (r#"{"generator": "sorting", "max_number": 0}"#, "`max_number`: "),
    ] {
        let error = error_of(json);
        assert!(error.starts_with(expected), "{json}: {error}");
    }
}

#[test]
fn splits_larger_than_the_number_of_tasks_are_refused() {
    let settings = read(r#"{"generator": "arithmetic", "max_digits": 1, "eval_size": 500}"#).unwrap();
    let error = Dataset::open(&settings, Split::Eval, 1).unwrap_err();
    assert_eq!(error.to_string(), "`eval_size`: 500 tasks were requested, but only 9 exist");
    assert!(error.help().is_some());
    let error =
        Dataset::open(&read(r#"{"generator": "sorting"}"#).unwrap(), Split::Eval, 1).unwrap().get(512);
    assert_eq!(error.unwrap_err().to_string(), "task 512 is out of range: the dataset has 512 tasks");
}

#[test]
fn mixed_style_has_its_share_of_worked_demonstrations() {
    let text = r#"{"generator": "arithmetic", "max_digits": 3, "style": "mixed", "worked_share": 0.3}"#;
    let settings: DataSettings = serde_json::from_str(text).unwrap();
    let demonstrations = Dataset::open(&settings, Split::Demonstration, 5).unwrap();
    let mut worked = 0;
    for position in 0..4000 {
        let task = demonstrations.get(position).unwrap();
        let example = task.demonstration.unwrap();
        let demonstration = &example.turns()[0];
        match demonstration.split_once("#### ") {
            Some((work, answer)) => {
                assert!(work.contains('=') && answer == task.answer);
                worked += 1;
            }
            None => assert_eq!(*demonstration, task.answer),
        }
    }
    assert!((1100..1300).contains(&worked), "{worked} of 4000");
    let unread = text.replace("mixed", "worked");
    let settings: DataSettings = serde_json::from_str(&unread).unwrap();
    assert!(settings.validate().unwrap_err().to_string().contains("worked_share"));
}

#[test]
fn the_schema_documents_the_keys_of_every_source() {
    let schema = serde_json::to_string(&schemars::schema_for!(DataSettings)).unwrap();
    for key in ["path", "eval_rows", "system", "max_digits", "max_target", "max_numbers", "max_length"] {
        assert!(schema.contains(&format!("\"{key}\":")), "{key} is missing: {schema}");
    }
    assert!(schema.contains("Maximum number of rows to read from `path`."), "{schema}");
}

#[test]
fn the_commits_of_a_run_replace_branches_of_the_same_data_set_only() {
    let commit = "0a".repeat(20);
    let run =
        read(&format!(r#"{{"path": ["hf:org/data/main:train@{commit}", "hf:org/more:test@{commit}"]}}"#))
            .unwrap();
    let text = |settings: &DataSettings| serde_json::to_value(settings).unwrap()["path"].to_string();
    for (wanted, path) in [
        (r#"["hf:org/data:train", "hf:org/more:test@main"]"#, text(&run)),
        (
            r#"["hf:org/data:test", "hf:org/more"]"#,
            format!(r#"["hf:org/data:test","hf:org/more:test@{commit}"]"#),
        ),
        (r#"["hf:org/other:train", "b.jsonl"]"#, r#"["hf:org/other:train","b.jsonl"]"#.to_owned()),
    ] {
        let mut wanted = read(&format!(r#"{{"path": {wanted}}}"#)).unwrap();
        wanted.pin_as(&run);
        assert_eq!(text(&wanted), path);
    }
}
