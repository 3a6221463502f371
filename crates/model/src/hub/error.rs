//! Errors of resolving and downloading a model.

use std::io;
use std::path::PathBuf;

/// A model that cannot be resolved by its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The path is a file.
    #[error("{}: not a folder\nhint: give the folder that contains config.json", path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// The name is neither a folder nor a hub model.
    #[error(
        "{source_name}: no such folder\nhint: a model is a local folder or `organisation/name`, with `@revision` for a branch, tag or commit"
    )]
    Name {
        /// The name given.
        source_name: String,
    },
    /// No hub is configured.
    #[error("{id}: no such folder, and no hub is configured\nhint: {}", no_endpoint_hint(downloaded.as_ref()))]
    NoEndpoint {
        /// The model.
        id: String,
        /// An earlier download of it.
        downloaded: Option<PathBuf>,
    },
    /// The hub does not have the model.
    #[error(
        "{id}: {endpoint} has no such model or revision\nhint: check the spelling; no local folder has this name either"
    )]
    NotFound {
        /// The model, or the model and a file.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub denies access to this user.
    #[error("{id}: {endpoint} denies access (status {status})\nhint: {}", access_hint(*with_token))]
    Denied {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The hub cannot be reached.
    #[error("{id}: cannot reach {endpoint}: {source}\nhint: {}", offline_hint(downloaded.as_ref()))]
    Unreachable {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
        /// Failure of the last attempt.
        source: TransferError,
        /// An earlier download of the model.
        downloaded: Option<PathBuf>,
    },
    /// The hub returned an unexpected status.
    #[error("{id}: {endpoint} returned status {status}\nhint: try again later")]
    Status {
        /// The model, or the model and a file.
        id: String,
        /// The hub.
        endpoint: String,
        /// The HTTP status.
        status: u16,
    },
    /// The hub's list of files is invalid.
    #[error(
        "{id}: {endpoint} returned an invalid list of files: {source}\nhint: check that HF_ENDPOINT is the address of a hub"
    )]
    Listing {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
        /// Problem of the list.
        source: ListingError,
    },
    /// The model has no supported files.
    #[error(
        "{id}: has no {missing}\nhint: only models with config.json and safetensors weights can be opened"
    )]
    NotAModel {
        /// The model.
        id: String,
        /// What is missing.
        missing: &'static str,
    },
    /// A download was interrupted too often.
    #[error(
        "{id}: the download of {file} was interrupted {attempts} times, last at byte {at}: {source}\nhint: run again to resume it"
    )]
    Interrupted {
        /// The model.
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
    /// The size of a file differs from the hub's list.
    #[error(
        "{id}: {file} has {actual} bytes, the hub lists {expected}\nhint: the partial file was removed; run again"
    )]
    Size {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// Size by the hub's list.
        expected: u64,
        /// Downloaded size.
        actual: u64,
    },
    /// The checksum of a file differs from the hub's list.
    #[error(
        "{id}: {file} has SHA-256 {actual}, the hub lists {expected}\nhint: the damaged file was removed; run again"
    )]
    Checksum {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// Checksum by the hub's list.
        expected: String,
        /// Checksum of the downloaded file.
        actual: String,
    },
    /// Another process is downloading the same model.
    #[error("{}: another process is downloading this model\nhint: wait until it has finished", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
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

/// Problem of a hub's list of files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListingError {
    /// The response is not the expected JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The commit contains characters other than letters and digits.
    #[error("{commit:?} is not a commit")]
    Commit {
        /// The commit as listed.
        commit: String,
    },
}

impl HubError {
    /// True if the name itself is wrong (a usage error): neither a model folder nor an existing hub model.
    pub fn is_wrong_name(&self) -> bool {
        matches!(
            self,
            Self::NotAFolder { .. } | Self::Name { .. } | Self::NoEndpoint { .. } | Self::NotFound { .. }
        )
    }

    /// Adds an earlier download to the hint, where it helps.
    pub(super) fn with_downloaded(mut self, folder: Option<PathBuf>) -> Self {
        if let Self::Unreachable { downloaded, .. } = &mut self {
            *downloaded = folder;
        }
        self
    }
}

fn no_endpoint_hint(downloaded: Option<&PathBuf>) -> String {
    match downloaded {
        Some(folder) => {
            format!("an earlier download is {}; or set HF_ENDPOINT to the hub's address", folder.display())
        }
        None => "set HF_ENDPOINT to the hub's address, or give a local folder".into(),
    }
}

fn offline_hint(downloaded: Option<&PathBuf>) -> String {
    match downloaded {
        Some(folder) => format!("an earlier download is {}; give that folder", folder.display()),
        None => "check the network and HF_ENDPOINT, or give a local folder".into(),
    }
}

fn access_hint(with_token: bool) -> &'static str {
    if with_token {
        "check the spelling, and on the hub that this token may read the model and that its terms are accepted"
    } else {
        "check the spelling; for a private or gated model, set HF_TOKEN"
    }
}
