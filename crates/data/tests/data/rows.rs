//! Fields of rows: read, passed on, or refused.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::path::PathBuf;

use miette::Diagnostic;
use rloom_core::{ChatMessage, Content, Demonstration, PromptSource, Task};
use rloom_data::{DataError, DataSettings, Dataset, FileSettings, Source, Split};
use serde_json::{Value, json};

/// A folder with one data file.
struct Data {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn data(rows: &[Value]) -> Data {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.jsonl");
    std::fs::write(&path, rows.iter().flat_map(|row| [row.to_string(), "\n".to_owned()]).collect::<String>())
        .unwrap();
    Data { _folder: folder, path }
}

impl Data {
    fn open_with(&self, split: Split, change: impl FnOnce(&mut FileSettings)) -> Result<Dataset, DataError> {
        let mut settings = FileSettings::new(&self.path);
        change(&mut settings);
        Dataset::open(&DataSettings::from(Source::Files(settings)), split, 1)
    }

    fn open(&self, split: Split) -> Result<Dataset, DataError> {
        self.open_with(split, |_| {})
    }

    fn tasks(&self, split: Split) -> Vec<Task> {
        self.open(split).unwrap().iter().collect::<Result<_, _>>().unwrap()
    }

    /// Message and hint of an error, without the path of the folder: `message [hint]`.
    fn text(&self, error: &DataError) -> String {
        let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
        format!("{error}{hint}").replace(&format!("{}/", self.path.parent().unwrap().display()), "")
    }
}

fn error_of(rows: &[Value], split: Split) -> String {
    let data = data(rows);
    let error = data.open(split).unwrap_err();
    data.text(&error)
}

fn messages(task: &Task) -> &[ChatMessage] {
    match &task.prompt {
        PromptSource::Messages(messages) => messages,
        PromptSource::Text(_) => &[],
    }
}

#[test]
fn every_field_of_a_message_is_passed_on() {
    let call = json!([{"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": null}}}]);
    let conversation = json!([
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "1+2?", "name": "Ann"},
        {"role": "assistant", "content": null, "tool_calls": call, "reasoning_content": "hm"},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add", "tool_calls": null},
    ]);
    let task = data(&[json!({"messages": conversation})]).tasks(Split::Train).remove(0);
    // Null counts as absent, as in `transformers`; within a field it stays.
    let mut expected = conversation;
    expected[2].as_object_mut().unwrap().shift_remove("content");
    expected[3].as_object_mut().unwrap().shift_remove("tool_calls");
    assert_eq!(serde_json::to_value(messages(&task)).unwrap(), expected);
    assert!(matches!(&messages(&task)[0].content, Some(Content::Parts(parts)) if parts.len() == 2));
    let stored = serde_json::to_string(&task).unwrap();
    assert_eq!(serde_json::from_str::<Task>(&stored).unwrap().prompt, task.prompt);
}

#[test]
fn a_demonstration_with_more_than_text_stays_a_message() {
    let user = json!({"role": "user", "content": "1+2?"});
    let answer = json!({"role": "assistant", "content": "3", "reasoning_content": "one, two, three"});
    let rows = [
        json!({"messages": [user, answer]}),
        json!({"messages": [user], "completion": [answer]}),
        json!({"messages": [user, {"role": "assistant", "content": "3", "tool_calls": null}]}),
    ];
    for (row, is_text) in rows.iter().zip([false, false, true]) {
        let task = data(std::slice::from_ref(row)).tasks(Split::Demonstration).remove(0);
        let demonstration = task.demonstration.clone().unwrap();
        if is_text {
            assert_eq!(demonstration, Demonstration::from("3"));
        } else {
            let Demonstration::Message(message) = &demonstration else { panic!("{demonstration:?}") };
            assert_eq!(serde_json::to_value(message).unwrap(), answer);
        }
        let stored = serde_json::to_string(&demonstration).unwrap();
        assert_eq!(serde_json::from_str::<Demonstration>(&stored).unwrap(), demonstration);
    }
}

#[test]
fn messages_that_cannot_be_passed_on_are_refused() {
    let of_message = |message: Value| error_of(&[json!({"messages": [message]})], Split::Train);
    assert_eq!(
        of_message(json!({"role": "user", "content": [
            {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "a.png"}},
        ]})),
        "data.jsonl:1: `messages[0].content[1]` has the type \"image_url\"; only parts of type \"text\" are \
         supported [remove the row, or write the message as text]"
    );
    assert_eq!(
        of_message(json!({"role": "user", "content": ["hi"]})),
        "data.jsonl:1: field `messages[0].content[0]` must be a text part, but it is text"
    );
    assert_eq!(
        of_message(json!({"role": "user", "content": [{"type": "text"}]})),
        "data.jsonl:1: field `messages[0].content[0].text` must be text, but it is null"
    );
    for message in [json!({"role": "user"}), json!({"role": "user", "content": null})] {
        assert_eq!(
            of_message(message),
            "data.jsonl:1: field `messages[0].content` must be text or a list of text parts, but it is null"
        );
    }
    assert_eq!(
        of_message(json!("hi")),
        "data.jsonl:1: field `messages[0]` must be a message, but it is text"
    );
    assert_eq!(
        of_message(json!({"content": "hi"})),
        "data.jsonl:1: field `messages[0].role` must be text, but it is null"
    );
}

/// The conversation of a row, divided into prompt and demonstration.
fn divided(row: &Value) -> (usize, Option<Demonstration>) {
    let task = data(std::slice::from_ref(row)).tasks(Split::Train).remove(0);
    (messages(&task).len(), task.demonstration)
}

#[test]
fn calls_and_their_results_before_the_last_message_are_part_of_the_demonstration() {
    let user = json!({"role": "user", "content": "1+2+3?"});
    let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]});
    let result = json!({"role": "tool", "content": "3"});
    let answer = json!({"role": "assistant", "content": "6"});
    let said = json!({"role": "assistant", "content": "hm"});
    let row = |messages: &[&Value]| json!({ "messages": messages });
    // The turns before the last question belong to the prompt, and so do those that lead to the last message by no call.
    for (messages, prompt) in [
        (vec![&user, &call, &result, &answer], 1),
        (vec![&user, &call, &result, &result, &call, &result, &answer], 1),
        (vec![&user, &call, &result, &answer, &user, &call, &result, &answer], 5),
        (vec![&user, &said, &call, &result, &answer], 2),
        (vec![&user, &result, &answer], 2),
    ] {
        let (length, demonstration) = divided(&row(&messages));
        assert_eq!(length, prompt, "{messages:?}");
        let demonstration = demonstration.unwrap();
        let Demonstration::Conversation(turns) = &demonstration else {
            assert_eq!((demonstration, messages.len()), (Demonstration::from("6"), 3));
            continue;
        };
        assert_eq!(serde_json::to_value(turns).unwrap(), json!(messages[prompt..]));
        let stored = serde_json::to_string(&demonstration).unwrap();
        assert_eq!(serde_json::from_str::<Demonstration>(&stored).unwrap(), demonstration);
    }
    assert_eq!(divided(&row(&[&user, &said, &answer])), (2, Some(Demonstration::from("6"))));
    assert_eq!(divided(&row(&[&user, &call, &result])), (3, None));
}

#[test]
fn a_demonstration_of_several_turns_has_texts_or_messages() {
    let user = json!({"role": "user", "content": "1+2?"});
    let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]});
    let answer = json!({"role": "assistant", "content": "3"});
    let result = json!({"role": "tool", "content": "3"});
    let of = |prompt: Value, demonstration: Value| {
        let row = json!({"prompt": prompt, "demonstration": demonstration});
        data(&[row]).tasks(Split::Demonstration).remove(0).demonstration.unwrap()
    };
    let texts = Demonstration::Turns(vec!["<add>1+2</add>".into(), "3".into()]);
    assert_eq!(of(json!("1+2="), json!(["<add>1+2</add>", "3"])), texts);
    for turns in [json!([call, result, answer]), json!([call, answer])] {
        let Demonstration::Conversation(messages) = of(json!([user]), turns.clone()) else {
            panic!("{turns}")
        };
        assert_eq!(serde_json::to_value(messages).unwrap(), turns);
    }
}

#[test]
fn completions_with_messages_of_the_prompt_are_refused() {
    let assistant = json!({"role": "assistant", "content": "a"});
    let row = |prompt: Value, completion: &[&Value]| json!({"prompt": prompt, "completion": completion});
    let user = json!({"role": "user", "content": "u"});
    let tool = json!({"role": "tool", "content": "t"});
    for completion in [vec![&user, &assistant], vec![&tool, &assistant], vec![&assistant, &user, &assistant]]
    {
        assert_eq!(
            error_of(&[row(json!([user]), &completion)], Split::Demonstration),
            "data.jsonl:1: `completion` has other messages than those of the assistant and the results of its tools \
             [move the messages before the assistant's to the prompt]"
        );
    }
    assert_eq!(
        error_of(&[row(json!([user]), &[&assistant, &tool])], Split::Demonstration),
        "data.jsonl:1: `completion` does not end with a message of the assistant"
    );
    assert_eq!(
        error_of(&[row(json!("p"), &[&assistant, &tool, &assistant])], Split::Demonstration),
        "data.jsonl:1: `completion` has more than text, but the prompt is not a conversation \
         [write the prompt as a list of messages, or set `chat = true`]"
    );
    let call = json!({"role": "assistant", "tool_calls": []});
    assert_eq!(
        error_of(&[row(json!("p"), &[&call])], Split::Demonstration),
        "data.jsonl:1: `completion` has more than text, but the prompt is not a conversation \
         [write the prompt as a list of messages, or set `chat = true`]"
    );
    // Nothing reads the demonstration of a task that is sampled.
    let task = data(&[row(json!("p"), &[&call])]).tasks(Split::Train).remove(0);
    assert_eq!((task.demonstration, &task.extra["completion"]), (None, &json!([call])));
}

#[test]
fn answers_are_optional_until_something_reads_them() {
    let rows = [
        json!({"prompt": "a", "answer": "1"}),
        json!({"prompt": "b", "label": "x", "note": null}),
        json!({"prompt": "c", "answer": null}),
        json!({"prompt": "d", "answer": ["1", "2"]}),
    ];
    let error = |rows: &[Value], field: Option<&str>| {
        let data = data(rows);
        let dataset = data
            .open_with(Split::Train, |settings| settings.answer_field = field.map(str::to_owned))
            .unwrap();
        data.text(&dataset.check_answers(&|_| Some("the reward `math`".to_owned())).unwrap_err())
    };
    let all = data(&rows);
    let answers: Vec<String> = all.tasks(Split::Train).into_iter().map(|task| task.answer).collect();
    assert_eq!(answers, ["1", "", "", ""]);
    let hint = " [name the field with `answer_field`, or use a reward that reads no answer, such as `length` or `format`]";
    assert_eq!(
        error(&rows, None),
        format!(
            "data.jsonl:2: no field `answer` or `solution`, which the reward `math` reads; the row's other fields are \
             `label`{hint}"
        )
    );
    assert_eq!(
        error(&[json!({"prompt": "a"})], None),
        format!(
            "data.jsonl:1: no field `answer` or `solution`, which the reward `math` reads; the row has no other fields \
             than the prompt{hint}"
        )
    );
    assert_eq!(
        error(&[json!({"prompt": "a", "gold": 1}), json!({"prompt": "b", "answer": 1})], Some("gold")),
        format!(
            "data.jsonl:2: no field `gold`, which the reward `math` reads; the row's other fields are `answer`{hint}"
        )
    );
    assert_eq!(
        error(&rows[3..], None),
        "data.jsonl:1: field `answer` must be text or a number, but it is a list"
    );
    assert_eq!(
        error(&[json!({"prompt": "a", "answer": "so\n#### "})], None),
        "data.jsonl:1: `answer` contains no answer"
    );
    data(&rows[..1])
        .open(Split::Train)
        .unwrap()
        .check_answers(&|_| Some("the reward `math`".to_owned()))
        .unwrap();
}

#[test]
fn other_fields_of_a_row_are_extra() {
    let extra =
        json!({"tests": ["assert f(1) == 2"], "level": 3, "meta": {"b": null, "a": 0.1}, "none": null});
    let mut row = json!({"question": "q", "solution": "s", "completion": "c", "kind": "code"});
    row.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let data = data(&[row, json!({"question": "q", "solution": "s", "kind": "x"})]);
    let named = |settings: &mut FileSettings| settings.domain_field = Some("kind".into());
    let dataset = data.open_with(Split::Train, named).unwrap();
    let task = dataset.get(0).unwrap();
    assert_eq!(Value::Object((*task.extra).clone()), extra);
    assert!(dataset.get(1).unwrap().extra.is_empty());
    // Clones share the fields, and stored tasks do not repeat them.
    assert!(std::sync::Arc::ptr_eq(&task.extra, &dataset.get(0).unwrap().extra));
    assert!(!serde_json::to_string(&task).unwrap().contains("level"));
}

#[test]
fn named_fields_that_no_row_has_are_refused() {
    let data = data(&[json!({"prompt": "p", "label": 1}), json!({"prompt": "p", "level": 2})]);
    let error =
        |change: &dyn Fn(&mut FileSettings)| data.text(&data.open_with(Split::Train, change).unwrap_err());
    assert_eq!(
        error(&|settings| settings.answer_field = Some("gold".into())),
        "no row of data.jsonl has the field `gold`; the rows have `prompt`, `label`, `level` \
         [correct or remove `answer_field`]"
    );
    assert_eq!(
        error(&|settings| settings.demonstration_field = Some("written".into())),
        "no row of data.jsonl has the field `written`; the rows have `prompt`, `label`, `level` \
         [correct or remove `demonstration_field`]"
    );
    assert_eq!(
        error(&|settings| settings.prompt_field = Some("text".into())),
        "data.jsonl:1: no field `text`; the row has `prompt`, `label` [set `prompt_field` to a field of the row, or add the field to the row]"
    );
    assert_eq!(
        error(&|settings| settings.domain_field = Some("kind".into())),
        "data.jsonl:1: no field `kind`; the row has `prompt`, `label` [set `domain_field` to a field of the row, or add the field to the row]"
    );
    // One row that has it is enough, and it can be the last one.
    data.open_with(Split::Train, |settings| settings.answer_field = Some("level".into())).unwrap();
}

#[test]
fn a_limit_of_prompts_must_be_positive() {
    let data = data(&[json!({"prompt": "p"})]);
    let error = data.open_with(Split::Train, |settings| settings.max_prompt_tokens = Some(0)).unwrap_err();
    assert_eq!(data.text(&error), "`max_prompt_tokens`: must be at least 1, but is 0");
}

#[test]
fn dropped_rows_leave_the_places_of_the_others() {
    let rows: Vec<Value> = (0..5).map(|n| json!({"prompt": format!("p{n}")})).collect();
    let data = data(&rows);
    let mut dataset = data.open(Split::Train).unwrap();
    dataset.retain(|position| position % 2 == 0);
    let kept: Vec<u64> = dataset.iter().map(|task| task.unwrap().index).collect();
    assert_eq!(kept, [0, 2, 4]);
    assert!(dataset.location(2).unwrap().to_string().ends_with("data.jsonl:5"));
    assert!(dataset.location(3).is_err());
}
