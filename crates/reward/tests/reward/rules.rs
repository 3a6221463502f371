//! Rule rewards: right, wrong, unreadable and hostile completions, and agreement with the libraries of the field.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::sync::Arc;

use rloom_core::{Author, PromptSource, Rewards, SampleKey, Span, StopReason, Task, Ticket, Trajectory};
use rloom_reward::{CurrentComponent, Judged, OnError, RewardSettings, Scorer};
use serde_json::{Map, Value, json};

const STOPPED: StopReason = StopReason::StopToken;

fn settings(component: &Value) -> RewardSettings {
    serde_json::from_value(json!({"components": [component]})).unwrap()
}

fn task(answer: &str, row: Value) -> Task {
    let Value::Object(extra) = row else { unreachable!() };
    Task {
        index: 7,
        prompt: PromptSource::Text("p".into()),
        answer: answer.into(),
        demonstration: None,
        domain: "d".into(),
        extra: Arc::new(extra),
    }
}

pub(crate) fn trajectory(stop: StopReason, sample: u32) -> Trajectory {
    Trajectory {
        key: SampleKey { ticket: Ticket(1), sample, segment: 0 },
        agent: None,
        tokens: vec![0; 4],
        spans: vec![Span::new(Author::Prompt, 0..2), Span::new(Author::Policy, 2..4)],
        logprobs: vec![-1.0; 2],
        versions: Vec::new(),
        stop,
        attachments: Vec::new(),
    }
}

fn judge(component: &Value, task: &Task, text: &str, stop: StopReason) -> Result<Rewards, String> {
    let scorer = Scorer::new(&settings(component), 1, 0).map_err(|e| e.to_string())?;
    let judged = Judged { task, segments: &[trajectory(stop, 0)], text, transcript: "", prompt: "" };
    scorer.score(&judged, &CurrentComponent::default()).map_err(|e| e.to_string())
}

/// Value, and whether the task is solved and an answer was read.
fn outcome(component: &Value, answer: &str, text: &str) -> (f64, bool, bool) {
    let rewards = judge(component, &task(answer, json!({})), text, STOPPED).unwrap();
    (rewards.total().unwrap(), rewards.solved.unwrap(), rewards.parsed.unwrap())
}

fn value(component: &Value, text: &str) -> f64 {
    judge(component, &task("", json!({})), text, STOPPED).unwrap().total().unwrap()
}

fn lines(golden: &'static str) -> impl Iterator<Item = Map<String, Value>> {
    golden.lines().map(|line| serde_json::from_str(line).unwrap())
}

#[test]
fn schemes_of_multiple_choice() {
    // Right and boxed, right, boxed, neither.
    let texts = [r"so \boxed{B}", "The answer is B.", r"so \boxed{C}", "The answer is C."];
    for (scheme, values) in [
        ("loose", [1.0, 1.0, -1.0, -1.0]),
        ("soft", [1.0, 0.5, -0.5, -1.0]),
        ("strict", [1.0, -1.0, -1.0, -1.0]),
    ] {
        let component = json!({"kind": "multiple_choice", "scheme": scheme});
        for (text, value) in texts.iter().zip(values) {
            assert_eq!(outcome(&component, "B", text), (value, value > 0.0, true), "{scheme}: {text}");
        }
        assert_eq!(outcome(&component, "(B) Paris", r"\boxed{\text{B}}"), (1.0, true, true));
        assert_eq!(outcome(&component, "B", ""), (-1.0, false, false));
        assert_eq!(outcome(&component, "B", "no idea"), (-1.0, false, false));
    }
    let component = json!({"kind": "multiple_choice"});
    // Only the last mark counts, the reasoning never, and a list of all letters is not a letter.
    assert!(!outcome(&component, "B", r"\boxed{B} no, \boxed{C}").1);
    assert!(!outcome(&component, "B", r"\boxed{B} or \boxed{C}").1);
    assert!(!outcome(&component, "B", r"<think>\boxed{B}</think>\boxed{C}").1);
    assert!(!outcome(&component, "B", r"<think>\boxed{B}").1);
    assert_eq!(outcome(&component, "B", r"\boxed{ABCD}"), (-1.0, false, false));
    assert!(!outcome(&component, "B", r"\boxed{A or B}").1, "the first letter counts");
    assert!(!outcome(&component, "P", r"\boxed{Paris}").1, "a word is not a letter");
    let error = judge(&component, &task("paris", json!({})), "B", STOPPED).unwrap_err();
    assert!(error.contains("is not a choice such as `B`"), "{error}");
    let fails = json!({"kind": "multiple_choice", "scheme": "soft", "truncated": "fail"});
    let cut = judge(&fails, &task("B", json!({})), r"\boxed{B}", StopReason::Length).unwrap();
    assert_eq!((cut.total(), cut.solved), (Some(-0.5), Some(false)));
}

#[test]
fn instructions_agree_with_the_library() {
    let component = json!({"kind": "instructions"});
    let mut checked = 0;
    for row in lines(include_str!("../golden/instructions.jsonl")) {
        let answer = row["answer"].as_str().unwrap();
        let (value, solved, parsed) = outcome(&component, &row["check"].to_string(), answer);
        assert_eq!((solved, parsed), (row["accepted"].as_bool().unwrap(), true), "{row:?}");
        assert_eq!(value, f64::from(u8::from(solved)));
        checked += 1;
    }
    assert!(checked > 1200, "{checked}");
}

#[test]
fn several_instructions() {
    let checks = json!([{"func_name": "validate_lowercase"}, {"func_name": "validate_no_commas", "N": null}])
        .to_string();
    let (all, fraction) =
        (json!({"kind": "instructions"}), json!({"kind": "instructions", "score": "fraction"}));
    assert_eq!(outcome(&all, &checks, "fine"), (1.0, true, true));
    assert_eq!(outcome(&all, &checks, "fine, too"), (0.0, false, true));
    assert_eq!(outcome(&fraction, &checks, "fine, too"), (0.5, false, true));
    assert_eq!(outcome(&fraction, &checks, "<think>I SEE, so</think> fine"), (1.0, true, true));
    // Saying nothing breaks no rule and earns nothing.
    assert_eq!(outcome(&fraction, &checks, " \n"), (0.0, false, false));
    assert_eq!(outcome(&fraction, &checks, "<think>fine"), (0.0, false, false));
    let field = json!({"kind": "instructions", "checks": "ground_truth"});
    let own =
        task("", json!({"ground_truth": {"func_name": "validate_response_language", "language": "de"}}));
    let german = "Die Kinder gingen nach Hause, weil es zu regnen begann.";
    assert_eq!(judge(&field, &own, german, STOPPED).unwrap().solved, Some(true));
    let english = "The children went home because it began to rain.";
    assert_eq!(judge(&field, &own, english, STOPPED).unwrap().solved, Some(false));
    let error = judge(&field, &task("", json!({})), "x", STOPPED).unwrap_err();
    assert!(error.ends_with("task 7: its row has no field `ground_truth`"), "{error}");
    let unknown =
        judge(&all, &task(r#"{"func_name": "validate_rhyme"}"#, json!({})), "x", STOPPED).unwrap_err();
    assert!(
        unknown.contains("no check is named \"validate_rhyme\"; the checks are verify_keywords, "),
        "{unknown}"
    );
    let error = judge(&all, &task("three words", json!({})), "x", STOPPED).unwrap_err();
    assert!(error.contains("\"three words\" is not JSON"), "{error}");
}

#[test]
fn schemas_agree_with_the_library() {
    for row in lines(include_str!("../golden/json_schemas.jsonl")) {
        let component = json!({"kind": "json_schema", "schema": row["schema"]});
        let rewards = judge(&component, &task("", json!({})), &row["document"].to_string(), STOPPED).unwrap();
        assert_eq!(rewards.solved, row["accepted"].as_bool(), "{row:?}");
        assert_eq!(rewards.parsed, Some(true));
    }
}

#[test]
fn schemas_of_the_recipe_and_of_the_row() {
    let schema = json!({"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}});
    let own = json!({"kind": "json_schema", "schema": schema});
    for (text, expected) in [
        (r#"{"city": "Bonn"}"#, (1.0, true, true)),
        ("The city:\n```json\n{\"city\": \"Bonn\"}\n```", (1.0, true, true)),
        (r#"<answer>{"city": "Bonn"}</answer>"#, (1.0, true, true)),
        (r#"{"city": 3}"#, (0.0, false, true)),
        (r#"{"town": "Bonn"}"#, (0.0, false, true)),
        (r#"{"city": "Bonn""#, (0.0, false, false)),
        ("Bonn", (0.0, false, false)),
        (r#"<think>{"city": "Bonn"}"#, (0.0, false, false)),
    ] {
        assert_eq!(outcome(&own, "", text), expected, "{text}");
    }
    let row = json!({"kind": "json_schema"});
    for given in [schema.clone(), Value::String(schema.to_string())] {
        let task = task("", json!({"schema": given}));
        assert_eq!(judge(&row, &task, r#"{"city": "Bonn"}"#, STOPPED).unwrap().solved, Some(true));
        assert_eq!(judge(&row, &task, "{}", STOPPED).unwrap().solved, Some(false));
    }
    // A row without a usable schema is an error for every completion, readable or not.
    for text in ["{}", "no JSON"] {
        let error = judge(&row, &task("", json!({})), text, STOPPED).unwrap_err();
        assert!(error.ends_with("its row has no field `schema`"), "{error}");
        let error = judge(&row, &task("", json!({"schema": {"format": "date"}})), text, STOPPED).unwrap_err();
        assert!(error.ends_with("its schema: keyword `format` at `#` is not supported"), "{error}");
    }
}

#[test]
fn regular_expressions() {
    let part = json!({"kind": "regex", "pattern": r"\d{3}-\d{4}"});
    assert_eq!(value(&part, "call 555-1234 now"), 1.0);
    assert_eq!(value(&part, "call 555-123 now"), 0.0);
    let whole = json!({"kind": "regex", "pattern": "yes|no", "whole": true});
    for (text, expected) in [("yes", 1.0), (" no\n", 1.0), ("yes no", 0.0), ("yesno", 0.0), ("", 0.0)] {
        assert_eq!(value(&whole, text), expected, "{text}");
    }
    // Exponential in engines that backtrack.
    let hard = json!({"kind": "regex", "pattern": "^(a+)+$"});
    assert_eq!(value(&hard, &format!("{}b", "a".repeat(100_000))), 0.0);
}

#[test]
fn overlaps_agree_with_the_libraries() {
    let mut checked = 0;
    for row in lines(include_str!("../golden/overlaps.jsonl")) {
        for (measure, name) in
            [("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL"), ("bleu", "bleu")]
        {
            let component = json!({"kind": "overlap", "measure": measure});
            let task = task(row["reference"].as_str().unwrap(), json!({}));
            let rewards = judge(&component, &task, row["answer"].as_str().unwrap(), STOPPED).unwrap();
            let (value, expected) = (rewards.total().unwrap(), row[name].as_f64().unwrap());
            assert!((value - expected).abs() < 1e-9, "{measure}: {value}, expected {expected} for {row:?}");
            checked += 1;
        }
    }
    assert!(checked > 2000, "{checked}");
}

#[test]
fn languages_and_repetition() {
    let english = json!({"kind": "language", "language": "en"});
    assert_eq!(value(&english, "The answer is that the train arrives at noon."), 1.0);
    assert_eq!(value(&english, "Die Antwort ist, dass der Zug am Mittag ankommt."), 0.0);
    let mixed = value(&english, "The answer is that the train 火车 arrives at noon.");
    assert!(mixed > 0.9 && mixed < 1.0, "{mixed}");
    assert_eq!(value(&english, "42"), 0.0);
    assert_eq!(value(&english, ""), 0.0);
    let repetition = json!({"kind": "repetition", "weight": -0.5});
    assert_eq!(value(&repetition, "every word of this differs"), 0.0);
    assert_eq!(value(&repetition, &"so it is ".repeat(1000)), -0.5 * (1.0 - 3.0 / 2998.0));
}

#[test]
fn diversity_compares_a_group() {
    let component = json!({"kind": "diversity"});
    let scorer = Scorer::new(&settings(&component), 1, 0).unwrap();
    let own = task("", json!({}));
    let score = |texts: &[&str]| {
        let trajectories: Vec<Trajectory> = (0..).take(texts.len()).map(|i| trajectory(STOPPED, i)).collect();
        let judged = |(text, trajectory)| Judged {
            task: &own,
            segments: std::slice::from_ref(trajectory),
            text,
            transcript: "",
            prompt: "",
        };
        let group: Vec<Judged<'_>> = texts.iter().copied().zip(&trajectories).map(judged).collect();
        let current = CurrentComponent::default();
        let mut rewards: Vec<Rewards> =
            group.iter().map(|judged| scorer.score(judged, &current).unwrap()).collect();
        assert!(rewards.iter().all(|rewards| rewards.pending));
        scorer.score_group(&group, &mut rewards, &current).unwrap();
        rewards.iter().map(Rewards::total).collect::<Vec<_>>()
    };
    assert_eq!(score(&["a b c", "a b c", "x y z"]), [Some(0.5), Some(0.5), Some(1.0)]);
    assert_eq!(score(&["same same", "same same"]), [Some(0.0), Some(0.0)]);
    assert_eq!(score(&["", ""]), [Some(0.0), Some(0.0)]);
    assert_eq!(score(&["alone"]), [None], "it does not apply to one completion");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    for (component, expected) in [
        (
            json!({"kind": "regex", "pattern": "("}),
            "component `regex`: `pattern`: \"(\" is not a regular expression: unclosed group",
        ),
        (json!({"kind": "regex", "pattern": "(?=a)"}), "look-around"),
        (json!({"kind": "regex", "pattern": r"(a)\1"}), "backreferences are not supported"),
        (
            json!({"kind": "regex", "pattern": "a)|(b", "whole": true}),
            "is not a regular expression: unopened group",
        ),
        (json!({"kind": "regex", "pattern": "a*"}), "`pattern`: \"a*\" matches every completion"),
        (json!({"kind": "regex", "pattern": r"\w{1000}{1000}"}), "size limit"),
        (
            json!({"kind": "language", "language": "klingon"}),
            "`language`: \"klingon\" is not the code of a language",
        ),
        (json!({"kind": "repetition", "size": 0}), "`size`: must be between 1 and 64"),
        (json!({"kind": "diversity", "size": 100}), "`size`: must be"),
        (
            json!({"kind": "json_schema", "schema": {"format": "date"}}),
            "`schema`: keyword `format` at `#` is not supported",
        ),
        (
            json!({"kind": "json_schema", "schema": {}, "schema_field": "s"}),
            "`schema` and `schema_field` exclude each other",
        ),
    ] {
        let error = settings(&component).validate().unwrap_err().to_string();
        assert!(error.contains(expected), "{component}: {error}");
    }
    for (component, key) in [
        (json!({"kind": "multiple_choice", "scheme": "lose"}), "unknown variant `lose`"),
        (
            json!({"kind": "overlap", "measure": "rouge"}),
            "unknown variant `rouge`, expected one of `rouge_1`",
        ),
        (json!({"kind": "regex"}), "missing field `pattern`"),
    ] {
        let given = json!({"components": [component]});
        let error = serde_json::from_value::<RewardSettings>(given).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

/// Every rule, and a task that all of them can judge.
pub(crate) fn every_rule() -> (Value, Task) {
    let checks: Vec<Value> = lines(include_str!("../golden/instructions.jsonl"))
        .map(|mut row| row.remove("check").unwrap())
        .collect();
    let language = json!({"func_name": "validate_response_language", "language": "en"});
    let mut named: std::collections::BTreeMap<String, Value> =
        checks.into_iter().map(|check| (check["func_name"].as_str().unwrap().to_owned(), check)).collect();
    named.insert("validate_response_language".into(), language);
    assert_eq!(named.len(), 25);
    let checks = Value::Array(named.into_values().collect());
    let schema = json!({"$defs": {"t": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/t"}, "uniqueItems": true}, {"type": "integer"}]}}, "$ref": "#/$defs/t"});
    let row = json!({"checks": checks, "schema": schema});
    let task = task("B the cat sat on the mat", row);
    let components = json!([
        {"kind": "multiple_choice"}, {"kind": "instructions", "checks": "checks", "score": "fraction"}, {"kind": "json_schema"},
        {"kind": "format", "pattern": "<think>*</think> <answer>*</answer>", "any_space": true},
        {"kind": "format", "name": "tags", "pattern": "<a>*<a>*<b>*<a>", "score": "fraction"},
        {"kind": "regex", "pattern": "(a|b|ab)*c(.*)*<"}, {"kind": "repetition"}, {"kind": "language", "language": "en"},
        {"kind": "overlap"}, {"kind": "overlap", "name": "bleu", "measure": "bleu"}, {"kind": "diversity"}, {"kind": "math"}
    ]);
    (components, task)
}

#[test]
fn any_completion_is_judged_in_linear_time() {
    let (components, task) = every_rule();
    let settings: RewardSettings = serde_json::from_value(json!({"components": components})).unwrap();
    assert_eq!(settings.on_error, OnError::Fatal);
    let scorer = Scorer::new(&settings, 1, 0).unwrap();
    for part in [
        "a",
        "ab",
        "<think>",
        "</think>",
        "<answer>",
        "\\boxed{B}",
        "\\boxed{",
        "answer is ",
        "B ",
        "* * *",
        "*",
        "******",
        "[",
        "[]",
        "<<",
        ">>",
        "Section 1 ",
        "Section",
        ". ",
        "e.g. ",
        "\n",
        "\n\n",
        "```\n",
        "`",
        "[1,",
        "{\"a\":",
        "1",
        "1,",
        "\"",
        ",",
        "the cat ",
        "é",
        "火",
        "\u{202e}",
        "\u{0}",
        "&amp;",
        "-\n",
        "3-",
        ".,",
        "İ",
        "ß ",
        "$",
        "\\(",
        "\\frac{",
        "\\boxed{1}, ",
        "x = \\boxed{1}, ",
        "answer\n",
        "# answer\n",
        "answers are therefore ",
        "Verdict n: ",
        "~~~\n",
        "<response n>\n",
    ] {
        let text = part.repeat(60_000 / part.len());
        let own = trajectory(STOPPED, 0);
        let judged = Judged {
            task: &task,
            segments: std::slice::from_ref(&own),
            text: &text,
            transcript: "",
            prompt: "",
        };
        let current = CurrentComponent::default();
        let mut rewards = vec![scorer.score(&judged, &current).unwrap(); 2];
        scorer.score_group(&[judged, judged], &mut rewards, &current).unwrap();
        assert!(rewards[0].components.iter().all(|component| component.value().is_some()), "{part:?}");
    }
}
