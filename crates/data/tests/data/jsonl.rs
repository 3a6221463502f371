//! JSONL files, valid and invalid.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::path::{Path, PathBuf};

use miette::Diagnostic;
use rloom_core::{ChatMessage, Demonstration, PromptSource, Task};
use rloom_data::{DataError, DataSettings, Dataset, FileSettings, Paths, PromptFormat, Source, Split};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

fn open(settings: FileSettings, split: Split) -> Result<Vec<Task>, DataError> {
    Dataset::open(&DataSettings::from(Source::Files(settings)), split, 1)?.iter().collect()
}

fn text(task: &Task) -> &str {
    match &task.prompt {
        PromptSource::Text(text) => text,
        PromptSource::Messages(_) => "(messages)",
    }
}

/// The error of a file with this content, without the path of the folder.
/// Message and hint of the error: `message [hint]`.
fn error_of(content: impl AsRef<[u8]>) -> String {
    let folder = Folder::new();
    let path = folder.file("data.jsonl", content);
    let error = open(FileSettings::new(path), Split::Train).unwrap_err();
    let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
    format!("{error}{hint}").replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn gsm8k_needs_no_conversion() {
    let folder = Folder::new();
    let path = folder.file(
        "train.jsonl",
        "{\"question\": \"How much?\", \"answer\": \"It is 9*2=<<9*2=18>>18.\\n#### 1,800\"}\n",
    );
    let tasks = open(FileSettings::new(&path), Split::Train).unwrap();
    assert_eq!(text(&tasks[0]), "How much?");
    assert_eq!(tasks[0].answer, "1,800");
    assert_eq!(tasks[0].demonstration, Some("It is 9*2=<<9*2=18>>18.\n#### 1,800".into()));
    assert_eq!(tasks[0].domain, "default");
    assert_eq!(open(FileSettings::new(&path), Split::Demonstration).unwrap(), tasks);
    let mut settings = FileSettings::new(&path);
    settings.answer_marker = String::new();
    assert_eq!(open(settings, Split::Train).unwrap()[0].answer, "It is 9*2=<<9*2=18>>18.\n#### 1,800");
}

#[test]
fn common_names_are_detected_and_others_can_be_set() {
    let folder = Folder::new();
    let common = folder.file("a.jsonl", "{\"prompt\": \"p\", \"solution\": 7, \"completion\": \"c\"}\n");
    let task = open(FileSettings::new(common), Split::Train).unwrap().remove(0);
    assert_eq!((text(&task), task.answer.as_str(), task.demonstration.clone()), ("p", "7", Some("c".into())));
    let named = folder.file(
        "b.jsonl",
        "{\"prompt\": \"no\", \"q\": \"yes\", \"a\": \"1\", \"w\": \"w\", \"d\": \"geometry\"}\n",
    );
    let mut settings = FileSettings::new(named);
    settings.prompt_field = Some("q".into());
    settings.answer_field = Some("a".into());
    settings.demonstration_field = Some("w".into());
    settings.domain_field = Some("d".into());
    let task = open(settings, Split::Train).unwrap().remove(0);
    assert_eq!(
        (text(&task), task.answer.as_str(), task.demonstration.clone()),
        ("yes", "1", Some("w".into()))
    );
    assert_eq!(task.domain, "geometry");
}

#[test]
fn conversations_may_end_with_a_demonstration() {
    let folder = Folder::new();
    let path = folder.file(
        "chat.jsonl",
        concat!(
            r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "answer": "ho"}"#,
            "\n",
            r#"{"messages": [{"role": "user", "content": "hi"}], "answer": "ho"}"#,
        ),
    );
    let user = ChatMessage::new("user", "hi");
    let tasks = open(FileSettings::new(&path), Split::Train).unwrap();
    for (task, demonstration) in tasks.iter().zip([Some("ho"), None]) {
        assert_eq!(task.prompt, PromptSource::Messages(vec![user.clone()]));
        assert_eq!(task.demonstration, demonstration.map(Demonstration::from));
    }
    // The other layout: prompt and completion are both conversations.
    let path = folder.file(
        "trl.jsonl",
        r#"{"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "ho"}]}"#,
    );
    let task = open(FileSettings::new(path), Split::Demonstration).unwrap().remove(0);
    assert_eq!((task.prompt, task.demonstration), (PromptSource::Messages(vec![user]), Some("ho".into())));
}

#[test]
fn prompt_format_is_applied_to_rows() {
    let folder = Folder::new();
    let path = folder.file("data.jsonl", "{\"prompt\": \"2+2\", \"answer\": \"4\"}\n");
    let settings = DataSettings {
        source: Source::Files(FileSettings::new(path)),
        prompt_format: PromptFormat {
            template: Some("Question: {prompt}\nAnswer:".into()),
            ..PromptFormat::default()
        },
        domain: None,
    };
    let task = Dataset::open(&settings, Split::Train, 0).unwrap().get(0).unwrap();
    assert_eq!(text(&task), "Question: 2+2\nAnswer:");
    let path =
        folder.file("chat.jsonl", r#"{"messages": [{"role": "user", "content": "hi"}], "answer": "ho"}"#);
    let settings = DataSettings { source: Source::Files(FileSettings::new(path)), ..settings };
    let error = Dataset::open(&settings, Split::Train, 0).unwrap_err().to_string();
    assert!(
        error.contains("chat.jsonl:1: `messages` is a conversation, but `template` is for plain prompts"),
        "{error}"
    );
}

#[test]
fn blank_lines_a_byte_order_mark_and_a_missing_last_line_break_are_accepted() {
    let folder = Folder::new();
    let path = folder.file(
        "data.jsonl",
        "\u{feff}{\"prompt\":\"a\",\"answer\":\"1\"}\r\n\n  \n{\"prompt\":\"b\",\"answer\":\"2\"}",
    );
    let tasks = open(FileSettings::new(path), Split::Train).unwrap();
    assert_eq!(tasks.iter().map(|t| (t.index, text(t))).collect::<Vec<_>>(), [(0, "a"), (1, "b")]);
}

#[test]
fn several_files_and_folders_are_read_in_order() {
    let folder = Folder::new();
    let row = |p: &str| format!("{{\"prompt\": \"{p}\", \"answer\": \"1\"}}\n");
    let first = folder.file("z.jsonl", row("z1") + &row("z2"));
    let inside = folder.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    for name in ["b.jsonl", "a.JSONL", "c.ndjson", "notes.txt"] {
        std::fs::write(inside.join(name), row(name)).unwrap();
    }
    let mut settings = FileSettings::new(&first);
    settings.path = Paths(vec![first.into(), inside.into()]);
    let names = |settings: &FileSettings| -> Vec<String> {
        open(settings.clone(), Split::Train).unwrap().iter().map(|t| text(t).to_owned()).collect()
    };
    assert_eq!(names(&settings), ["z1", "z2", "a.JSONL", "b.jsonl", "c.ndjson"]);
    settings.limit = Some(3);
    assert_eq!(names(&settings), ["z1", "z2", "a.JSONL"]);
}

#[test]
fn held_out_rows_are_in_no_other_split() {
    let folder = Folder::new();
    // Every prompt occurs three times.
    let row = |n: usize| format!("{{\"prompt\": \"p{}\", \"answer\": \"{n}\"}}\n", n % 100);
    let rows = (0..300).map(row).collect::<Vec<_>>().concat();
    let mut settings = FileSettings::new(folder.file("data.jsonl", rows));
    settings.eval_rows = Some(40);
    let train = open(settings.clone(), Split::Train).unwrap();
    let eval = open(settings.clone(), Split::Eval).unwrap();
    assert_eq!(train.len() + eval.len(), 300);
    assert!((40..43).contains(&eval.len()), "{}", eval.len());
    assert!(eval.iter().all(|e| train.iter().all(|t| t.prompt != e.prompt)));
    // Indices are row numbers, so that evaluations stay comparable.
    assert!(eval.iter().all(|e| e.answer == e.index.to_string()));
    // Not the first rows of the file, and independent of the seed.
    assert_ne!(eval.iter().map(|e| e.index).max(), Some(42));
    let again = Dataset::open(&DataSettings::from(Source::Files(settings)), Split::Eval, 99).unwrap();
    assert_eq!(again.iter().collect::<Result<Vec<_>, _>>().unwrap(), eval);
}

#[test]
fn held_out_tasks_can_be_in_a_separate_file() {
    let folder = Folder::new();
    let mut settings = FileSettings::new(folder.file("train.jsonl", "{\"prompt\":\"a\",\"answer\":\"1\"}"));
    assert!(matches!(open(settings.clone(), Split::Eval), Err(DataError::NoHeldOut)));
    settings.eval_path =
        Some(Paths(vec![folder.file("test.jsonl", "{\"question\":\"b\",\"answer\":\"2\"}").into()]));
    assert_eq!(text(&open(settings.clone(), Split::Eval).unwrap()[0]), "b");
    assert_eq!(text(&open(settings, Split::Train).unwrap()[0]), "a");
}

#[test]
fn holding_out_everything_is_refused() {
    let folder = Folder::new();
    let mut settings =
        FileSettings::new(folder.file("data.jsonl", "{\"prompt\":\"a\",\"answer\":\"1\"}\n".repeat(4)));
    settings.eval_rows = Some(4);
    let error = open(settings.clone(), Split::Train).unwrap_err().to_string();
    assert_eq!(error, "`eval_rows`: holding out 4 of 4 rows leaves none to train on");
    settings.eval_rows = Some(1);
    let error = open(settings, Split::Train).unwrap_err().to_string();
    assert!(error.contains("too few distinct prompts"), "{error}");
}

#[test]
fn errors_in_lines_name_file_and_line() {
    let good = "{\"prompt\": \"p\", \"answer\": \"1\"}\n";
    assert_eq!(
        error_of(format!("{good}{{\"prompt\": \"p\", \"answer\" 1}}\n")),
        "data.jsonl:2: not a JSON object: expected `:` (column 26) [a JSONL file has one JSON object per line]"
    );
    // Truncated in the middle of a line.
    assert_eq!(
        error_of(format!("{good}\n{{\"prompt\": \"p\", \"ans")),
        "data.jsonl:3: not a JSON object: EOF while parsing a string (column 20) [a JSONL file has one JSON object per line]"
    );
    assert_eq!(
        error_of(format!("{good}[1, 2]\n")),
        "data.jsonl:2: not a JSON object: the line is a list [a JSONL file has one JSON object per line]"
    );
    let mut bytes = good.as_bytes().to_vec();
    bytes.extend(b"{\"prompt\": \"caf\xe9\", \"answer\": \"1\"}\n");
    assert_eq!(error_of(bytes), "data.jsonl:2: not UTF-8 (byte 16 of the line) [convert the file to UTF-8]");
}

#[test]
fn errors_in_rows_name_file_line_and_field() {
    let good = "{\"prompt\": \"p\", \"answer\": \"1\"}\n";
    assert_eq!(
        error_of("{\"text\": \"p\", \"answer\": \"1\"}\n"),
        "data.jsonl:1: no field `prompt` or `question` or `messages`; the row has `text`, `answer` [set `prompt_field` to a field of the row, or add the field to the row]"
    );
    assert_eq!(
        error_of(format!("{good}{{\"prompt\": 5, \"answer\": \"1\"}}\n")),
        "data.jsonl:2: field `prompt` must be text or a list of messages, but it is a number"
    );
    assert_eq!(
        error_of("{\"prompt\": [{\"role\": \"assistant\", \"content\": \"x\"}], \"answer\": \"1\"}\n"),
        "data.jsonl:1: `prompt` has no message before the assistant's"
    );
    assert_eq!(
        error_of("{\"prompt\": [], \"answer\": \"1\"}\n"),
        "data.jsonl:1: `prompt` contains no messages"
    );
}

#[test]
fn empty_and_missing_files_are_refused() {
    assert_eq!(error_of(""), "data.jsonl has no rows");
    assert_eq!(error_of("\n \n"), "data.jsonl has no rows");
    let folder = Folder::new();
    let error = open(FileSettings::new(folder.path()), Split::Train).unwrap_err();
    assert!(matches!(error, DataError::EmptyFolder { .. }), "{error}");
    let error =
        open(FileSettings::new(folder.path().join("gone.jsonl")), Split::Train).unwrap_err().to_string();
    assert!(error.starts_with("cannot read ") && error.contains("gone.jsonl: "), "{error}");
    let error = open(FileSettings::new(folder.file("data.csv", "a,b")), Split::Train).unwrap_err();
    assert_eq!(
        error.help().unwrap().to_string(),
        "data files end in .jsonl, .jsonl.gz, .jsonl.zst or .parquet"
    );
}

/// GSM8K is not part of the repository: the test reads it from `RLOOM_GSM8K` or a folder next to the repository.
#[test]
fn the_gsm8k_dataset_is_read() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/gsm8k");
    let folder = std::env::var_os("RLOOM_GSM8K").map_or(default, PathBuf::from);
    if !folder.join("test.jsonl").is_file() {
        println!("skipped: no GSM8K in {}", folder.display());
        return;
    }
    let mut settings = FileSettings::new(folder.join("train.jsonl"));
    settings.eval_path = Some(Paths(vec![folder.join("test.jsonl").into()]));
    for (split, rows) in [(Split::Train, 7473), (Split::Demonstration, 7473), (Split::Eval, 1319)] {
        let tasks = open(settings.clone(), split).unwrap();
        assert_eq!(tasks.len(), rows);
        assert!(tasks.iter().all(|t| t.answer.replace(',', "").parse::<f64>().is_ok()));
        assert!(
            tasks.iter().all(|t| t.demonstration.as_ref().is_some_and(|d| d.turns()[0].ends_with(&t.answer)))
        );
    }
}
