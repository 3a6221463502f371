use std::fmt;
use std::path::{Path, PathBuf};

use rloom_core::{Purpose, RandomKey, RandomStream, Task};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::record::Mapping;
use crate::{DataError, Location, Presentation, Split, jsonl, parquet_rows};

/// One path, or several that are read one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths(pub Vec<PathBuf>);

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Paths;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or a list of paths")
            }

            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<Paths, E> {
                Ok(Paths(vec![path.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut paths: A) -> Result<Paths, A::Error> {
                let mut all = Vec::new();
                while let Some(path) = paths.next_element::<PathBuf>()? {
                    all.push(path);
                }
                Ok(Paths(all))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// Tasks from files.
///
/// Fields that are not named are looked for by their usual names, in the first row of each file: the prompt
/// as `prompt`, `question` or `messages`, the answer as `answer` or `solution`, a demonstration as
/// `demonstration` or `completion`. What is found there must be in every row of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSettings {
    /// Files (`.jsonl`, `.parquet`) or folders of them, whose files are read in the order of their names.
    pub path: Paths,
    /// Files of the held-out split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_path: Option<Paths>,
    /// Instead of `eval_path`: hold at least this many rows of `path` out. Which rows is a fixed function of
    /// their prompts, so that rows with the same prompt are never divided between the splits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_rows: Option<u64>,
    /// Read no more rows than this of `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Field with the prompt: text, or a list of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_field: Option<String>,
    /// Field with a conversation; its last assistant message, if it ends in one, is the demonstration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_field: Option<String>,
    /// Field with the reference answer: text or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_field: Option<String>,
    /// Field with a worked completion for supervised stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demonstration_field: Option<String>,
    /// Field that says what kind of task a row is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_field: Option<String>,
    /// What kind of task the rows are when no field says so.
    #[serde(default = "default_domain")]
    pub domain: String,
    /// Where an answer holds this mark, what follows its last occurrence is the answer, and the whole text is
    /// the demonstration unless another field is: the form of GSM8K. An empty mark takes answers as they
    /// stand.
    #[serde(default = "default_marker")]
    pub answer_marker: String,
}

fn default_domain() -> String {
    "default".into()
}

fn default_marker() -> String {
    "####".into()
}

impl FileSettings {
    /// Rows of `path` with every field at its default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: Paths(vec![path.into()]),
            eval_path: None,
            eval_rows: None,
            limit: None,
            prompt_field: None,
            messages_field: None,
            answer_field: None,
            demonstration_field: None,
            domain_field: None,
            domain: default_domain(),
            answer_marker: default_marker(),
        }
    }

    /// Checks the settings against each other, without touching a file.
    pub fn validate(&self) -> Result<(), DataError> {
        if self.path.0.is_empty() {
            return Err(DataError::Setting { key: "path", problem: "names no file".into() });
        }
        if self.eval_path.as_ref().is_some_and(|p| p.0.is_empty()) {
            return Err(DataError::Setting { key: "eval_path", problem: "names no file".into() });
        }
        if self.eval_path.is_some() && self.eval_rows.is_some() {
            return Err(DataError::Setting {
                key: "eval_rows",
                problem: "the held-out tasks come from `eval_path` already\nhint: leave one of the two out"
                    .into(),
            });
        }
        if self.eval_rows == Some(0) {
            return Err(DataError::Setting { key: "eval_rows", problem: "must be at least 1".into() });
        }
        if self.limit == Some(0) {
            return Err(DataError::Setting { key: "limit", problem: "must be at least 1".into() });
        }
        if self.prompt_field.is_some() && self.messages_field.is_some() {
            return Err(DataError::Setting {
                key: "messages_field",
                problem: "the prompt comes from `prompt_field` already\nhint: leave one of the two out"
                    .into(),
            });
        }
        Ok(())
    }

    /// Reads the rows of one split.
    pub(crate) fn read(&self, presentation: &Presentation, split: Split) -> Result<Vec<Task>, DataError> {
        match (split, &self.eval_path, self.eval_rows) {
            (Split::Eval, Some(paths), _) => self.read_paths(paths, presentation, split, None),
            (Split::Eval, None, None) => Err(DataError::NoHeldOut),
            (_, _, None) => self.read_paths(&self.path, presentation, split, self.limit),
            (_, _, Some(wanted)) => {
                let all = self.read_paths(&self.path, presentation, split, self.limit)?;
                let kept_out = hold_out(&all, wanted)?;
                let wanted = all.into_iter().zip(kept_out).filter(|&(_, out)| out == (split == Split::Eval));
                Ok(wanted.map(|(task, _)| task).collect())
            }
        }
    }

    fn read_paths(
        &self,
        paths: &Paths,
        presentation: &Presentation,
        split: Split,
        limit: Option<u64>,
    ) -> Result<Vec<Task>, DataError> {
        let limit = limit.unwrap_or(u64::MAX);
        let mut tasks = Vec::new();
        for file in list_files(paths)? {
            if tasks.len() as u64 >= limit {
                break;
            }
            let before = tasks.len();
            let mut mapping = None;
            read_rows(&file, &mut |at, row| {
                let mapping = match &mapping {
                    Some(mapping) => mapping,
                    None => mapping.insert(Mapping::find(self, &row, &at, split)?),
                };
                tasks.push(mapping.task(tasks.len() as u64, &row, &at, presentation)?);
                Ok((tasks.len() as u64) < limit)
            })?;
            if tasks.len() == before {
                return Err(DataError::EmptyFile { path: file });
            }
        }
        Ok(tasks)
    }
}

/// What a reader does with a row; `false` ends the reading.
pub(crate) type RowSink<'a> = dyn FnMut(Location, Map<String, Value>) -> Result<bool, DataError> + 'a;

fn read_rows(path: &Path, sink: &mut RowSink<'_>) -> Result<(), DataError> {
    match format_of(path) {
        Some(Format::Jsonl) => jsonl::read(path, sink),
        Some(Format::Parquet) => parquet_rows::read(path, sink),
        None => Err(DataError::UnknownFormat { path: path.to_owned() }),
    }
}

#[derive(Clone, Copy)]
enum Format {
    Jsonl,
    Parquet,
}

fn format_of(path: &Path) -> Option<Format> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "jsonl" | "ndjson" => Some(Format::Jsonl),
        "parquet" => Some(Format::Parquet),
        _ => None,
    }
}

/// The files behind `paths`; a folder stands for its data files, ordered by name, so that the order of rows
/// does not depend on the file system.
fn list_files(paths: &Paths) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for path in &paths.0 {
        let io = |source| DataError::Io { path: path.clone(), source };
        if !std::fs::metadata(path).map_err(io)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).map_err(io)? {
            let file = entry.map_err(io)?.path();
            if format_of(&file).is_some() && file.is_file() {
                inside.push(file);
            }
        }
        if inside.is_empty() {
            return Err(DataError::EmptyFolder { path: path.clone() });
        }
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}

/// Marks at least `wanted` rows: prompts in the order of a fixed hash, until they cover enough rows.
fn hold_out(tasks: &[Task], wanted: u64) -> Result<Vec<bool>, DataError> {
    if wanted >= tasks.len() as u64 {
        return Err(DataError::Setting {
            key: "eval_rows",
            problem: format!("{wanted} of {} rows held out leaves none to train on", tasks.len()),
        });
    }
    let mut order: Vec<(u64, usize)> =
        tasks.iter().enumerate().map(|(row, task)| (prompt_hash(task), row)).collect();
    order.sort_unstable();
    let mut out = vec![false; tasks.len()];
    let mut count = 0;
    let mut last = None;
    for (hash, row) in order {
        if count >= wanted && last != Some(hash) {
            break;
        }
        out[row] = true;
        last = Some(hash);
        count += 1;
    }
    if count == tasks.len() as u64 {
        return Err(DataError::Setting {
            key: "eval_rows",
            problem: "the rows have too few distinct prompts: all of them would be held out".into(),
        });
    }
    Ok(out)
}

/// A 64-bit name of a prompt: FNV-1a over its text, then mixed by the counter-based generator so that its
/// order is even.
fn prompt_hash(task: &Task) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut absorb = |text: &str| {
        for byte in text.bytes().chain([0xFF]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    };
    match &task.prompt {
        rloom_core::PromptSource::Text(text) => absorb(text),
        rloom_core::PromptSource::Messages(messages) => {
            for message in messages {
                absorb(&message.role);
                absorb(&message.content);
            }
        }
    }
    RandomStream::new(RandomKey::new(0, 0, Purpose::Shuffle, hash)).bits(0)
}
