//! Parquet files written by pyarrow (`tests/golden/make_parquet.py`).

use std::path::PathBuf;

use miette::Diagnostic;
use rloom_core::{ChatMessage, PromptSource, Task};
use rloom_data::{DataError, DataSettings, Dataset, FileSettings, Source, Split};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(settings: FileSettings, split: Split) -> Result<Vec<Task>, DataError> {
    let settings = DataSettings::from(Source::Files(settings));
    Dataset::open(&settings, split, 0)?.iter().collect()
}

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage::new(role, content)
}

#[test]
fn conversations_are_lists_of_structs() {
    let mut settings = FileSettings::new(golden("conversations.parquet"));
    settings.domain_field = Some("kind".into());
    let tasks = read(settings, Split::Train).unwrap();
    assert_eq!(tasks.len(), 3);
    assert_eq!(tasks[0].prompt, PromptSource::Messages(vec![message("user", "2+2=?")]));
    assert_eq!(tasks[0].demonstration, Some("It is 4.".into()));
    assert_eq!(
        tasks[1].prompt,
        PromptSource::Messages(vec![message("system", "Be brief."), message("user", "naïve ×?")])
    );
    assert_eq!(tasks[2].demonstration, None);
    let answers: Vec<_> = tasks.iter().map(|t| (t.index, t.answer.as_str(), t.domain.as_str())).collect();
    assert_eq!(answers, [(0, "4", "sum"), (1, "5", "word"), (2, "6", "sum")]);
}

#[test]
fn plain_columns_of_several_types() {
    let tasks = read(FileSettings::new(golden("questions.parquet")), Split::Train).unwrap();
    assert_eq!(tasks[1].prompt, PromptSource::Text("What is half of 1?".into()));
    assert_eq!(
        tasks.iter().map(|t| t.answer.as_str()).collect::<Vec<_>>(),
        ["0.0", "0.5", "1.0", "1.5", "2.0"]
    );
    let mut settings = FileSettings::new(golden("questions.parquet"));
    settings.answer_field = Some("flag".into());
    let error = read(settings.clone(), Split::Train).unwrap_err().to_string();
    assert!(error.ends_with("row 1: field `flag` must be text or a number, but it is a boolean"), "{error}");
    settings.answer_field = Some("when".into());
    assert_eq!(read(settings, Split::Train).unwrap()[4].answer, "1970-01-05");
}

#[test]
fn missing_values_name_their_row() {
    let error = read(FileSettings::new(golden("missing.parquet")), Split::Train).unwrap_err().to_string();
    assert!(error.contains("missing.parquet: row 3: no field `prompt`; the row has `answer`"), "{error}");
    let mut settings = FileSettings::new(golden("missing.parquet"));
    settings.limit = Some(2);
    assert_eq!(read(settings, Split::Train).unwrap().len(), 2);
}

#[test]
fn a_supervised_split_needs_a_demonstration_in_every_row() {
    let error = read(FileSettings::new(golden("conversations.parquet")), Split::Demonstration).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("row 3: no field `demonstration` or `completion`"), "{error}");
}

#[test]
fn an_empty_file_is_refused() {
    let error = read(FileSettings::new(golden("empty.parquet")), Split::Train).unwrap_err().to_string();
    assert!(error.ends_with("empty.parquet has no rows"), "{error}");
}

#[test]
fn truncated_files_are_errors_that_name_the_file() {
    let whole = std::fs::read(golden("conversations.parquet")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.parquet");
    for keep in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..keep]).unwrap();
        let error = read(FileSettings::new(&path), Split::Train).unwrap_err();
        assert!(
            matches!(error, DataError::Parquet { .. } | DataError::ParquetMetadata { .. }),
            "{keep} bytes: {error}"
        );
        let text = error.to_string();
        assert!(text.contains("cut.parquet as Parquet: ") && error.help().is_some(), "{text}");
    }
}

#[test]
fn damaged_files_do_not_cause_a_panic() {
    let whole = std::fs::read(golden("conversations.parquet")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.parquet");
    for at in (0..whole.len()).step_by(11) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        std::fs::write(&path, &damaged).unwrap();
        // The format has no checksum over every byte, so damage may go unnoticed; reading must not panic.
        let _ = read(FileSettings::new(&path), Split::Train);
    }
}
