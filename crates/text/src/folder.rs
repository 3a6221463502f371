//! The tokenizer's files in a Hugging Face folder.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{FileProblem, MissingFileHint, TextError};

pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
const CHAT_TEMPLATES: &str = "additional_chat_templates";

/// Other files of the tokenizer. The last four are not read, only copied.
const OPTIONAL: [&str; 7] = [
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS_MAP,
    CHAT_TEMPLATE,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Files of other tokenizer libraries, used to explain a missing `tokenizer.json`.
const OTHER_FORMATS: [(&str, &str); 4] = [
    ("tokenizer.model", "a sentencepiece model"),
    ("tiktoken.model", "a tiktoken vocabulary"),
    ("tekken.json", "a mistral-common vocabulary"),
    ("vocab.json", "a vocabulary of the older layout"),
];

/// The tokenizer's files: names relative to the folder, and unmodified contents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folder {
    root: PathBuf,
    files: Vec<(String, Vec<u8>)>,
}

impl Folder {
    /// Files that are not on disk.
    pub(crate) fn in_memory(files: Vec<(String, Vec<u8>)>) -> Self {
        Self { root: PathBuf::new(), files }
    }

    pub(crate) fn read(root: &Path) -> Result<Self, TextError> {
        let path = root.join(TOKENIZER);
        let Some(bytes) = read_if_present(&path)? else {
            return Err(TextError::MissingFile { path, hint: missing_tokenizer_hint(root) });
        };
        let mut files = vec![(TOKENIZER.to_owned(), bytes)];
        for name in OPTIONAL {
            if let Some(bytes) = read_if_present(&root.join(name))? {
                files.push((name.to_owned(), bytes));
            }
        }
        for name in named_templates(&root.join(CHAT_TEMPLATES))? {
            let name = format!("{CHAT_TEMPLATES}/{name}");
            if let Some(bytes) = read_if_present(&root.join(&name))? {
                files.push((name, bytes));
            }
        }
        Ok(Self { root: root.to_owned(), files })
    }

    /// Writes every file unmodified.
    pub(crate) fn write(&self, root: &Path) -> Result<(), TextError> {
        for (name, bytes) in &self.files {
            let path = root.join(name);
            let written = path
                .parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(&path, bytes));
            written.map_err(|source| TextError::Write { path, source })?;
        }
        Ok(())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.files.iter().find(|(n, _)| n == name).map(|(_, bytes)| bytes.as_slice())
    }

    /// The UTF-8 text of a file; `None` if it is absent.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, TextError> {
        let Some(bytes) = self.bytes(name) else { return Ok(None) };
        std::str::from_utf8(bytes).map(Some).map_err(|error| self.invalid(name, error.into()))
    }

    /// The JSON object of a file; `None` if it is absent.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Map<String, Value>>, TextError> {
        let Some(bytes) = self.bytes(name) else { return Ok(None) };
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => Ok(Some(object)),
            Ok(_) => Err(self.invalid(name, FileProblem::NotAnObject)),
            Err(error) => Err(self.invalid(name, error.into())),
        }
    }

    /// Templates in separate files: the default one first, then the named ones, sorted.
    pub(crate) fn template_files(&self) -> Result<Vec<(String, String)>, TextError> {
        let mut templates = Vec::new();
        for (file, _) in &self.files {
            let name = if file == CHAT_TEMPLATE {
                "default"
            } else if let Some(name) = file.strip_prefix(CHAT_TEMPLATES) {
                name.trim_start_matches('/').trim_end_matches(".jinja")
            } else {
                continue;
            };
            if let Some(source) = self.text(file)? {
                templates.push((name.to_owned(), source.to_owned()));
            }
        }
        Ok(templates)
    }

    pub(crate) fn invalid(&self, name: &str, source: FileProblem) -> TextError {
        TextError::InvalidFile { path: self.path(name), source: Box::new(source) }
    }
}

fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}

fn named_templates(folder: &Path) -> Result<Vec<String>, TextError> {
    let failed = |source| TextError::Read { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if let Some(name) =
            name.to_str().filter(|name| Path::new(name).extension().is_some_and(|e| e == "jinja"))
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn missing_tokenizer_hint(root: &Path) -> MissingFileHint {
    if !root.is_dir() {
        return MissingFileHint::NoFolder { path: root.to_owned() };
    }
    match OTHER_FORMATS.iter().find(|(name, _)| root.join(name).is_file()) {
        Some(&(file, format)) => MissingFileHint::OtherFormat { file, format },
        None => MissingFileHint::NoTokenizer,
    }
}
