//! A hub's list of a model's files.

use serde::Deserialize;

use super::{HubError, HubId};

#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// The commit that the revision stands for.
    #[serde(rename = "sha")]
    pub(super) commit: String,
    #[serde(rename = "siblings")]
    files: Vec<ListedFile>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ListedFile {
    #[serde(rename = "rfilename")]
    pub(super) name: String,
    /// Bytes.
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

    /// Weights in numbered shards, under the names that `transformers` gives them. A folder may hold copies in other
    /// layouts, which nobody needs.
    fn is_shard(&self) -> bool {
        self.middle("model-", ".safetensors").is_some()
    }

    fn is_small(&self) -> bool {
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

    /// What stands between two parts of the name. Only of names without folders: a server must not choose where on
    /// this machine a file goes.
    fn middle(&self, start: &str, end: &str) -> Option<&str> {
        let middle = self.name.strip_prefix(start)?.strip_suffix(end)?;
        middle.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).then_some(middle)
    }
}

impl Listing {
    /// Checks what a server says before it becomes a path.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.commit.is_empty() || !self.commit.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(format!("{:?} is not a commit", self.commit));
        }
        Ok(())
    }

    /// The files to download: configuration and tokenizer first, so that a wrong model fails early.
    pub(super) fn wanted(&self, id: &HubId<'_>) -> Result<Vec<&ListedFile>, HubError> {
        let not_a_model = |missing| HubError::NotAModel { id: id.to_string(), missing };
        let has = |name: &str| self.files.iter().any(|file| file.name == name);
        if !has("config.json") {
            return Err(not_a_model("config.json"));
        }
        let mut wanted: Vec<&ListedFile> = self.files.iter().filter(|file| file.is_small()).collect();
        let single = has("model.safetensors");
        let index = "model.safetensors.index.json";
        if !single && !has(index) {
            return Err(not_a_model("model.safetensors"));
        }
        wanted.extend(self.files.iter().filter(|file| {
            if single { file.name == "model.safetensors" } else { file.name == index || file.is_shard() }
        }));
        Ok(wanted)
    }
}
