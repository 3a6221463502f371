//! Errors of resolving and downloading models and data sets.

use std::io;
use std::path::PathBuf;

use crate::reference::RepositoryKind;

/// A model or data set that cannot be resolved by its name.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The path is a file.
    #[error("{}: not a folder", path.display())]
    #[diagnostic(help("give the folder that contains config.json"))]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// The name is neither a folder nor a hub model.
    #[error("{source_name}: no such folder")]
    #[diagnostic(help(
        "a model is a local folder or `organisation/name`, with `@revision` for a branch, tag or commit"
    ))]
    Name {
        /// The name given.
        source_name: String,
    },
    /// The cache does not contain the repository, and no network may be used.
    #[error("{kind} {id}: not in the cache {}, and HF_HUB_OFFLINE is set", cache.display())]
    #[diagnostic(help("unset HF_HUB_OFFLINE to download it"))]
    Offline {
        /// Model or data set.
        kind: RepositoryKind,
        /// The repository and revision, or a file.
        id: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The hub does not have the repository.
    #[error("{id}: {endpoint} has no such {kind} or revision")]
    #[diagnostic(help("{}", missing_hint(*with_token, *kind)))]
    NotFound {
        /// Model or data set.
        kind: RepositoryKind,
        /// The repository and revision, or a file.
        id: String,
        /// The hub.
        endpoint: String,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The hub denies access to this user.
    #[error("{id}: {endpoint} denies access (status {status})")]
    #[diagnostic(help("{}", access_hint(*with_token)))]
    Denied {
        /// The repository and revision, or a file.
        id: String,
        /// The hub.
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The hub cannot be reached.
    #[error("{id}: cannot reach {endpoint}: {source}")]
    #[diagnostic(help("check the network and HF_ENDPOINT, or give a local path"))]
    Unreachable {
        /// The repository and revision.
        id: String,
        /// The hub.
        endpoint: String,
        /// Failure of the last attempt.
        source: TransferError,
    },
    /// The hub returned an unexpected status.
    #[error("{id}: {endpoint} returned status {status}")]
    #[diagnostic(help("try again later"))]
    Status {
        /// The repository and revision, or a file.
        id: String,
        /// The hub.
        endpoint: String,
        /// The HTTP status.
        status: u16,
    },
    /// The hub's list of files is invalid.
    #[error("{id}: {endpoint} returned an invalid list of files: {source}")]
    #[diagnostic(help("check that HF_ENDPOINT is the address of a hub"))]
    Listing {
        /// The repository and revision.
        id: String,
        /// The hub.
        endpoint: String,
        /// Problem of the list.
        source: ListingError,
    },
    /// A file is of another commit than the one requested.
    #[error("{id}: {endpoint} returned the file of commit {actual}")]
    #[diagnostic(help("check that HF_ENDPOINT is the address of a hub"))]
    Commit {
        /// The file.
        id: String,
        /// The hub.
        endpoint: String,
        /// Commit of the response.
        actual: String,
    },
    /// A file has no identifier under which it can be cached.
    #[error("{id}: {endpoint} returned no etag")]
    #[diagnostic(help("check that HF_ENDPOINT is the address of a hub"))]
    NoEtag {
        /// The file.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// The model has no supported files.
    #[error("{id}: has no {missing}")]
    #[diagnostic(help("only models with config.json and safetensors weights can be opened"))]
    NotAModel {
        /// The model.
        id: String,
        /// Name of the missing file.
        missing: &'static str,
    },
    /// A download was interrupted too often.
    #[error("{id}: the download of {file} was interrupted {attempts} times, last at byte {at}: {source}")]
    #[diagnostic(help("run again to resume it"))]
    Interrupted {
        /// The repository and revision.
        id: String,
        /// The file.
        file: String,
        /// Number of attempts.
        attempts: u32,
        /// Bytes downloaded.
        at: u64,
        /// Failure of the last attempt.
        source: TransferError,
    },
    /// The size of a file differs from the hub's.
    #[error("{id}: {file} has {actual} bytes, the hub lists {expected}")]
    #[diagnostic(help("the partial file was removed; run again"))]
    Size {
        /// The repository and revision.
        id: String,
        /// The file.
        file: String,
        /// Size by the hub.
        expected: u64,
        /// Downloaded size.
        actual: u64,
    },
    /// The checksum of a file differs from the hub's.
    #[error("{id}: {file} has SHA-256 {actual}, the hub lists {expected}")]
    #[diagnostic(help("the damaged file was removed; run again"))]
    Checksum {
        /// The repository and revision.
        id: String,
        /// The file.
        file: String,
        /// Checksum by the hub.
        expected: String,
        /// Checksum of the downloaded file.
        actual: String,
    },
    /// Another process is downloading the same file and makes no progress.
    #[error("{}: another process holds this lock and makes no progress", path.display())]
    #[diagnostic(help("wait until it has finished, or stop it"))]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// The data set has no such subset, or several and none was given.
    #[error("{dataset}: {}; available: {}", choice("subset", requested.as_deref()), quoted(available))]
    #[diagnostic(help("write `hf:{dataset}/<subset>`"))]
    Subset {
        /// The data set.
        dataset: String,
        /// Requested subset.
        requested: Option<String>,
        /// Subsets of the data set.
        available: Vec<String>,
    },
    /// The data set has no such split, or several and none was given.
    #[error("{dataset}: {}; available: {}", choice("split", requested.as_deref()), quoted(available))]
    #[diagnostic(help("write `hf:{dataset}:<split>`"))]
    Split {
        /// The data set, with its subset.
        dataset: String,
        /// Requested split.
        requested: Option<String>,
        /// Splits of the subset.
        available: Vec<String>,
    },
    /// The data set has no files in a supported format, nor a converted branch.
    #[error("{dataset}: no data files that can be read{}", found_formats(found))]
    #[diagnostic(help("{}", unreadable_hint(*converted)))]
    NoData {
        /// The data set.
        dataset: String,
        /// File name extensions of its data files.
        found: Vec<String>,
        /// True if the branch with automatically converted files was searched.
        converted: bool,
    },
    /// The header of the data set's README.md is invalid.
    #[error("{dataset}: cannot read the header of README.md: {source}")]
    #[diagnostic(help("download the files and give their path"))]
    Card {
        /// The data set.
        dataset: String,
        /// The problem.
        source: CardError,
    },
    /// Some of the files are missing from the cache, and the hub cannot be reached.
    #[error("{id}: the cache has only some of its files; {file} is missing")]
    #[diagnostic(help("run again with network"))]
    Incomplete {
        /// The repository.
        id: String,
        /// A missing file.
        file: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Failure of one HTTP request or transfer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The server returned a status other than success.
    #[error("status {status}")]
    Status {
        /// HTTP status.
        status: u16,
    },
    /// The server did not resume the file at the requested byte.
    #[error("status {status} for the bytes from {offset}")]
    Range {
        /// HTTP status.
        status: u16,
        /// First byte requested.
        offset: u64,
    },
    /// The connection ended before the end of the file.
    #[error("the connection ended at byte {at} of {size}")]
    Ended {
        /// Bytes received.
        at: u64,
        /// Size of the file.
        size: u64,
    },
    /// A redirect to an invalid address.
    #[error("redirected to the invalid address {location:?}")]
    Location {
        /// The address.
        location: String,
    },
    /// Too many redirects.
    #[error("more than {limit} redirects")]
    Redirects {
        /// Number of redirects that are followed.
        limit: u32,
    },
    /// The request failed.
    #[error(transparent)]
    Http(Box<ureq::Error>),
    /// The response could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
}

impl From<ureq::Error> for TransferError {
    fn from(error: ureq::Error) -> Self {
        Self::Http(Box::new(error))
    }
}

impl TransferError {
    /// True if another attempt may succeed. A wrong address, an unknown host or a bad certificate stays wrong.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Self::Http(error) => {
                matches!(**error, ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::Protocol(_))
            }
            Self::Location { .. } | Self::Redirects { .. } => false,
            Self::Range { .. } | Self::Ended { .. } | Self::Read(_) => true,
        }
    }
}

/// Problem of a hub's list of files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListingError {
    /// The response is not the expected JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The commit is not one.
    #[error("{commit:?} is not a commit")]
    Commit {
        /// The commit as listed.
        commit: String,
    },
}

/// Problem of the header of a data set's README.md.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The header is not YAML.
    #[error(transparent)]
    Yaml(#[from] yaml_rust2::ScanError),
    /// `configs` has another form than the hub documents.
    #[error("`configs` is not a list of subsets with `config_name` and `data_files`")]
    Configs,
}

impl HubError {
    /// True if the name itself is wrong (a usage error): neither a folder nor something that the hub has.
    pub fn is_wrong_name(&self) -> bool {
        matches!(
            self,
            Self::NotAFolder { .. }
                | Self::Name { .. }
                | Self::NotFound { .. }
                | Self::Subset { .. }
                | Self::Split { .. }
        )
    }
}

fn missing_hint(with_token: bool, kind: RepositoryKind) -> String {
    let local = match kind {
        RepositoryKind::Model => "; no local folder has this name either",
        RepositoryKind::Dataset => "",
    };
    let private = if with_token { "" } else { "; for a private repository, set HF_TOKEN" };
    format!("check the spelling{local}{private}")
}

fn access_hint(with_token: bool) -> &'static str {
    if with_token {
        "check the spelling, and on the hub that this token may read the repository and that its terms are accepted"
    } else {
        "check the spelling; for a private or gated repository, set HF_TOKEN"
    }
}

fn unreadable_hint(converted: bool) -> &'static str {
    if converted {
        "Parquet and JSONL files can be read, and the hub has no converted copy of this data set"
    } else {
        "Parquet and JSONL files can be read; without a revision, the hub's converted copy is used"
    }
}

fn choice(what: &str, requested: Option<&str>) -> String {
    match requested {
        Some(requested) => format!("no {what} `{requested}`"),
        None => format!("several {what}s"),
    }
}

fn found_formats(found: &[String]) -> String {
    if found.is_empty() { String::new() } else { format!(" (found: {})", quoted(found)) }
}

fn quoted(names: &[String]) -> String {
    if names.is_empty() {
        return "none".into();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
