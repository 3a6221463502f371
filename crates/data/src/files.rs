use std::path::{Path, PathBuf};

use rloom_core::{
    Content, LossOn, PromptSource, Purpose, RandomKey, RandomStream, SettingProblem, Task, ValueRange,
};
use rloom_hub::{DefaultSplit, Hub};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::jsonl::Compression;
use crate::paths::FORMATS;
use crate::record::FieldMapping;
use crate::rows::{NamedFields, ReadRows, RowCache, Rows};
use crate::{
    DataError, DataPath, DataSettingProblem, Location, Paths, PromptFormat, RowKind, RowRules, Split,
    TooLong, jsonl, parquet_file,
};

/// Tasks from files.
///
/// Fields without a setting are detected by common names in the first row of each file: the prompt as `prompt`,
/// `question` or `messages`, the answer as `answer` or `solution`, a demonstration as `demonstration` or `completion`.
/// Every row must have a prompt, and what the stage's method learns from: a demonstration, a preference pair, a completion
/// with a label, or steps with labels. Fields that are not read reach rewards as `extra`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSettings {
    /// Data files (`.jsonl`, also compressed as `.jsonl.gz` or `.jsonl.zst`, and `.parquet`), folders whose data files are read in the order of their names, or splits of data
    /// sets on the hub: `hf:organisation/name[/subset][:split][@revision]`. One path or a list of paths.
    pub path: Paths,
    /// Data files, folders or data sets on the hub that contain the held-out split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_path: Option<Paths>,
    /// Minimum number of rows of `path` to hold out, instead of `eval_path`. A fixed hash of the prompts selects them, so
    /// rows with the same prompt are in the same split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_rows: Option<u64>,
    /// Maximum number of rows to read from `path`. Default: all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Drops rows whose prompt has more tokens, in training and evaluation. Default: such prompts are refused if they do not
    /// fit into the model's context together with a completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u64>,
    /// Field with the prompt: text or a list of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_field: Option<String>,
    /// Field with a conversation. If it ends with an assistant message, that message is the demonstration, together with the
    /// calls of tools before it and their results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_field: Option<String>,
    /// Field with the reference answer: text or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_field: Option<String>,
    /// Field with the demonstration for supervised stages: text, a list with the texts of several turns, or a list of
    /// messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demonstration_field: Option<String>,
    /// Field with a text that supervised stages learn as a whole, instead of a prompt and a demonstration. Found as `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_field: Option<String>,
    /// Field with the preferred completion of a pair: text or a list of messages. Found as `chosen`. Without a prompt in the
    /// row, the prompt is what the chosen and the rejected text or conversation begin with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_field: Option<String>,
    /// Field with the other completion of a pair. Found as `rejected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_field: Option<String>,
    /// Field with the margin of a pair: a number, by how much the chosen completion is better. Found as `margin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_field: Option<String>,
    /// Field with the label of a completion: true if it is desirable. Found as `label`; the completion is the demonstration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_field: Option<String>,
    /// Field with the steps of a completion: a list of texts. Found as `completions` or `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_field: Option<String>,
    /// Field with the labels of the steps: a list, true for a correct step. Found as `labels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_labels_field: Option<String>,
    /// Text after each step. Default: a line break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_separator: Option<String>,
    /// Tokens that carry loss in supervised stages. Default: `completion`, and `all` for rows that are learned as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_on: Option<LossOn>,
    /// Maximum number of tokens of a row in stages that learn from rows. Default: the context of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Treatment of rows with more tokens, in stages that learn from rows. Default: `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub too_long: Option<TooLong>,
    /// Field with the domain of a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_field: Option<String>,
    /// Domain of all rows, unless `domain_field` is set; used for reward routing and quotas.
    #[serde(default = "default_domain")]
    pub domain: String,
    /// Marker of the final answer within the answer field, as in GSM8K: the text after its last occurrence is the answer,
    /// and the whole text is the demonstration, unless another field is. Empty: the whole field is the answer.
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
    /// Rows of `path` with default settings.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: Paths(vec![DataPath::Local(path.into())]),
            eval_path: None,
            eval_rows: None,
            limit: None,
            max_prompt_tokens: None,
            prompt_field: None,
            messages_field: None,
            answer_field: None,
            demonstration_field: None,
            text_field: None,
            chosen_field: None,
            rejected_field: None,
            margin_field: None,
            label_field: None,
            steps_field: None,
            step_labels_field: None,
            step_separator: None,
            loss_on: None,
            max_tokens: None,
            too_long: None,
            domain_field: None,
            domain: default_domain(),
            answer_marker: default_marker(),
        }
    }

    /// Checks the settings without reading files.
    pub fn validate(&self) -> Result<(), DataError> {
        if self.path.0.is_empty() {
            return Err(SettingProblem::Empty.at("path").into());
        }
        if self.eval_path.as_ref().is_some_and(|p| p.0.is_empty()) {
            return Err(SettingProblem::Empty.at("eval_path").into());
        }
        if self.eval_path.is_some() && self.eval_rows.is_some() {
            return Err(SettingProblem::Conflict { other: "eval_path" }.at("eval_rows").into());
        }
        let counts = [
            ("eval_rows", self.eval_rows),
            ("limit", self.limit),
            ("max_prompt_tokens", self.max_prompt_tokens),
            ("max_tokens", self.max_tokens),
        ];
        for (key, value) in counts {
            value.map_or(Ok(()), |value| ValueRange::at_least(1.0).check(key, value as f64))?;
        }
        if self.prompt_field.is_some() && self.messages_field.is_some() {
            return Err(SettingProblem::Conflict { other: "prompt_field" }.at("messages_field").into());
        }
        let with_text = [
            ("prompt_field", self.prompt_field.is_some()),
            ("messages_field", self.messages_field.is_some()),
            ("demonstration_field", self.demonstration_field.is_some()),
        ];
        if let Some((other, _)) = with_text.iter().find(|(_, is_set)| self.text_field.is_some() && *is_set) {
            return Err(SettingProblem::Conflict { other }.at("text_field").into());
        }
        if self.text_field.is_some() {
            self.check_text_loss()?;
        }
        Ok(())
    }

    /// Replaces the revisions of data sets on a hub with their commits.
    pub(crate) fn pin(&mut self, hub: &Hub) -> Result<(), DataError> {
        self.path.pin(hub, TRAIN_SPLIT)?;
        self.eval_path.as_mut().map_or(Ok(()), |paths| paths.pin(hub, EVAL_SPLIT))
    }

    /// As [`DataSettings::download`](crate::DataSettings::download).
    pub(crate) fn download(&self, split: Split, hub: &Hub) -> Result<(), DataError> {
        let (paths, default) = match (split, &self.eval_path) {
            (Split::Eval, Some(paths)) => (paths, EVAL_SPLIT),
            _ => (&self.path, TRAIN_SPLIT),
        };
        let on_hub = paths.0.iter().filter(|path| matches!(path, DataPath::Hub(_)));
        list_files(&Paths(on_hub.cloned().collect()), hub, default).map(|_| ())
    }

    /// As [`DataSettings::pin_as`](crate::DataSettings::pin_as).
    pub(crate) fn pin_as(&mut self, pinned: &Self) {
        self.path.pin_as(&pinned.path);
        if let (Some(paths), Some(pinned)) = (&mut self.eval_path, &pinned.eval_path) {
            paths.pin_as(pinned);
        }
    }

    /// A text that is learned as a whole has no completion and no messages.
    fn check_text_loss(&self) -> Result<(), DataError> {
        let value = match self.loss_on {
            None | Some(LossOn::All) => return Ok(()),
            Some(LossOn::Completion) => "completion",
            Some(LossOn::Assistant) => "assistant",
        };
        let (value, expected) = (value.to_owned(), "`all` for rows that are texts");
        Err(SettingProblem::Invalid { value, expected }.at("loss_on").into())
    }

    /// How rows become tokens. `are_texts`: they are learned as a whole.
    pub(crate) fn rules(&self, are_texts: bool) -> RowRules {
        let usual = if are_texts { LossOn::All } else { LossOn::Completion };
        RowRules {
            loss_on: self.loss_on.unwrap_or(usual),
            too_long: self.too_long.unwrap_or_default(),
            max_tokens: self.max_tokens,
        }
    }

    /// Reads the rows of one split.
    pub(crate) fn read(
        &self,
        format: &PromptFormat,
        (split, kind): (Split, RowKind),
        hub: &Hub,
        cache: &RowCache,
    ) -> Result<Rows, DataError> {
        let train = || {
            let read =
                || self.read_files(list_files(&self.path, hub, TRAIN_SPLIT)?, format, kind, self.limit);
            cache.rows(self, format, kind, false, read)
        };
        match (split, &self.eval_path, self.eval_rows) {
            (Split::Eval, Some(paths), _) => {
                let read = || self.read_files(list_files(paths, hub, EVAL_SPLIT)?, format, kind, None);
                cache.rows(self, format, kind, true, read)
            }
            (Split::Eval, None, None) => Err(DataError::NoHeldOut),
            (_, _, None) => train(),
            (_, _, Some(wanted)) => {
                let mut all = train()?;
                let held_out = hold_out(&all, wanted)?;
                all.retain(|row| held_out[row] == (split == Split::Eval));
                Ok(all)
            }
        }
    }

    fn read_files(
        &self,
        files: Vec<PathBuf>,
        format: &PromptFormat,
        kind: RowKind,
        limit: Option<u64>,
    ) -> Result<ReadRows, DataError> {
        let limit = limit.unwrap_or(u64::MAX);
        let (mut rows, mut count) = (ReadRows::default(), 0);
        let mut named = NamedFields::new(self, kind);
        for file in files {
            if count >= limit {
                break;
            }
            let before = rows.tasks.len();
            let mut mapping = None;
            read_rows(&file, &mut |at, row| {
                let mapping = match &mapping {
                    Some(mapping) => mapping,
                    None => mapping.insert(self.mapping(&row, &at, kind, &mut rows)?),
                };
                named.see(&row);
                for task in mapping.tasks(rows.tasks.len() as u64, row, &at, format)? {
                    rows.push(task, at.clone());
                }
                count += 1;
                Ok(count < limit)
            })?;
            if rows.tasks.len() == before {
                return Err(DataError::EmptyFile { path: file });
            }
        }
        named.check(&rows)?;
        Ok(rows)
    }

    /// The mapping of a file's fields, from its first row. All files have either texts that are learned as a whole, or
    /// prompts.
    fn mapping(
        &self,
        first: &Map<String, Value>,
        at: &Location,
        kind: RowKind,
        rows: &mut ReadRows,
    ) -> Result<FieldMapping, DataError> {
        let mapping = FieldMapping::detect(self, first, at, kind)?;
        if rows.tasks.is_empty() {
            rows.are_texts = mapping.is_text();
        } else if rows.are_texts != mapping.is_text() {
            return Err(DataError::MixedTypes {
                at: at.clone(),
                first: rows.location(0),
                are_texts: rows.are_texts,
            });
        }
        if rows.are_texts {
            self.check_text_loss()?;
        }
        Ok(mapping)
    }
}

/// Split of a data set on a hub that `path` reads if none is given.
const TRAIN_SPLIT: DefaultSplit = DefaultSplit::Train;
/// Split that `eval_path` reads: it must be given, because training data would be held out otherwise.
const EVAL_SPLIT: DefaultSplit = DefaultSplit::Required;

/// Receives the rows of a file; returns false to stop reading.
pub(crate) type RowSink<'a> = dyn FnMut(Location, Map<String, Value>) -> Result<bool, DataError> + 'a;

fn read_rows(path: &Path, sink: &mut RowSink<'_>) -> Result<(), DataError> {
    match format_of(path) {
        Some(Format::Jsonl(compression)) => jsonl::read(path, compression, sink),
        Some(Format::Parquet) => parquet_file::read(path, sink),
        None => Err(DataError::UnknownFormat { path: path.to_owned() }),
    }
}

#[derive(Clone, Copy)]
enum Format {
    Jsonl(Option<Compression>),
    Parquet,
}

fn format_of(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let compressions = [(".gz", Compression::Gzip), (".zst", Compression::Zstd)];
    let compressed = compressions.iter().find_map(|(end, of)| Some((name.strip_suffix(end)?, Some(*of))));
    let (name, compression) = compressed.unwrap_or((&name, None));
    match (name.rsplit_once('.')?.1, compression) {
        ("jsonl" | "ndjson", compression) => Some(Format::Jsonl(compression)),
        ("parquet", None) => Some(Format::Parquet),
        _ => None,
    }
}

/// The files of `paths`; those on a hub are downloaded.
fn list_files(paths: &Paths, hub: &Hub, default: DefaultSplit) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for path in &paths.0 {
        files.append(&mut match path {
            DataPath::Local(path) => local_files(path)?,
            DataPath::Hub(dataset) => hub.dataset_files(dataset, default, &FORMATS)?,
        });
    }
    Ok(files)
}

/// A file, or the data files of a folder. They are sorted by name, so that the order of rows does not depend on the file
/// system.
pub(crate) fn local_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let io = |source| DataError::Io { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(io)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if format_of(&file).is_some() && file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(DataError::EmptyFolder { path: path.to_owned() });
    }
    files.sort();
    Ok(files)
}

/// Selects at least `wanted` rows: prompts in the order of a fixed hash, until they cover enough rows.
fn hold_out(rows: &Rows, wanted: u64) -> Result<Vec<bool>, DataError> {
    if wanted >= rows.len() as u64 {
        return Err(DataSettingProblem::NoRowsLeft { wanted, rows: rows.len() }.at("eval_rows"));
    }
    let mut order: Vec<(u64, usize)> =
        rows.tasks().enumerate().map(|(row, task)| (prompt_hash(task), row)).collect();
    order.sort_unstable();
    let mut out = vec![false; rows.len()];
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
    if count == rows.len() as u64 {
        return Err(DataSettingProblem::TooFewPrompts.at("eval_rows"));
    }
    Ok(out)
}

/// A 64-bit hash of a prompt: FNV-1a over its text, mixed by the counter-based generator for a uniform order.
fn prompt_hash(task: &Task) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut absorb = |text: &str| {
        for byte in text.bytes().chain([0xFF]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    };
    match &task.prompt {
        PromptSource::Text(text) => absorb(text),
        PromptSource::Messages(messages) => {
            for message in messages {
                absorb(&message.role);
                match &message.content {
                    Some(Content::Text(text)) => absorb(text),
                    Some(Content::Parts(parts)) => parts.iter().for_each(|part| absorb(&text_of(part))),
                    None => {}
                }
                if !message.fields.is_empty() {
                    absorb(&text_of(&message.fields));
                }
            }
        }
    }
    RandomStream::new(RandomKey::new(0, 0, Purpose::Shuffle, hash)).bits(0)
}

fn text_of(fields: &Map<String, Value>) -> String {
    serde_json::to_string(fields).unwrap_or_default()
}
