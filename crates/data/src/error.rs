use std::fmt;
use std::path::PathBuf;

/// A row of a file.
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
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Row { path, row } => write!(f, "{}: row {row}", path.display()),
        }
    }
}

/// Data that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line that is not JSON.
    #[error("{at}: not a JSON object: {problem}\nhint: a JSONL file holds one JSON object per line")]
    Malformed {
        /// Where.
        at: Location,
        /// What the parser said.
        problem: String,
    },
    /// Bytes that are not text.
    #[error("{at}: not UTF-8 (byte {offset} of the line)\nhint: convert the file to UTF-8")]
    NotUtf8 {
        /// Where.
        at: Location,
        /// The first byte that does not belong, counted from 1.
        offset: usize,
    },
    /// A row without a field that it must have.
    #[error("{at}: no field {wanted}; the row has {found}\nhint: name the field with `{setting}`")]
    MissingField {
        /// Where.
        at: Location,
        /// The field or fields that were looked for.
        wanted: String,
        /// The fields that are there.
        found: String,
        /// The setting that names it.
        setting: &'static str,
    },
    /// A field of another type.
    #[error("{at}: field `{field}` must be {expected}, but it is {found}")]
    WrongType {
        /// Where.
        at: Location,
        /// The field.
        field: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A row whose parts are of the right type and still say nothing usable.
    #[error("{at}: {problem}")]
    Unusable {
        /// Where.
        at: Location,
        /// What is wrong.
        problem: String,
    },
    /// A file without a row.
    #[error("{} holds no row", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// A folder without a data file.
    #[error("{} holds no .jsonl and no .parquet file", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A split without a task.
    #[error("the dataset is empty: {why}")]
    Empty {
        /// What emptied it.
        why: String,
    },
    /// A Parquet file that does not read.
    #[error("cannot read {} as Parquet: {problem}\nhint: the file may be truncated; write or download it again", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        problem: String,
    },
    /// A file of neither kind.
    #[error("cannot tell the format of {}\nhint: data files end in .jsonl or .parquet", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A setting with an impossible value.
    #[error("`{key}`: {problem}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A split that the settings do not describe.
    #[error(
        "no held-out tasks: the data has neither `eval_path` nor `eval_rows`\nhint: set `eval_path` to a file of its own, or `eval_rows` to hold rows out of `path`"
    )]
    NoHeldOut,
    /// A position past the end.
    #[error("task {position} was asked for, but there are {len}")]
    OutOfRange {
        /// What was asked for.
        position: u64,
        /// The length of the dataset.
        len: u64,
    },
    /// A generator that found no task.
    #[error(
        "the generator found no task {position} of its split in {attempts} attempts\nhint: its ranges are too narrow; allow larger numbers or longer lists"
    )]
    Exhausted {
        /// The task.
        position: u64,
        /// How often it tried.
        attempts: u64,
    },
}
