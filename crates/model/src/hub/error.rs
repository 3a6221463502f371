use std::path::PathBuf;

/// A model that cannot be had by its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The name is of a file.
    #[error("{}: not a folder\nhint: give the folder that holds config.json", path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// The name is neither of a folder nor of a hub model.
    #[error(
        "{source_name}: there is no such folder\nhint: a model is a local folder or `organisation/name`, with `@revision` for a branch, tag or commit"
    )]
    Name {
        /// What was given.
        source_name: String,
    },
    /// No hub is known.
    #[error("{id}: there is no such folder, and no hub to get it from\nhint: {}", no_endpoint_hint(downloaded.as_ref()))]
    NoEndpoint {
        /// The model.
        id: String,
        /// An earlier download of it.
        downloaded: Option<PathBuf>,
    },
    /// The hub does not have it.
    #[error(
        "{id}: {endpoint} has no such model or revision\nhint: check the spelling; a local folder of that name is not there either"
    )]
    NotFound {
        /// The model, or the model and a file.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub does not give it to this user.
    #[error("{id}: {endpoint} refuses access (status {status})\nhint: {}", access_hint(*with_token))]
    Denied {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub cannot be reached.
    #[error("{id}: cannot reach {endpoint}: {message}\nhint: {}", offline_hint(downloaded.as_ref()))]
    Unreachable {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
        /// What happened.
        message: String,
        /// An earlier download of the model.
        downloaded: Option<PathBuf>,
    },
    /// The hub answers with something else than the model.
    #[error("{id}: {endpoint} answers with status {status}\nhint: try again later")]
    Status {
        /// The model, or the model and a file.
        id: String,
        /// The hub.
        endpoint: String,
        /// The HTTP status.
        status: u16,
    },
    /// The hub's list of files cannot be understood.
    #[error("{id}: {endpoint} gives no usable list of files: {message}\nhint: does HF_ENDPOINT name a hub?")]
    Listing {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
        /// What is wrong.
        message: String,
    },
    /// The model has no files that can be opened.
    #[error(
        "{id}: has no {missing}\nhint: only models with config.json and safetensors weights can be opened"
    )]
    NotAModel {
        /// The model.
        id: String,
        /// What is missing.
        missing: &'static str,
    },
    /// A download broke off too often.
    #[error(
        "{id}: the download of {file} broke off {attempts} times, last at byte {at}: {message}\nhint: run it again, it goes on from there"
    )]
    Interrupted {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// Attempts made.
        attempts: u32,
        /// Bytes that are there.
        at: u64,
        /// What happened last.
        message: String,
    },
    /// A file has another size than the hub says.
    #[error(
        "{id}: {file} has {actual} bytes, the hub lists {expected}\nhint: the partial file was removed; run it again"
    )]
    Size {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// By the list of files.
        expected: u64,
        /// What came.
        actual: u64,
    },
    /// A file's content is not what the hub says.
    #[error(
        "{id}: {file} has SHA-256 {actual}, the hub lists {expected}\nhint: the damaged file was removed; run it again"
    )]
    Checksum {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// By the list of files.
        expected: String,
        /// What came.
        actual: String,
    },
    /// Another process downloads the same model.
    #[error("{}: another process is downloading this model\nhint: wait until it is done", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl HubError {
    /// Names an earlier download in the hint, where that helps.
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
