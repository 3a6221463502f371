//! Model folders by name: a local folder, or `organisation/name[@revision]` on a hub.
//!
//! Each commit is downloaded to its own folder, so a complete one never changes. Interrupted files are resumed,
//! verified (size, and SHA-256 if the hub provides it) and renamed into place; a marker is written when all are
//! complete. Every wait has a timeout.

mod error;
mod fetch;
mod listing;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::{HubError, ListingError, TransferError};
use fetch::Client;

/// Hub access and download settings.
#[derive(Clone)]
pub struct HubOptions {
    /// Root address of the hub, from `HF_ENDPOINT`; there is no default.
    pub endpoint: Option<String>,
    /// Bearer token for private and gated models, from `HF_TOKEN`. Sent to the endpoint only, not to redirect targets.
    pub token: Option<String>,
    /// Folder of the downloads.
    pub cache: PathBuf,
    /// Timeout for a connection, a response, or more bytes.
    pub timeout: Duration,
    /// Number of consecutive retries without progress.
    pub retries: u32,
    /// Delay before the first retry; doubled each time.
    pub retry_wait: Duration,
}

impl std::fmt::Debug for HubOptions {
    /// Omits the token, which must not appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("cache", &self.cache)
            .field("timeout", &self.timeout)
            .field("retries", &self.retries)
            .field("retry_wait", &self.retry_wait)
            .finish()
    }
}

impl HubOptions {
    /// Options for a cache folder, without endpoint and token.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            endpoint: None,
            token: None,
            cache,
            timeout: Duration::from_secs(30),
            retries: 5,
            retry_wait: Duration::from_millis(500),
        }
    }

    /// Options from the environment: `HF_ENDPOINT`, `HF_TOKEN`, and the cache in `RLOOM_CACHE` or otherwise `rloom/hub`
    /// in the user's cache folder (`XDG_CACHE_HOME` or `~/.cache`).
    pub fn from_env() -> Self {
        let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let cache = var("RLOOM_CACHE").map(PathBuf::from).or_else(|| {
            let base = var("XDG_CACHE_HOME").map(PathBuf::from);
            base.or_else(|| var("HOME").map(|home| Path::new(&home).join(".cache")))
                .map(|base| base.join("rloom"))
        });
        let cache = cache.unwrap_or_else(|| PathBuf::from(".rloom-cache")).join("hub");
        Self { endpoint: var("HF_ENDPOINT"), token: var("HF_TOKEN"), ..Self::new(cache) }
    }
}

/// A model on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HubId<'a> {
    organisation: &'a str,
    name: &'a str,
    revision: &'a str,
}

impl<'a> HubId<'a> {
    fn parse(source: &'a str) -> Option<Self> {
        let (id, revision) = source.split_once('@').unwrap_or((source, "main"));
        let (organisation, name) = id.split_once('/')?;
        let plain = |part: &str| {
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && !part.starts_with('.') && !part.contains("..") && part.chars().all(fine)
        };
        let revision_fine = !revision.is_empty() && revision.split('/').all(plain);
        (plain(organisation) && plain(name) && revision_fine).then_some(Self { organisation, name, revision })
    }

    /// Folder that contains all its commits.
    fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("{}--{}", self.organisation, self.name))
    }
}

impl std::fmt::Display for HubId<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}", self.organisation, self.name, self.revision)
    }
}

/// Marker file, written when all files of a commit are complete.
const COMPLETE: &str = ".complete";

/// Folder of a model: `source` itself if it is a local folder, otherwise the download of the hub model
/// `organisation/name[@revision]`.
///
/// A revision that is a downloaded commit needs no network; a branch or tag is looked up each time.
pub fn resolve(source: &str, options: &HubOptions) -> Result<PathBuf, HubError> {
    let path = Path::new(source);
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    if path.exists() {
        return Err(HubError::NotAFolder { path: path.to_owned() });
    }
    let id = HubId::parse(source).ok_or_else(|| HubError::Name { source_name: source.to_owned() })?;
    let commits = id.folder(&options.cache);
    let is_commit = id.revision.len() == 40 && id.revision.chars().all(|c| c.is_ascii_hexdigit());
    if is_commit && commits.join(id.revision).join(COMPLETE).is_file() {
        return Ok(commits.join(id.revision));
    }
    let downloaded = downloaded_commit(&commits);
    let client = Client::new(options)
        .ok_or_else(|| HubError::NoEndpoint { id: id.to_string(), downloaded: downloaded.clone() })?;
    let listing = client.listing(&id).map_err(|error| error.with_downloaded(downloaded))?;
    let folder = commits.join(&listing.commit);
    if folder.join(COMPLETE).is_file() {
        return Ok(folder);
    }
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| HubError::Io { path, source }
    };
    fs::create_dir_all(&folder).map_err(io(&folder))?;
    let lock_path = folder.join(".lock");
    let lock = File::create(&lock_path).map_err(io(&lock_path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(HubError::Busy { path: folder }),
        Err(TryLockError::Error(source)) => return Err(HubError::Io { path: lock_path, source }),
    }
    for file in listing.downloads(&id)? {
        client.download(&id, &listing.commit, file, &folder)?;
    }
    let marker = folder.join(COMPLETE);
    fs::write(&marker, format!("{id}\n")).map_err(io(&marker))?;
    Ok(folder)
}

/// Most recent complete download of a model, for use in hints.
fn downloaded_commit(commits: &Path) -> Option<PathBuf> {
    let finished = fs::read_dir(commits).ok()?.filter_map(|entry| {
        let folder = entry.ok()?.path();
        let time = fs::metadata(folder.join(COMPLETE)).ok()?.modified().ok()?;
        Some((time, folder))
    });
    finished.max().map(|(_, folder)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let id = |source| HubId::parse(source).map(|id| id.to_string());
        assert_eq!(id("org/name").as_deref(), Some("org/name@main"));
        assert_eq!(id("org/na.me-1_b@refs/pr/1").as_deref(), Some("org/na.me-1_b@refs/pr/1"));
        for bad in ["name", "a/b/c", "../x", "a/..", "/a", "a/", "a/b@", "a/b@../c", "a b/c", "./a", "a/b?c"]
        {
            assert_eq!(id(bad), None, "{bad}");
        }
    }

    #[test]
    fn debug_output_omits_the_token() {
        let options = HubOptions { token: Some("hf_secret".into()), ..HubOptions::new("cache".into()) };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
