//! Conversations of data files, as the chat template receives them, and the lengths of prompts.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::path::{Path, PathBuf};

use miette::Diagnostic;
use rloom_collect::{PromptError, PromptRoom, RowLimits, Selection, TaskLength, check_room, measure_prompts};
use rloom_core::{ChatMessage, Demonstration, PromptSource, Task};
use rloom_data::{DataError, DataSettings, Dataset, FileSettings, Source, Split};
use rloom_text::{CharacterSettings, ChatTemplate, DateTime, RenderOptions, SpecialTokens, Tokenizer};
use serde_json::{Value, json};

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

struct Data {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Data {
    fn new(rows: &[Value]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        std::fs::write(
            &path,
            rows.iter().flat_map(|row| [row.to_string(), "\n".to_owned()]).collect::<String>(),
        )
        .unwrap();
        Self { folder, path }
    }

    fn open(&self) -> Result<Dataset, DataError> {
        Dataset::open(&DataSettings::from(Source::Files(FileSettings::new(&self.path))), Split::Train, 0)
    }

    /// Message and hint of an error, without the path of the folder: `message [hint]`.
    fn text(&self, error: &PromptError) -> String {
        let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
        format!("{error}{hint}").replace(&format!("{}/", self.folder.path().display()), "")
    }
}

/// The whole conversation of a task, with its demonstration.
fn conversation(task: Task) -> Vec<ChatMessage> {
    let PromptSource::Messages(mut messages) = task.prompt else { panic!("a plain prompt") };
    messages.extend(task.demonstration.map(|demonstration| match demonstration {
        Demonstration::Completion(text) => ChatMessage::new("assistant", text),
        Demonstration::Message(message) => *message,
        other => panic!("{other:?}"),
    }));
    messages
}

/// The texts are those of `apply_chat_template`, see `crates/text/tests/golden/chat.py`.
#[test]
fn rows_are_rendered_as_transformers_renders_them() {
    let stored: Value = serde_json::from_str(&golden("chat.json")).unwrap();
    let conversations: Value = serde_json::from_str(&golden("conversations.json")).unwrap();
    let special = |name: &str| stored["special"][name].as_str().map(str::to_owned);
    let special = SpecialTokens {
        bos: special("bos_token"),
        eos: special("eos_token"),
        pad: special("pad_token"),
        ..SpecialTokens::default()
    };
    let now = |part: usize| stored["now"][part].as_u64().unwrap();
    let now = DateTime {
        year: now(0) as u16,
        month: now(1) as u8,
        day: now(2) as u8,
        hour: now(3) as u8,
        minute: now(4) as u8,
        second: now(5) as u8,
    };
    let (mut rendered, mut refused) = (0, Vec::new());
    for (name, conversation_of) in conversations.as_object().unwrap() {
        let data = Data::new(&[json!({"messages": conversation_of["messages"]})]);
        let Ok(dataset) = data.open() else {
            refused.push(name.as_str());
            continue;
        };
        let task = dataset.get(0).unwrap();
        let messages = conversation(task);
        let of_conversation = |case: &&Value| case["conversation"] == name.as_str();
        for case in stored["cases"].as_array().unwrap().iter().filter(of_conversation) {
            let Some(expected) = case["text"].as_str() else { continue };
            let template = golden(&format!("templates/{}.jinja", case["template"].as_str().unwrap()));
            let options = RenderOptions {
                add_generation_prompt: conversation_of["add_generation_prompt"] == true,
                tools: (conversation_of["tools"] == "all")
                    .then(|| stored["tools"].as_array().unwrap().as_slice()),
                documents: conversation_of["documents"].as_array().map(Vec::as_slice),
                variables: conversation_of["variables"].as_object(),
                now: Some(now),
                template: None,
            };
            let text = ChatTemplate::new(&template, &special).unwrap().render(&messages, &options).unwrap();
            assert_eq!(text, expected, "{} over {name}", case["template"]);
            rendered += 1;
        }
    }
    // A tool's result that is an object, an image, a message without anything.
    assert_eq!(refused, ["call_without_content", "parts", "no_content"]);
    assert!(rendered >= 150, "{rendered}");
}

fn tokenizer() -> Tokenizer {
    let mut settings = CharacterSettings::new("abcdefghijklmnopqrstuvwxyz[]");
    let template = "{% for m in messages %}{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}";
    settings.chat_template = Some(template.into());
    Tokenizer::characters(&settings).unwrap()
}

fn measure(dataset: &Dataset, selection: Selection, threads: usize) -> Result<Vec<TaskLength>, PromptError> {
    let measured = measure_prompts(dataset, &tokenizer(), selection, false, threads, &mut |_| true)?;
    Ok(measured.unwrap())
}

fn prompts(lengths: &[usize]) -> Data {
    Data::new(&lengths.iter().map(|&length| json!({"prompt": "a".repeat(length)})).collect::<Vec<_>>())
}

#[test]
fn lengths_are_those_of_the_rendered_prompts_on_any_number_of_threads() {
    let lengths: Vec<usize> = (0..1000).map(|n| 1 + n * 7 % 41).collect();
    let data = prompts(&lengths);
    let dataset = data.open().unwrap();
    for threads in [1, 3] {
        let measured = measure(&dataset, Selection::first(1000), threads).unwrap();
        assert!(measured.iter().map(|length| length.prompt as usize).eq(lengths.iter().copied()));
    }
    let some = measure(&dataset, Selection { span: 1000, count: 4 }, 1).unwrap();
    assert!(
        some.iter().map(|length| length.prompt as usize).eq([0, 250, 500, 750].map(|at: usize| lengths[at]))
    );
    let chat = Data::new(&[json!({"messages": [{"role": "user", "content": "ab"}]})]);
    assert_eq!(
        measure(&chat.open().unwrap(), Selection::first(1), 1).unwrap()[0].prompt,
        "[user]ab".len() as u32
    );
    let stopped = measure_prompts(&dataset, &tokenizer(), Selection::first(1000), false, 1, &mut |_| false);
    assert!(stopped.unwrap().is_none());
}

#[test]
fn a_prompt_that_cannot_be_used_is_named_by_its_row() {
    let good = json!({"messages": [{"role": "user", "content": "a"}]});
    let error_of = |bad: Value| {
        let mut rows = vec![good.clone(); 700];
        rows[600] = bad.clone();
        rows[690] = bad;
        let data = Data::new(&rows);
        data.text(&measure(&data.open().unwrap(), Selection::first(700), 2).unwrap_err())
    };
    let tool = json!({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]});
    assert_eq!(
        error_of(tool),
        "data.jsonl:601: `role` of message 2 is \"tool\", which the chat template does not render [remove it from the \
         data or write it as text, or use a model whose chat template renders it]"
    );
    let unknown = error_of(json!({"messages": [{"role": "user", "content": "A"}]}));
    assert!(unknown.starts_with("data.jsonl:601: the tokenizer has no token for 'A'"), "{unknown}");
    let empty = Data::new(&[json!({"prompt": "a"}), json!({"prompt": ""})]);
    let error = measure(&empty.open().unwrap(), Selection::first(2), 1).unwrap_err();
    assert!(empty.text(&error).starts_with("data.jsonl:2: the prompt is empty"), "{error}");
}

#[test]
fn prompts_without_room_are_refused_or_dropped() {
    let data = prompts(&[3, 12, 5, 20, 10]);
    let mut dataset = data.open().unwrap();
    let lengths = measure(&dataset, Selection::first(5), 1).unwrap();
    let room = PromptRoom::Completion { context: 16, max_new_tokens: 6 };
    let error = check_room(&dataset, &lengths, Selection::first(5), room).unwrap_err();
    assert_eq!(
        data.text(&error),
        "data.jsonl:2: the prompt has 12 tokens, but only 10 fit: the context is 16 and a completion has up to 6; 2 of 5 \
         prompts exceed 10 tokens, the longest has 20 [set `data.max_prompt_tokens = 10` to drop longer prompts, lower \
         `sampling.max_new_tokens`, or use a model with a longer context]"
    );
    let limits = |limit| RowLimits { max_prompt_tokens: Some(limit), context: 16, rules: None };
    let (kept, counts) = limits(10).apply(&mut dataset, &lengths).unwrap();
    assert_eq!((counts.long_prompts, counts.cut), (2, 0));
    check_room(&dataset, &kept, Selection::first(3), room).unwrap();
    assert_eq!(dataset.iter().map(|task| task.unwrap().index).collect::<Vec<_>>(), [0, 2, 4]);
    let error = limits(2).apply(&mut dataset, &kept).unwrap_err();
    assert_eq!(
        data.text(&error),
        "all 3 prompts are longer than `max_prompt_tokens = 2`; the shortest has 3 tokens [set `data.max_prompt_tokens` to \
         at least 3]"
    );
}
