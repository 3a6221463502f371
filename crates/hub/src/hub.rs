//! A hub and its cache.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::RepositoryCache;
use crate::http::{AttemptError, Client, is_transient};
use crate::listing::Listing;
use crate::reference::{DEFAULT_REVISION, Repository, is_commit};
use crate::url::escape_segment;
use crate::{HubError, HubOptions, ListingError, TransferError};

/// A hub and the cache of its files.
pub struct Hub {
    pub(crate) options: HubOptions,
    pub(crate) client: Client,
    observer: Option<Observer>,
    /// Commits of the revisions that were looked up: one `Hub` sees a branch at one commit.
    commits: Mutex<BTreeMap<String, String>>,
}

type Observer = Arc<dyn Fn(&HubEvent<'_>) + Send + Sync>;

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Progress of a hub's operations.
#[derive(Debug)]
#[non_exhaustive]
pub enum HubEvent<'a> {
    /// A call starts. It may wait for the network or for another process until [`HubEvent::Ended`].
    Started,
    /// The call has ended, also with an error.
    Ended,
    /// A file is being downloaded. Sent when its transfer starts or continues, several times a second, and when it ends.
    Download {
        /// The repository.
        repository: &'a Repository,
        /// Path of the file within it.
        file: &'a str,
        /// Bytes on disk.
        bytes: u64,
        /// Size of the file, if known.
        size: Option<u64>,
    },
    /// A file was downloaded and verified.
    Downloaded {
        /// The repository.
        repository: &'a Repository,
        /// Path of the file within it.
        file: &'a str,
        /// Size of the file.
        bytes: u64,
    },
    /// Another process is downloading the file; this one waits for it.
    Waiting {
        /// The repository.
        repository: &'a Repository,
        /// Path of the file within it.
        file: &'a str,
    },
    /// The hub cannot be reached: the cached commit of the revision is used.
    Cached {
        /// The repository.
        repository: &'a Repository,
        /// Revision that was requested.
        revision: &'a str,
        /// Its commit in the cache.
        commit: &'a str,
        /// Failure of the request.
        error: &'a HubError,
    },
}

/// A call that is in progress until this is dropped.
pub(crate) struct Call<'a>(&'a Hub);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.report(&HubEvent::Ended);
    }
}

/// Files of a repository at one commit.
pub(crate) struct Snapshot {
    pub(crate) repository: Repository,
    revision: String,
    pub(crate) listing: Listing,
    pub(crate) cache: RepositoryCache,
    /// True if the listing contains only the cached files, because the hub's is not known.
    pub(crate) is_partial: bool,
}

impl Snapshot {
    /// Name in messages.
    pub(crate) fn id(&self) -> String {
        format!("{}@{}", self.repository, self.revision)
    }
}

impl Hub {
    /// A hub with the given options.
    pub fn new(options: HubOptions) -> Self {
        Self { client: Client::new(&options), options, observer: None, commits: Mutex::default() }
    }

    /// The hub that the environment selects; see [`HubOptions::from_env`].
    pub fn from_env() -> Self {
        Self::new(HubOptions::from_env())
    }

    /// Reports progress to `observer`.
    #[must_use]
    pub fn with_observer(self, observer: impl Fn(&HubEvent<'_>) + Send + Sync + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    pub(crate) fn report(&self, event: &HubEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    /// Reports the start of a call, and its end when dropped.
    pub(crate) fn start(&self) -> Call<'_> {
        self.report(&HubEvent::Started);
        Call(self)
    }

    /// Commit and files of a revision. A commit whose files were listed before needs no network; a branch or tag is looked
    /// up once, and taken from the cache if the hub cannot be reached.
    pub(crate) fn snapshot(
        &self,
        repository: &Repository,
        revision: Option<&str>,
    ) -> Result<Snapshot, HubError> {
        let revision = revision.unwrap_or(DEFAULT_REVISION);
        let cache = RepositoryCache::new(&self.options.cache, repository);
        let snapshot = |listing, is_partial| Snapshot {
            repository: repository.clone(),
            revision: revision.to_owned(),
            listing,
            cache: cache.clone(),
            is_partial,
        };
        let key = format!("{}@{revision}", repository.api_path());
        let known = || self.commits.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let commit = if is_commit(revision) { Some(revision.to_owned()) } else { known() };
        if let Some(listing) = commit.and_then(|commit| cache.listing(&commit)) {
            return Ok(snapshot(listing, false));
        }
        let cached = || {
            let commit = cache.commit_of(revision)?;
            match cache.listing(&commit) {
                Some(listing) => Some(snapshot(listing, false)),
                None => Some(snapshot(cache.cached_files(&commit)?, true)),
            }
        };
        if self.options.offline {
            let (kind, id) = (repository.kind, format!("{repository}@{revision}"));
            return cached().ok_or_else(|| HubError::Offline { kind, id, cache: self.options.cache.clone() });
        }
        match self.list(repository, revision) {
            Ok(listing) => {
                cache.set_commit(revision, &listing.commit)?;
                cache.record(&listing)?;
                let mut commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
                commits.insert(key, listing.commit.clone());
                Ok(snapshot(listing, false))
            }
            Err(error @ HubError::Unreachable { .. }) => {
                let Some(snapshot) = cached() else { return Err(error) };
                let commit = &snapshot.listing.commit;
                self.report(&HubEvent::Cached { repository, revision, commit, error: &error });
                Ok(snapshot)
            }
            Err(error) => Err(error),
        }
    }

    /// Queries the commit and the files of a revision.
    fn list(&self, repository: &Repository, revision: &str) -> Result<Listing, HubError> {
        let id = format!("{repository}@{revision}");
        let endpoint = &self.client.endpoint;
        let segment = escape_segment(revision);
        let url = format!("{endpoint}/{}/revision/{segment}?blobs=true", repository.api_path());
        self.client.with_retries(
            || {
                let mut response = self.client.get(&url, 0)?;
                let status = response.status().as_u16();
                if is_transient(status) {
                    return Err(TransferError::Status { status }.into());
                }
                if status != 200 {
                    return Err(self.client.refusal(repository, id.clone(), &response).into());
                }
                let body = response.body_mut().with_config().limit(MAX_LISTING).read_to_vec();
                let listing = Listing::from_answer(&body.map_err(TransferError::from)?);
                let invalid = |source: ListingError| {
                    let (id, endpoint) = (id.clone(), endpoint.clone());
                    AttemptError::Permanent(HubError::Listing { id, endpoint, source })
                };
                listing.map_err(invalid)
            },
            |source, _| self.client.unreachable(id.clone(), source),
            || 0,
        )
    }

    /// Folder of the cache.
    pub fn cache(&self) -> &PathBuf {
        &self.options.cache
    }
}

/// Longest list of files in bytes.
const MAX_LISTING: u64 = 1 << 28;
