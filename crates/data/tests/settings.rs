//! The settings as configuration files and their resolved copies hold them.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use rloom_data::{DataSettings, Dataset, Operation, Source, Split, Style};

fn read(json: &str) -> Result<DataSettings, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

fn complaint(json: &str) -> String {
    match read(json) {
        Ok(settings) => settings.validate().unwrap_err().to_string(),
        Err(error) => error,
    }
}

#[test]
fn a_flat_table_names_its_source() {
    let settings = read(
        r#"{"generator": "arithmetic", "operations": ["+", "*"], "style": "worked", "size": 100, "template": "{prompt} "}"#,
    )
    .unwrap();
    let Source::Arithmetic(arithmetic) = &settings.source else { unreachable!() };
    assert_eq!(arithmetic.operations, [Operation::Add, Operation::Multiply]);
    assert_eq!((arithmetic.style, arithmetic.size, arithmetic.max_digits), (Style::Worked, Some(100), 2));
    assert_eq!(settings.presentation.template.as_deref(), Some("{prompt} "));
    let files = read(r#"{"path": ["a.jsonl", "b.parquet"], "answer_field": "x"}"#).unwrap();
    assert!(matches!(files.source, Source::Files(f) if f.path.0.len() == 2 && f.answer_marker == "####"));
}

#[test]
fn what_is_written_reads_back_and_holds_every_default() {
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
fn keys_that_are_not_read_are_errors() {
    let unknown = complaint(r#"{"generator": "arithmetic", "max_digit": 3}"#);
    assert!(unknown.starts_with("unknown field `max_digit`, expected one of "), "{unknown}");
    let foreign = complaint(r#"{"generator": "countdown", "max_digits": 3}"#);
    assert!(foreign.starts_with("unknown field `max_digits`, expected one of `operations`"), "{foreign}");
    assert!(foreign.contains("(keys of `countdown` data)"), "{foreign}");
    let foreign = complaint(r#"{"path": "a.jsonl", "size": 3}"#);
    assert!(
        foreign.contains("unknown field `size`") && foreign.contains("(keys of `files` data)"),
        "{foreign}"
    );
}

#[test]
fn impossible_settings_are_errors() {
    for (json, said) in [
        ("{}", "the data needs a `generator`"),
        (r#"{"generator": "arithmetic", "path": "a.jsonl"}"#, "`generator` and `path` exclude each other"),
        (r#"{"generator": "algebra"}"#, "unknown variant `algebra`, expected one of `arithmetic`"),
        (r#"{"path": 3}"#, "invalid type: integer `3`, expected a path or a list of paths"),
        (r#"{"path": []}"#, "`path`: names no file"),
        (r#"{"path": "a.jsonl", "eval_path": "b.jsonl", "eval_rows": 3}"#, "`eval_rows`: "),
        (r#"{"path": "a.jsonl", "eval_rows": 0}"#, "`eval_rows`: must be at least 1"),
        (r#"{"path": "a.jsonl", "limit": 0}"#, "`limit`: must be at least 1"),
        (r#"{"path": "a.jsonl", "prompt_field": "p", "messages_field": "m"}"#, "`messages_field`: "),
        (r#"{"path": "a.jsonl", "template": "Q"}"#, "`template`: "),
        (r#"{"generator": "arithmetic", "operations": []}"#, "`operations`: names no operation"),
        (r#"{"generator": "arithmetic", "operations": ["/"]}"#, "`operations`: arithmetic has no `/`"),
        (
            r#"{"generator": "arithmetic", "operations": ["+", "+"]}"#,
            "`operations`: names an operation twice",
        ),
        (r#"{"generator": "arithmetic", "operations": ["plus"]}"#, "unknown variant `plus`"),
        (
            r#"{"generator": "arithmetic", "min_digits": 3}"#,
            "`min_digits`: 3 is not between 1 and `max_digits` = 2",
        ),
        (r#"{"generator": "arithmetic", "max_digits": 9}"#, "`max_digits`: 9 is more than 8"),
        (
            r#"{"generator": "arithmetic", "max_digits": 17, "digits": "power_law"}"#,
            "`max_digits`: 17 is more than 16",
        ),
        (
            r#"{"generator": "arithmetic", "max_digits": 9, "digits": "power_law", "operations": ["*"]}"#,
            "`max_digits`: 9 is more than 8\nhint: without `*` there can be 16",
        ),
        (r#"{"generator": "arithmetic", "digits": "zipf"}"#, "unknown variant `zipf`, expected `uniform` or"),
        (r#"{"generator": "arithmetic", "held_out_share": 0}"#, "`held_out_share`: 0 is not between"),
        (
            r#"{"generator": "arithmetic", "demonstration_share": 1.0}"#,
            "`demonstration_share`: 1 is not between",
        ),
        (r#"{"generator": "arithmetic", "size": 0}"#, "`size`: must be at least 1"),
        (r#"{"generator": "countdown", "min_numbers": 1}"#, "`min_numbers`: "),
        (r#"{"generator": "countdown", "max_numbers": 9}"#, "`max_numbers`: 9 is more than 8"),
        (r#"{"generator": "countdown", "max_target": 1}"#, "`max_target`: "),
        (r#"{"generator": "sorting", "min_length": 6}"#, "`min_length`: "),
        (r#"{"generator": "sorting", "max_number": 0}"#, "`max_number`: "),
    ] {
        let error = complaint(json);
        assert!(error.starts_with(said), "{json}: {error}");
    }
}

#[test]
fn a_split_larger_than_the_space_says_how_large_it_is() {
    let settings = read(r#"{"generator": "arithmetic", "max_digits": 1, "eval_size": 500}"#).unwrap();
    let error = Dataset::open(&settings, Split::Eval, 1).unwrap_err().to_string();
    assert!(
        error.starts_with("`eval_size`: 500 tasks were asked for, but there are only 9 of them\nhint: "),
        "{error}"
    );
    let error =
        Dataset::open(&read(r#"{"generator": "sorting"}"#).unwrap(), Split::Eval, 1).unwrap().get(512);
    assert_eq!(error.unwrap_err().to_string(), "task 512 was asked for, but there are 512");
}

#[test]
fn a_mixture_has_its_share_of_worked_demonstrations_and_one_answer() {
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
