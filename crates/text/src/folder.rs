//! Reads and writes the tokenizer's part of a Hugging Face folder.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::TextError;

pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
const CHAT_TEMPLATES: &str = "additional_chat_templates";

/// Files that belong to the tokenizer and travel with it, besides [`TOKENIZER`]. The last three are read by nobody
/// here: a folder that came with them is written with them.
const OPTIONAL: [&str; 7] = [
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS_MAP,
    CHAT_TEMPLATE,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Files that other tokenizer libraries use, in whose company a missing `tokenizer.json` can be explained.
const FOREIGN: [(&str, &str); 4] = [
    ("tokenizer.model", "a sentencepiece model"),
    ("tiktoken.model", "a tiktoken vocabulary"),
    ("tekken.json", "a mistral-common vocabulary"),
    ("vocab.json", "a vocabulary of the older layout"),
];

/// The tokenizer's files, as they were found: names relative to the folder, and contents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folder {
    root: PathBuf,
    files: Vec<(String, Vec<u8>)>,
}

impl Folder {
    /// Files that exist nowhere yet.
    pub(crate) fn in_memory(files: Vec<(String, Vec<u8>)>) -> Self {
        Self { root: PathBuf::new(), files }
    }

    pub(crate) fn read(root: &Path) -> Result<Self, TextError> {
        let path = root.join(TOKENIZER);
        let Some(bytes) = read_if_there(&path)? else {
            return Err(TextError::MissingFile { path, hint: missing_tokenizer_hint(root) });
        };
        let mut files = vec![(TOKENIZER.to_owned(), bytes)];
        for name in OPTIONAL {
            if let Some(bytes) = read_if_there(&root.join(name))? {
                files.push((name.to_owned(), bytes));
            }
        }
        for name in named_templates(&root.join(CHAT_TEMPLATES))? {
            let name = format!("{CHAT_TEMPLATES}/{name}");
            if let Some(bytes) = read_if_there(&root.join(&name))? {
                files.push((name, bytes));
            }
        }
        Ok(Self { root: root.to_owned(), files })
    }

    /// Writes every file as it was read.
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

    /// A file that has to be UTF-8 text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, TextError> {
        let Some(bytes) = self.bytes(name) else { return Ok(None) };
        std::str::from_utf8(bytes).map(Some).map_err(|error| self.malformed(name, error.to_string()))
    }

    /// A file that has to hold one JSON object; an absent file is `None`.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Map<String, Value>>, TextError> {
        let Some(bytes) = self.bytes(name) else { return Ok(None) };
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => Ok(Some(object)),
            Ok(_) => Err(self.malformed(name, "it is not a JSON object".to_owned())),
            Err(error) => Err(self.malformed(name, error.to_string())),
        }
    }

    /// Templates from files of their own: the default one first, then the named ones, sorted.
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

    pub(crate) fn malformed(&self, name: &str, reason: String) -> TextError {
        TextError::Malformed {
            path: self.path(name),
            reason,
            hint: "if it was downloaded or copied, it may be incomplete: get it again",
        }
    }
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
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

fn missing_tokenizer_hint(root: &Path) -> String {
    if !root.is_dir() {
        return format!("there is no folder {}", root.display());
    }
    match FOREIGN.iter().find(|(name, _)| root.join(name).is_file()) {
        Some((name, what)) => format!(
            "the folder has only {name} ({what}); `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)` \
             with Python's transformers writes tokenizer.json"
        ),
        None => {
            "a model folder needs the tokenizer.json that `transformers` saves beside the weights".to_owned()
        }
    }
}
