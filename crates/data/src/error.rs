use std::fmt;
use std::path::PathBuf;

use parquet::errors::ParquetError;
use rloom_core::{SettingError, SettingProblem};
use rloom_hub::HubError;
use serde_json::Value;

use crate::{RowKind, SizeProblem, Split};

/// Place of a task in its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A line of a JSONL file, counted from 1.
    Line {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
    },
    /// A row of a Parquet file, counted from 1.
    Row {
        /// The file.
        path: PathBuf,
        /// The row.
        row: u64,
    },
    /// A task of a generator, counted from 0.
    Generated {
        /// Name of the generator.
        generator: &'static str,
        /// Position of the task.
        position: u64,
    },
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Row { path, row } => write!(f, "{}: row {row}", path.display()),
            Self::Generated { generator, position } => write!(f, "{generator} task {position}"),
        }
    }
}

/// The type of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean,
    /// A number.
    Number,
    /// A string.
    Text,
    /// An array.
    List,
    /// An object.
    Object,
}

impl JsonType {
    /// The type of `value`.
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::List,
            Value::Object(_) => Self::Object,
        }
    }
}

/// The name with its article.
impl fmt::Display for JsonType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::Text => "text",
            Self::List => "a list",
            Self::Object => "an object",
        })
    }
}

/// Data or data settings that cannot be used.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum DataError {
    /// A data set on a hub that cannot be resolved or downloaded.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Hub(#[from] HubError),
    /// An error of the operating system.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A line that is not JSON.
    #[error("{at}: not a JSON object: {}", without_line(source))]
    #[diagnostic(help("a JSONL file has one JSON object per line"))]
    NotJson {
        /// The line.
        at: Location,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A line with a JSON value that is not an object.
    #[error("{at}: not a JSON object: the line is {found}")]
    #[diagnostic(help("a JSONL file has one JSON object per line"))]
    NotAnObject {
        /// The line.
        at: Location,
        /// Type of the value.
        found: JsonType,
    },
    /// A line that is not UTF-8.
    #[error("{at}: not UTF-8 (byte {offset} of the line)")]
    #[diagnostic(help("convert the file to UTF-8"))]
    NotUtf8 {
        /// The line.
        at: Location,
        /// The first invalid byte, counted from 1.
        offset: usize,
    },
    /// A row without a required field.
    #[error(
        "{at}: no field {}; the row has {}",
        quoted(wanted, " or "),
        if found.is_empty() { "no fields".to_owned() } else { quoted(found, ", ") }
    )]
    #[diagnostic(help("set `{setting}` to a field of the row, or add the field to the row"))]
    MissingField {
        /// The row.
        at: Location,
        /// The accepted names of the field.
        wanted: Vec<String>,
        /// The fields of the row.
        found: Vec<String>,
        /// The setting that names the field.
        setting: &'static str,
    },
    /// Rows for methods of another kind.
    #[error(
        "{at}: the stage's method learns from {wanted}, but the row has the fields of {found}; use a method that learns from \
         these, or other data"
    )]
    OtherKind {
        /// The row.
        at: Location,
        /// What the method learns from.
        wanted: RowKind,
        /// What the row has.
        found: RowKind,
    },
    /// A generator for methods of another kind.
    #[error(
        "the stage's method learns from {wanted}, but the generator `{generator}` has {found}; use a method that learns from \
         these, or other data"
    )]
    GeneratorKind {
        /// The generator.
        generator: &'static str,
        /// What the method learns from.
        wanted: RowKind,
        /// What the generator has.
        found: RowKind,
    },
    /// Texts and prompts in the files of one source.
    #[error(
        "{at}: the row has {}, but the first row ({first}) has {}; give each type a source of its own in `sources`",
        type_name(!are_texts),
        type_name(*are_texts)
    )]
    MixedTypes {
        /// The row.
        at: Location,
        /// The first row of the source.
        first: Location,
        /// True if the first row is a text.
        are_texts: bool,
    },
    /// A field that the settings name and no row has.
    #[error(
        "no row of {}{} has the field `{field}`; the rows have {}",
        path.display(),
        if *more_files > 0 { format!(" and {more_files} more files") } else { String::new() },
        quoted(found, ", ")
    )]
    #[diagnostic(help("correct or remove `{setting}`"))]
    UnknownField {
        /// The first file.
        path: PathBuf,
        /// Number of further files.
        more_files: usize,
        /// The field.
        field: String,
        /// The fields of all rows.
        found: Vec<String>,
        /// The setting that names the field.
        setting: &'static str,
    },
    /// A row without a reference answer, in data whose answers are read.
    #[error(
        "{at}: no field {}, which {reader} reads; {}",
        quoted(wanted, " or "),
        if found.is_empty() {
            "the row has no other fields than the prompt".to_owned()
        } else {
            format!("the row's other fields are {}", quoted(found, ", "))
        }
    )]
    #[diagnostic(help(
        "name the field with `answer_field`, or use a reward that reads no answer, such as `length` or `format`"
    ))]
    NoAnswer {
        /// The row.
        at: Location,
        /// The reader, such as "the reward `math`".
        reader: String,
        /// The accepted names of the field.
        wanted: Vec<String>,
        /// The fields of the row that nothing else reads.
        found: Vec<String>,
    },
    /// A field of another type.
    #[error("{at}: field `{field}` must be {expected}, but it is {found}")]
    WrongType {
        /// The row.
        at: Location,
        /// The field.
        field: String,
        /// Expected type.
        expected: &'static str,
        /// Type of the value.
        found: JsonType,
    },
    /// A field of the right type that cannot be used.
    #[error("{at}: `{field}` {problem}")]
    #[diagnostic(forward(problem))]
    Field {
        /// The row.
        at: Location,
        /// The field.
        field: String,
        /// The reason.
        problem: FieldProblem,
    },
    /// A file without rows.
    #[error("{} has no rows", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// A folder without data files.
    #[error("{} has no .jsonl, .jsonl.gz, .jsonl.zst or .parquet files", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A split without tasks.
    #[error("the dataset is empty: its {split} split has no tasks")]
    EmptySplit {
        /// The split.
        split: Split,
    },
    /// A Parquet file that the reader refuses.
    #[error("cannot read {} as Parquet: {}", path.display(), without_prefix(source))]
    #[diagnostic(help("the file may be truncated; write or download it again"))]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: ParquetError,
    },
    /// A Parquet file whose metadata is inconsistent.
    #[error("cannot read {} as Parquet: its metadata is inconsistent", path.display())]
    #[diagnostic(help("the file may be truncated; write or download it again"))]
    ParquetMetadata {
        /// The file.
        path: PathBuf,
    },
    /// A Parquet file that states sizes which cannot be true, or which are too large to be read.
    #[error("cannot read {} as Parquet: {problem}", path.display())]
    #[diagnostic(help("the file is damaged or was not made for reading; write or download it again"))]
    ParquetSizes {
        /// The file.
        path: PathBuf,
        /// The size.
        problem: SizeProblem,
    },
    /// A row of a Parquet file that cannot be read.
    #[error("{at}: cannot be read: {}", without_prefix(source))]
    #[diagnostic(help("the file may be damaged; write or download it again"))]
    ParquetRow {
        /// The row.
        at: Location,
        /// The reader's error.
        source: ParquetError,
    },
    /// A line that is too long.
    #[error("{at}: the line is longer than {} MiB", limit >> 20)]
    #[diagnostic(help("a JSONL file has one JSON object per line"))]
    LongLine {
        /// The line.
        at: Location,
        /// Most bytes of a line.
        limit: u64,
    },
    /// A file of an unknown format.
    #[error("unknown format of {}", path.display())]
    #[diagnostic(help("data files end in .jsonl, .jsonl.gz, .jsonl.zst or .parquet"))]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A setting with an invalid value.
    #[error("`{key}`: {problem}")]
    #[diagnostic(forward(problem))]
    Setting {
        /// The key.
        key: &'static str,
        /// The reason for the refusal.
        problem: DataSettingProblem,
    },
    /// An evaluation split that the settings do not define.
    #[error("no held-out tasks: the data has neither `eval_path` nor `eval_rows`")]
    #[diagnostic(help("set `eval_path` to a separate file, or `eval_rows` to hold out rows of `path`"))]
    NoHeldOut,
    /// A position past the end.
    #[error("task {position} is out of range: the dataset has {len} tasks")]
    OutOfRange {
        /// The position.
        position: u64,
        /// Length of the dataset.
        len: u64,
    },
    /// A generator that found no task of a split.
    #[error("the generator found no task {position} of its split in {attempts} attempts")]
    #[diagnostic(help("its ranges are too narrow; raise {raise}"))]
    Exhausted {
        /// Position of the task.
        position: u64,
        /// Number of attempts.
        attempts: u64,
        /// Settings that widen the ranges.
        raise: &'static str,
    },
}

impl DataError {
    /// True if the name of a data set on a hub is wrong (a usage error).
    pub fn is_wrong_name(&self) -> bool {
        matches!(self, Self::Hub(error) if error.is_wrong_name())
    }
}

/// The reasons for which a field cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum FieldProblem {
    /// An empty answer.
    #[error("contains no answer")]
    NoAnswer,
    /// An empty conversation.
    #[error("contains no messages")]
    NoMessages,
    /// A conversation that starts with the assistant's message.
    #[error("has no message before the assistant's")]
    NoPrompt,
    /// A conversation that does not end with the assistant's message.
    #[error("does not end with a message of the assistant")]
    NoCompletion,
    /// A part of a message that is not text.
    #[error("has the type {kind:?}; only parts of type \"text\" are supported")]
    #[diagnostic(help("remove the row, or write the message as text"))]
    PartType {
        /// Type of the part.
        kind: String,
    },
    /// A completion with messages that belong to the prompt.
    #[error("has other messages than those of the assistant and the results of its tools")]
    #[diagnostic(help("move the messages before the assistant's to the prompt"))]
    OtherMessages,
    /// A message with more than text, after a plain prompt.
    #[error("has more than text, but the prompt is not a conversation")]
    #[diagnostic(help("write the prompt as a list of messages, or set `chat = true`"))]
    MessageForText,
    /// A prompt that ends with the assistant's message, in a row with completions of its own.
    #[error(
        "ends with a message of the assistant, but the completions are in other fields; end it with the user's message"
    )]
    AnsweredPrompt,
    /// Two equal texts without a prompt.
    #[error(
        "is the same text as the chosen one, so that their prompt is unknown; give the prompt a field of its own"
    )]
    SameTexts,
    /// Two completions without a prompt and without a common beginning.
    #[error(
        "does not begin as the chosen one does, so that there is no prompt; give the prompt a field of its own"
    )]
    NoCommonPrompt,
    /// A completion without a step.
    #[error("contains no steps")]
    NoSteps,
    /// Labels whose number is not that of the steps.
    #[error("has {labels} labels for {steps} steps")]
    StepLabels {
        /// Number of labels.
        labels: usize,
        /// Number of steps.
        steps: usize,
    },
    /// A number that is no label.
    #[error("must be true or false (1 or 0), but is {value}")]
    NotALabel {
        /// The number.
        value: String,
    },
    /// A text that is learned as a whole, together with the format of prompts.
    #[error("is learned as a whole, but `template`, `system` and `chat` are for prompts; remove them")]
    FormatForText,
    /// A plain prompt, where the messages of the assistant carry loss.
    #[error("is no conversation, but `loss_on = \"assistant\"` is for conversations; remove it")]
    NotAConversation,
    /// A conversation, together with a template for plain prompts.
    #[error("is a conversation, but `template` is for plain prompts")]
    #[diagnostic(help("remove `template`"))]
    TemplateForConversation,
}

/// The reasons for which data settings can refuse a value.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum DataSettingProblem {
    /// A problem that any settings can have.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Common(#[from] SettingProblem),
    /// Division in a generator whose answers are integers.
    #[error("`/` is not supported by the arithmetic generator")]
    #[diagnostic(help("use `+`, `-` and `*`"))]
    Division,
    /// More digits than products can have.
    #[error("must be at most {max} with `*`, but is {digits}")]
    #[diagnostic(help(
        "lower it to {max}, or remove `*` from `operations`: the maximum is then {max_without}"
    ))]
    DigitsOfProducts {
        /// Number of digits.
        digits: u32,
        /// Maximum with products.
        max: u32,
        /// Maximum without products.
        max_without: u32,
    },
    /// A split that is larger than the number of its tasks.
    #[error("{wanted} tasks were requested, but only {available} exist")]
    #[diagnostic(help("lower it to {available}, or raise `max_digits`"))]
    TooFewTasks {
        /// Requested size.
        wanted: u64,
        /// Number of existing tasks.
        available: u64,
    },
    /// A held-out split that leaves nothing to train on.
    #[error("holding out {wanted} of {rows} rows leaves none to train on")]
    NoRowsLeft {
        /// Rows to hold out.
        wanted: u64,
        /// Rows of the data.
        rows: usize,
    },
    /// Rows with too few distinct prompts to hold some out.
    #[error("the rows have too few distinct prompts: all of them would be held out")]
    TooFewPrompts,
    /// A template without its placeholder.
    #[error("{template:?} does not contain {{prompt}}")]
    NoPlaceholder {
        /// The template.
        template: String,
    },
    /// A system message without a conversation.
    #[error("a `system` message requires a conversation")]
    #[diagnostic(help("remove `chat` or `system`"))]
    SystemWithoutChat,
}

impl DataSettingProblem {
    /// Reports the problem for a key.
    pub(crate) fn at(self, key: &'static str) -> DataError {
        DataError::Setting { key, problem: self }
    }
}

impl From<SettingError> for DataError {
    fn from(error: SettingError) -> Self {
        Self::Setting { key: error.key, problem: error.problem.into() }
    }
}

/// The parser's message with the column only: it parses one line, whose number is reported separately.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    format!("{message} (column {})", error.column())
}

fn without_prefix(error: &ParquetError) -> String {
    let text = error.to_string();
    text.strip_prefix("Parquet error: ").unwrap_or(&text).to_owned()
}

fn type_name(is_text: bool) -> &'static str {
    if is_text { "a text that is learned as a whole" } else { "a prompt" }
}

fn quoted(names: &[String], separator: &str) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(separator)
}
