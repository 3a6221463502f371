//! A hub's list of a model's files.

use serde::Deserialize;

use super::{HubError, HubId, ListingError};

#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// Commit of the revision.
    #[serde(rename = "sha")]
    pub(super) commit: String,
    #[serde(rename = "siblings")]
    files: Vec<ListedFile>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ListedFile {
    #[serde(rename = "rfilename")]
    pub(super) name: String,
    /// Size in bytes.
    size: Option<u64>,
    lfs: Option<LargeFile>,
}

#[derive(Debug, Deserialize)]
struct LargeFile {
    sha256: Option<String>,
    size: Option<u64>,
}

impl ListedFile {
    pub(super) fn size(&self) -> Option<u64> {
        self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size)
    }

    pub(super) fn sha256(&self) -> Option<&str> {
        self.lfs.as_ref()?.sha256.as_deref()
    }

    /// True for numbered shards with the names that `transformers` gives them. A repository may contain copies in other
    /// layouts, which are not needed.
    fn is_shard(&self) -> bool {
        self.middle("model-", ".safetensors").is_some()
    }

    fn is_config_or_tokenizer(&self) -> bool {
        const SMALL: [&str; 7] = [
            "config.json",
            "generation_config.json",
            "special_tokens_map.json",
            "added_tokens.json",
            "vocab.json",
            "merges.txt",
            "chat_template.jinja",
        ];
        SMALL.contains(&self.name.as_str()) || self.middle("tokenizer", ".json").is_some()
    }

    /// The part of the name between `start` and `end`. Rejects names with folders: a server must not choose where a
    /// file is written.
    fn middle(&self, start: &str, end: &str) -> Option<&str> {
        let middle = self.name.strip_prefix(start)?.strip_suffix(end)?;
        middle.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).then_some(middle)
    }
}

impl Listing {
    /// Validates the server's answer before it is used in a path.
    pub(super) fn check(&self) -> Result<(), ListingError> {
        if self.commit.is_empty() || !self.commit.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(ListingError::Commit { commit: self.commit.clone() });
        }
        Ok(())
    }

    /// Files to download: configuration and tokenizer first, so that a wrong model fails early.
    pub(super) fn downloads(&self, id: &HubId<'_>) -> Result<Vec<&ListedFile>, HubError> {
        let not_a_model = |missing| HubError::NotAModel { id: id.to_string(), missing };
        let has = |name: &str| self.files.iter().any(|file| file.name == name);
        if !has("config.json") {
            return Err(not_a_model("config.json"));
        }
        let mut downloads: Vec<&ListedFile> =
            self.files.iter().filter(|file| file.is_config_or_tokenizer()).collect();
        let single = has("model.safetensors");
        let index = "model.safetensors.index.json";
        if !single && !has(index) {
            return Err(not_a_model("model.safetensors"));
        }
        downloads.extend(self.files.iter().filter(|file| {
            if single { file.name == "model.safetensors" } else { file.name == index || file.is_shard() }
        }));
        Ok(downloads)
    }
}
