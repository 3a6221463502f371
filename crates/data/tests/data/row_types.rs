//! Rows of preference pairs, labelled completions, labelled steps and texts.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::path::PathBuf;

use proptest::prelude::*;
use rloom_core::{Demonstration, LabelledStep, LossOn, Preference, PromptSource, Task};
use rloom_data::{
    ArithmeticSettings, DataError, DataSettings, Dataset, FileSettings, PromptFormat, RowKind, Source, Split,
    TooLong, WeightedSource,
};
use rloom_hub::Hub;
use serde_json::{Value, json};

struct Data {
    folder: tempfile::TempDir,
    path: PathBuf,
}

fn data(rows: &[Value]) -> Data {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.jsonl");
    let lines: String = rows.iter().flat_map(|row| [row.to_string(), "\n".to_owned()]).collect();
    std::fs::write(&path, lines).unwrap();
    Data { folder, path }
}

fn open(settings: &DataSettings, kind: RowKind) -> Result<Dataset, DataError> {
    Dataset::open_kind(settings, Split::Demonstration, kind, 1, &Hub::from_env())
}

impl Data {
    fn with(&self, kind: RowKind, change: impl FnOnce(&mut FileSettings)) -> Result<Vec<Task>, String> {
        let mut settings = FileSettings::new(&self.path);
        change(&mut settings);
        self.of(&DataSettings::from(Source::Files(settings)), kind)
    }

    fn of(&self, settings: &DataSettings, kind: RowKind) -> Result<Vec<Task>, String> {
        let read = open(settings, kind).and_then(|dataset| dataset.iter().collect());
        read.map_err(|error| error.to_string().replace(&format!("{}/", self.folder.path().display()), ""))
    }
}

fn tasks(rows: &[Value], kind: RowKind) -> Vec<Task> {
    data(rows).with(kind, |_| {}).unwrap()
}

fn error(rows: &[Value], kind: RowKind) -> String {
    data(rows).with(kind, |_| {}).unwrap_err()
}

fn says(messages: &[(&str, &str)]) -> Value {
    messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn pair(task: &Task) -> &Preference {
    match task.demonstration.as_ref().unwrap() {
        Demonstration::Preference(pair) => pair,
        other => panic!("{other:?}"),
    }
}

fn prompt(task: &Task) -> Value {
    match &task.prompt {
        PromptSource::Text(text) => json!(text),
        PromptSource::Messages(messages) => serde_json::to_value(messages).unwrap(),
    }
}

#[test]
fn pairs_have_a_prompt_or_begin_with_it() {
    let (user, good, bad) = (("user", "1+1?"), ("assistant", "2"), ("assistant", "3"));
    let again = ("user", "sure?");
    let talk = says(&[user, good, again]);
    for (row, expected, chosen, rejected) in [
        (json!({"prompt": "1+1=", "chosen": "2", "rejected": "3"}), json!("1+1="), "2", "3"),
        (json!({"question": "1+1=", "chosen": "2", "rejected": "3"}), json!("1+1="), "2", "3"),
        // A space before the difference is part of the completions, and so is the word in which they differ.
        (
            json!({"chosen": "The sum is 12.", "rejected": "The sum is 15."}),
            json!("The sum is"),
            " 12.",
            " 15.",
        ),
        (json!({"chosen": "a sum", "rejected": "a summary"}), json!("a"), " sum", " summary"),
        (json!({"chosen": "1 + 1", "rejected": "1 + 1 = 3"}), json!("1 + 1"), "", " = 3"),
        (json!({"chosen": "1+1 is 2", "rejected": "1+1 is 3"}), json!("1+1 is"), " 2", " 3"),
        (json!({"chosen": "größer", "rejected": "größte"}), json!("größ"), "er", "te"),
        (json!({"chosen": "1+1=", "rejected": "1+1=3"}), json!("1+1="), "", "3"),
        (
            json!({"prompt": says(&[user]), "chosen": says(&[good]), "rejected": says(&[bad])}),
            says(&[user]),
            "2",
            "3",
        ),
        (json!({"prompt": says(&[user]), "chosen": "2", "rejected": "3"}), says(&[user]), "2", "3"),
        (
            json!({"chosen": says(&[user, good, again, good]), "rejected": says(&[user, good, again, bad])}),
            talk.clone(),
            "2",
            "3",
        ),
        // The last answers are the completions, even if they are the same.
        (json!({"chosen": says(&[user, good]), "rejected": says(&[user, good])}), says(&[user]), "2", "2"),
        // Plain text that both conversations repeat.
        (
            json!({"prompt": "1+1?", "chosen": says(&[user, good]), "rejected": says(&[user, bad])}),
            says(&[user]),
            "2",
            "3",
        ),
    ] {
        let task = tasks(std::slice::from_ref(&row), RowKind::Pairs).remove(0);
        assert_eq!(prompt(&task), expected, "{row}");
        let expected = Preference { chosen: chosen.into(), rejected: rejected.into(), margin: None };
        assert_eq!(pair(&task), &expected, "{row}");
        assert!(task.extra.is_empty(), "{row}");
        let stored = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&stored).unwrap(), task);
    }
}

#[test]
fn margins_and_other_names_of_fields() {
    let row = json!({"q": "1+1=", "good": "2", "bad": "3", "gap": 1.5, "note": "x"});
    let named = |settings: &mut FileSettings| {
        settings.prompt_field = Some("q".into());
        settings.chosen_field = Some("good".into());
        settings.rejected_field = Some("bad".into());
        settings.margin_field = Some("gap".into());
    };
    let task = data(&[row]).with(RowKind::Pairs, named).unwrap().remove(0);
    assert_eq!((pair(&task).margin, task.extra.len()), (Some(1.5), 1));
    let row = |margin: Value| json!({"prompt": "p", "chosen": "a", "rejected": "b", "margin": margin});
    let of = |margin| pair(&tasks(&[row(margin)], RowKind::Pairs)[0]).margin;
    assert_eq!((of(json!(0.25)), of(Value::Null), of(json!("large"))), (Some(0.25), None, None));
    let required = |settings: &mut FileSettings| settings.margin_field = Some("margin".into());
    assert_eq!(
        data(&[row(json!("large"))]).with(RowKind::Pairs, required).unwrap_err(),
        "data.jsonl:1: field `margin` must be a number, but it is text"
    );
}

#[test]
fn labels_and_steps() {
    let row = |label: Value| json!({"prompt": "1+1=", "completion": "2", "label": label});
    for (label, expected) in [(json!(true), true), (json!(0), false), (json!(1.0), true)] {
        let task = tasks(&[row(label)], RowKind::Labels).remove(0);
        let Some(Demonstration::Labelled(labelled)) = &task.demonstration else { panic!("{task:?}") };
        assert_eq!((labelled.label, &labelled.completion), (expected, &"2".into()));
        let stored = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&stored).unwrap(), task);
    }
    let rows = [json!({"prompt": "1+1=", "completions": ["one", "two"], "labels": [true, false]})];
    let of = |separator: Option<&str>| {
        let separator = separator.map(str::to_owned);
        let read = data(&rows).with(RowKind::Steps, |settings| settings.step_separator = separator);
        let task = read.unwrap().remove(0);
        let stored = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&stored).unwrap(), task);
        match task.demonstration {
            Some(Demonstration::Steps(steps)) => steps,
            other => panic!("{other:?}"),
        }
    };
    let step = |text: &str, label| LabelledStep { text: text.into(), label };
    assert_eq!(of(None).steps, [step("one", true), step("two", false)]);
    assert_eq!((of(None).separator.as_str(), of(Some(" ")).separator.as_str()), ("\n", " "));
}

#[test]
fn texts_are_learned_as_a_whole() {
    let text = json!({"text": "abc", "source": "x"});
    let task = tasks(std::slice::from_ref(&text), RowKind::Demonstrations).remove(0);
    assert_eq!((prompt(&task), &task.demonstration), (json!("abc"), &Some("".into())));
    let rules = |rows: &[Value], change: &dyn Fn(&mut FileSettings)| {
        let data = data(rows);
        let mut settings = FileSettings::new(&data.path);
        change(&mut settings);
        open(&DataSettings::from(Source::Files(settings)), RowKind::Demonstrations).map(|set| set.rules(0))
    };
    assert_eq!(rules(std::slice::from_ref(&text), &|_| {}).unwrap().loss_on, LossOn::All);
    let completion = json!({"prompt": "a", "completion": "b", "text": "ab"});
    let found = rules(std::slice::from_ref(&completion), &|_| {}).unwrap();
    assert_eq!((found.loss_on, found.too_long), (LossOn::Completion, TooLong::Error));
    // A row that has both is a text if the settings say so.
    let named = |settings: &mut FileSettings| settings.text_field = Some("text".into());
    assert_eq!(rules(&[completion], &named).unwrap().loss_on, LossOn::All);
    let refused = rules(std::slice::from_ref(&text), &|settings| settings.loss_on = Some(LossOn::Completion));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "`loss_on`: must be `all` for rows that are texts, but is completion"
    );
    let data = data(&[text]);
    let mut settings = DataSettings::from(Source::Files(FileSettings::new(&data.path)));
    settings.prompt_format = PromptFormat { chat: Some(true), ..PromptFormat::default() };
    assert_eq!(
        data.of(&settings, RowKind::Demonstrations).unwrap_err(),
        "data.jsonl:1: `text` is learned as a whole, but `template`, `system` and `chat` are for prompts; remove them"
    );
}

#[test]
fn rows_of_another_kind_are_refused_with_what_they_are() {
    let pair = json!({"prompt": "p", "chosen": "a", "rejected": "b"});
    let implicit = json!({"chosen": "pa", "rejected": "pb"});
    let label = json!({"prompt": "p", "completion": "a", "label": true});
    let steps = json!({"prompt": "p", "completions": ["a"], "labels": [true]});
    let other = |wanted: &str, found: &str| {
        format!(
            "data.jsonl:1: the stage's method learns from {wanted}, but the row has the fields of {found}; use a method that \
             learns from these, or other data"
        )
    };
    let (pairs, labels, of_steps, demonstrations) =
        ("preference pairs", "completions with a label", "steps with labels", "demonstrations");
    for (row, kind, expected) in [
        (&pair, RowKind::Demonstrations, other(demonstrations, pairs)),
        (&implicit, RowKind::Demonstrations, other(demonstrations, pairs)),
        (&steps, RowKind::Labels, other(labels, of_steps)),
        (&label, RowKind::Pairs, other(pairs, labels)),
        (&steps, RowKind::Pairs, other(pairs, of_steps)),
        (&label, RowKind::Steps, other(of_steps, labels)),
        (
            &json!({"prompt": "p", "completion": "a"}),
            RowKind::Labels,
            "data.jsonl:1: no field `label`; the row has `prompt`, `completion`".to_owned(),
        ),
        (
            &json!({"prompt": "p", "answer": "a"}),
            RowKind::Pairs,
            "data.jsonl:1: no field `chosen`; the row has `prompt`, `answer`".to_owned(),
        ),
    ] {
        assert_eq!(error(std::slice::from_ref(row), kind), expected, "{row}");
    }
    // What a method does not read is no error.
    assert_eq!(tasks(std::slice::from_ref(&label), RowKind::Demonstrations).len(), 1);
    assert_eq!(tasks(&[pair], RowKind::Prompts).len(), 1);
}

#[test]
fn mixed_types_are_refused_with_the_row() {
    let pair = json!({"prompt": "p", "chosen": "a", "rejected": "b"});
    let label = json!({"prompt": "p", "completion": "a", "label": true});
    assert_eq!(
        error(&[pair.clone(), label], RowKind::Pairs),
        "data.jsonl:2: no field `chosen`; the row has `prompt`, `completion`, `label`"
    );
    assert_eq!(
        error(&[pair.clone(), json!({"chosen": "pa", "rejected": "pb"})], RowKind::Pairs),
        "data.jsonl:2: no field `prompt`; the row has `chosen`, `rejected`"
    );
    let talk = says(&[("user", "p"), ("assistant", "a")]);
    assert_eq!(
        error(&[pair, json!({"prompt": "p", "chosen": "a", "rejected": talk})], RowKind::Pairs),
        "data.jsonl:2: `rejected` has other messages than those of the assistant and the results of its tools"
    );
    // Texts in one file, prompts in another.
    let texts = data(&[json!({"text": "a"}), json!({"text": "b"})]);
    std::fs::write(texts.folder.path().join("more.jsonl"), "{\"prompt\": \"p\", \"completion\": \"a\"}\n")
        .unwrap();
    let settings = DataSettings::from(Source::Files(FileSettings::new(texts.folder.path())));
    assert_eq!(
        texts.of(&settings, RowKind::Demonstrations).unwrap_err(),
        "more.jsonl:1: the row has a prompt, but the first row (data.jsonl:1) has a text that is learned as a whole; give \
         each type a source of its own in `sources`"
    );
    // As sources with weights they can be mixed.
    let of = |name: &str| {
        let files = FileSettings::new(texts.folder.path().join(name));
        WeightedSource { weight: 1.0, data: DataSettings::from(Source::Files(files)) }
    };
    let sources = Source::Mixture(vec![of("data.jsonl"), of("more.jsonl")]);
    let mixed = open(&DataSettings::from(sources), RowKind::Demonstrations).unwrap();
    let loss_on: Vec<LossOn> = (0..3).map(|position| mixed.rules(position).loss_on).collect();
    assert_eq!(loss_on, [LossOn::All, LossOn::All, LossOn::Completion]);
}

#[test]
fn unusable_values_are_named() {
    let of_pair = |row: Value| error(&[row], RowKind::Pairs);
    let of_steps = |steps: Value, labels: Value| {
        error(&[json!({"prompt": "p", "completions": steps, "labels": labels})], RowKind::Steps)
    };
    let user = ("user", "p");
    for (found, expected) in [
        (
            of_pair(json!({"chosen": "same", "rejected": "same"})),
            "`rejected` is the same text as the chosen one, so that their prompt is unknown; give the prompt a field of its own",
        ),
        (
            of_pair(json!({"chosen": "a", "rejected": "b"})),
            "`rejected` does not begin as the chosen one does, so that there is no prompt; give the prompt a field of its own",
        ),
        (
            of_pair(json!({"chosen": "ab", "rejected": 3})),
            "field `rejected` must be text, as the chosen completion is, but it is a number",
        ),
        (
            of_pair(json!({"chosen": says(&[user, ("assistant", "a")]), "rejected": says(&[user])})),
            "`rejected` does not end with a message of the assistant",
        ),
        (
            of_pair(json!({"prompt": says(&[user, ("assistant", "a")]), "chosen": "b", "rejected": "c"})),
            "`prompt` ends with a message of the assistant, but the completions are in other fields; end it with the user's \
             message",
        ),
        (of_steps(json!([]), json!([])), "`completions` contains no steps"),
        (of_steps(json!(["a", "b"]), json!([true])), "`labels` has 1 labels for 2 steps"),
        (
            of_steps(json!(["a", 2]), json!([true, true])),
            "field `completions[1]` must be text, but it is a number",
        ),
        (of_steps(json!(["a"]), json!([2])), "`labels[0]` must be true or false (1 or 0), but is 2"),
        (of_steps(json!(["a"]), json!(["good"])), "field `labels[0]` must be true or false, but it is text"),
    ] {
        assert_eq!(found, format!("data.jsonl:1: {expected}"));
    }
    let conversation = |settings: &mut FileSettings| settings.loss_on = Some(LossOn::Assistant);
    let plain = data(&[json!({"prompt": "p", "completion": "a"})]);
    assert_eq!(
        plain.with(RowKind::Demonstrations, conversation).unwrap_err(),
        "data.jsonl:1: `prompt` is no conversation, but `loss_on = \"assistant\"` is for conversations; remove it"
    );
}

#[test]
fn generators_have_demonstrations_only() {
    let settings = DataSettings::from(Source::Arithmetic(ArithmeticSettings::default()));
    assert!(open(&settings, RowKind::Demonstrations).is_ok());
    assert_eq!(
        open(&settings, RowKind::Pairs).unwrap_err().to_string(),
        "the stage's method learns from preference pairs, but the generator `arithmetic` has demonstrations; use a method \
         that learns from these, or other data"
    );
}

#[test]
fn settings_of_rows_are_checked() {
    let of = |text: &str| match serde_json::from_str::<DataSettings>(text) {
        Ok(settings) => settings.validate().map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(
        of(r#"{"path": "a", "loss_on": "assistant", "too_long": "keep_end", "max_tokens": 9}"#),
        Ok(())
    );
    let error = of(r#"{"path": "a", "max_tokens": 0}"#).unwrap_err();
    assert!(error.starts_with("`max_tokens`: must be at least 1"), "{error}");
    assert_eq!(
        of(r#"{"path": "a", "text_field": "t", "prompt_field": "p"}"#).unwrap_err(),
        "`text_field`: cannot be combined with `prompt_field`"
    );
    let error = of(r#"{"generator": "arithmetic", "loss_on": "all"}"#).unwrap_err();
    assert!(error.contains("unknown field `loss_on`"), "{error}");
}

proptest! {
    /// Whatever the texts: prompt and completions together are the two texts.
    #[test]
    fn implicit_prompts_lose_no_text(common in "\\PC{1,8}", chosen in "\\PC{0,8}", rejected in "\\PC{0,8}") {
        let (chosen, rejected) = (format!("{common}{chosen}"), format!("{common}{rejected}"));
        prop_assume!(chosen != rejected && !common.trim_start_matches(' ').is_empty());
        let row = json!({"chosen": chosen, "rejected": rejected});
        let task = tasks(&[row], RowKind::Pairs).remove(0);
        let start = prompt(&task).as_str().unwrap().to_owned();
        let whole = |completion: &Demonstration| format!("{start}{}", completion.turns()[0]);
        prop_assert_eq!(whole(&pair(&task).chosen), chosen);
        prop_assert_eq!(whole(&pair(&task).rejected), rejected);
    }

    /// Random JSON in the fields of every kind is a task or an error.
    #[test]
    fn any_values_are_a_task_or_an_error(values in prop::collection::vec(any_value(), 5), kind in 0..5usize) {
        let names = ["prompt", "chosen", "rejected", "completion", "label"];
        let steps = ["prompt", "completions", "labels", "text", "margin"];
        let kinds = [RowKind::Prompts, RowKind::Demonstrations, RowKind::Pairs, RowKind::Labels, RowKind::Steps];
        for names in [names, steps] {
            let row: Value = names.iter().map(|name| (*name).to_owned()).zip(values.clone()).collect();
            let _ = data(&[row]).with(kinds[kind], |_| {});
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let message = || {
        (0..3usize, "[a-c]{0,2}")
            .prop_map(|(role, text)| json!({"role": (["user", "assistant", "tool"])[role], "content": text}))
    };
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-1..3).prop_map(Value::from),
        "[a-c ]{0,3}".prop_map(Value::from),
        prop::collection::vec(message(), 0..3).prop_map(Value::from),
        prop::collection::vec("[a-c]{0,2}", 0..3).prop_map(|texts| json!(texts)),
        prop::collection::vec(any::<bool>(), 0..3).prop_map(|labels| json!(labels)),
    ]
}
