//! Model folders by name: a local folder as it is, or `organisation/name[@revision]` from a hub.
//!
//! A download goes to a folder of its own for each commit, so that a finished one never changes. Files are resumed
//! where they broke off, checked (size, and SHA-256 where the hub gives it) and renamed into place; a marker is
//! written when all are there. Every wait has a deadline.

mod error;
mod fetch;
mod listing;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::HubError;
use fetch::Client;

/// Where models come from and go to.
#[derive(Clone)]
pub struct HubOptions {
    /// Root address of the hub, from `HF_ENDPOINT`; there is no default.
    pub endpoint: Option<String>,
    /// Bearer token for private and gated models, from `HF_TOKEN`. It goes to the endpoint alone, not along redirects.
    pub token: Option<String>,
    /// Folder that downloads are kept in.
    pub cache: PathBuf,
    /// How long to wait for a connection, an answer, or more bytes.
    pub timeout: Duration,
    /// How often a broken download is taken up again before giving up.
    pub retries: u32,
    /// How long to wait before the first retry; doubled each time.
    pub retry_wait: Duration,
}

impl std::fmt::Debug for HubOptions {
    /// Without the token: it must not end up in a log.
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

    /// Options from the environment: `HF_ENDPOINT`, `HF_TOKEN`, and the cache in `RLOOM_CACHE` or else in the user's
    /// cache folder (`XDG_CACHE_HOME` or `~/.cache`, `rloom/hub` in it).
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

    /// The folder of all its commits.
    fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("{}--{}", self.organisation, self.name))
    }
}

impl std::fmt::Display for HubId<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}", self.organisation, self.name, self.revision)
    }
}

/// Written when all files of a commit are there.
const COMPLETE: &str = ".complete";

/// The folder of a model: `source` itself where it is a local folder, else the download of the hub model
/// `organisation/name[@revision]`.
///
/// A revision that is a commit and has been downloaded needs no network; a branch or tag is looked up each time.
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
    for file in listing.wanted(&id)? {
        client.download(&id, &listing.commit, file, &folder)?;
    }
    let marker = folder.join(COMPLETE);
    fs::write(&marker, format!("{id}\n")).map_err(io(&marker))?;
    Ok(folder)
}

/// Any finished download of a model, the latest first, to be named in hints.
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
    fn names() {
        let id = |source| HubId::parse(source).map(|id| id.to_string());
        assert_eq!(id("org/name").as_deref(), Some("org/name@main"));
        assert_eq!(id("org/na.me-1_b@refs/pr/1").as_deref(), Some("org/na.me-1_b@refs/pr/1"));
        for bad in ["name", "a/b/c", "../x", "a/..", "/a", "a/", "a/b@", "a/b@../c", "a b/c", "./a", "a/b?c"]
        {
            assert_eq!(id(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_token_is_not_shown() {
        let options = HubOptions { token: Some("hf_secret".into()), ..HubOptions::new("cache".into()) };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
