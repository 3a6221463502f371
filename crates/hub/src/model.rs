//! Models.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cache::RepositoryCache;
use crate::hub::{Hub, Snapshot};
use crate::listing::{ListedFile, Listing};
use crate::reference::is_commit;
use crate::{HubError, ModelReference};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Small files that a model may have.
const OPTIONAL: [&str; 6] = [
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

impl Hub {
    /// Folder of a model: `source` itself if it is a local folder, otherwise the snapshot of the hub model
    /// `organisation/name[@revision]`, which is downloaded as far as it is not in the cache.
    ///
    /// A commit in the cache needs no network.
    pub fn model(&self, source: &str) -> Result<PathBuf, HubError> {
        let Some(model) = hub_model(source)? else { return Ok(source.into()) };
        let _call = self.start();
        let cache = RepositoryCache::new(&self.options.cache, &model.repository);
        if let Some(commit) = model.revision.as_deref().filter(|revision| is_commit(revision)) {
            // Also one that `huggingface_hub` downloaded, which keeps no list of the files.
            let folder = cache.snapshot(commit);
            if cache.listing(commit).is_none() && missing_file(&folder).is_none() {
                return Ok(folder);
            }
        }
        let snapshot = self.snapshot(&model.repository, model.revision.as_deref())?;
        let folder = cache.snapshot(&snapshot.listing.commit);
        if snapshot.is_partial {
            let incomplete = |file| HubError::Incomplete { id: snapshot.id(), file };
            return missing_file(&folder).map_or(Ok(folder), |file| Err(incomplete(file)));
        }
        for file in wanted(&snapshot)? {
            self.download(&snapshot, file)?;
        }
        // Best effort: it saves other programs a request per file.
        for file in OPTIONAL.iter().filter(|file| snapshot.listing.get(file).is_none()) {
            let _ = cache.mark_missing(&snapshot.listing.commit, file);
        }
        Ok(folder)
    }

    /// The model's name with the commit as its revision; a local folder stays as it is. Downloads nothing.
    pub fn pin_model(&self, source: &str) -> Result<String, HubError> {
        let Some(model) = hub_model(source)? else { return Ok(source.into()) };
        if model.revision.as_deref().is_some_and(is_commit) {
            return Ok(source.into());
        }
        let _call = self.start();
        let snapshot = self.snapshot(&model.repository, model.revision.as_deref())?;
        Ok(ModelReference { revision: Some(snapshot.listing.commit), ..model }.to_string())
    }
}

/// `None` for a local folder.
fn hub_model(source: &str) -> Result<Option<ModelReference>, HubError> {
    let path = Path::new(source);
    if path.is_dir() {
        return Ok(None);
    }
    if path.exists() {
        return Err(HubError::NotAFolder { path: path.to_owned() });
    }
    source.parse().map(Some).map_err(|_| HubError::Name { source_name: source.to_owned() })
}

/// Files to download: configuration and tokenizer first, so that a wrong model fails early.
fn wanted(snapshot: &Snapshot) -> Result<Vec<&ListedFile>, HubError> {
    let listing: &Listing = &snapshot.listing;
    let not_a_model = |missing| HubError::NotAModel { id: snapshot.id(), missing };
    if listing.get(CONFIG).is_none() {
        return Err(not_a_model(CONFIG));
    }
    let mut wanted: Vec<&ListedFile> =
        listing.files.iter().filter(|file| is_config_or_tokenizer(&file.path)).collect();
    let single = listing.get(WEIGHTS).is_some();
    if !single && listing.get(INDEX).is_none() {
        return Err(not_a_model(WEIGHTS));
    }
    wanted.extend(listing.files.iter().filter(|file| {
        if single { file.path == WEIGHTS } else { file.path == INDEX || is_shard(&file.path) }
    }));
    Ok(wanted)
}

fn is_config_or_tokenizer(path: &str) -> bool {
    path == CONFIG || OPTIONAL.contains(&path) || has_form(path, "tokenizer", ".json")
}

/// True for numbered shards with the names that `transformers` gives them. A repository may contain copies in other
/// layouts, which are not needed.
fn is_shard(path: &str) -> bool {
    has_form(path, "model-", ".safetensors")
}

fn has_form(path: &str, start: &str, end: &str) -> bool {
    let middle = path.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
    middle.is_some_and(|text| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')))
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// First file that a cached model lacks, by the files themselves.
fn missing_file(folder: &Path) -> Option<String> {
    let has = |file: &str| folder.join(file).is_file();
    if !has(CONFIG) {
        return Some(CONFIG.into());
    }
    if has(WEIGHTS) {
        return None;
    }
    let index = fs::read(folder.join(INDEX)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let Some(Index { weight_map }) = index else { return Some(WEIGHTS.into()) };
    weight_map.into_values().find(|shard| !has(shard))
}
