//! Downloads over HTTP.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::http::Response;
use ureq::{Agent, Body};

use super::listing::{ListedFile, Listing};
use super::{HubError, HubId, HubOptions, ListingError, TransferError};

pub(super) struct Client<'a> {
    agent: Agent,
    endpoint: &'a str,
    options: &'a HubOptions,
}

/// Reason why one attempt to download a file failed.
enum AttemptError {
    /// Transient: worth another attempt.
    Transient(TransferError),
    /// Permanent.
    Permanent(HubError),
}

impl<'a> Client<'a> {
    /// `None` without an endpoint.
    pub(super) fn new(options: &'a HubOptions) -> Option<Self> {
        let endpoint = options.endpoint.as_deref()?.trim_end_matches('/');
        let wait = Some(options.timeout);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(wait)
            .timeout_connect(wait)
            .timeout_send_request(wait)
            .timeout_recv_response(wait)
            // Applies to each read, not to the whole body: a large file may take long, a silent server may not.
            .timeout_per_read(wait)
            // Compressed responses could not be resumed by byte position.
            .accept_encoding("identity")
            .user_agent(concat!("rloom/", env!("CARGO_PKG_VERSION")))
            .build();
        Some(Self { agent: Agent::new_with_config(config), endpoint, options })
    }

    fn get(&self, url: &str, from: u64) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.options.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        request.call()
    }

    fn refusal(&self, id: String, status: u16) -> HubError {
        let endpoint = self.endpoint.to_owned();
        match status {
            404 => HubError::NotFound { id, endpoint },
            401 | 403 => HubError::Denied { id, endpoint, status, with_token: self.options.token.is_some() },
            _ => HubError::Status { id, endpoint, status },
        }
    }

    fn unreachable(&self, id: String, source: TransferError) -> HubError {
        HubError::Unreachable { id, endpoint: self.endpoint.to_owned(), source, downloaded: None }
    }

    /// Queries the commit and the files of a revision.
    pub(super) fn listing(&self, id: &HubId<'_>) -> Result<Listing, HubError> {
        let revision = id.revision.replace('/', "%2F");
        let url = format!(
            "{}/api/models/{}/{}/revision/{revision}?blobs=true",
            self.endpoint, id.organisation, id.name
        );
        self.with_retries(
            || {
                let mut response = self.get(&url, 0).map_err(|error| self.connection(id, error))?;
                let status = response.status().as_u16();
                if is_transient(status) {
                    return Err(AttemptError::Transient(TransferError::Status { status }));
                }
                if status != 200 {
                    return Err(AttemptError::Permanent(self.refusal(id.to_string(), status)));
                }
                let body = response.body_mut().read_to_vec();
                let body = body.map_err(|error| AttemptError::Transient(error.into()))?;
                let listing = serde_json::from_slice(&body).map_err(ListingError::from);
                let checked = listing.and_then(|listing: Listing| listing.check().map(|()| listing));
                checked.map_err(|source| {
                    let endpoint = self.endpoint.to_owned();
                    AttemptError::Permanent(HubError::Listing { id: id.to_string(), endpoint, source })
                })
            },
            |source, _| self.unreachable(id.to_string(), source),
            || 0,
        )
    }

    /// Downloads a file into `folder`, unless it exists.
    pub(super) fn download(
        &self,
        id: &HubId<'_>,
        commit: &str,
        file: &ListedFile,
        folder: &Path,
    ) -> Result<(), HubError> {
        let target = folder.join(&file.name);
        if target.is_file() {
            return Ok(()); // renamed into place after its checks
        }
        let part = folder.join(format!("{}.part", file.name));
        let url = format!("{}/{}/{}/resolve/{commit}/{}", self.endpoint, id.organisation, id.name, file.name);
        let size = self.with_retries(
            || self.attempt(id, file, &url, &part),
            |source, attempts| HubError::Interrupted {
                id: id.to_string(),
                file: file.name.clone(),
                attempts,
                at: len(&part),
                source,
            },
            || len(&part),
        )?;
        check(id, file, &part, size)?;
        let io = |source| HubError::Io { path: part.clone(), source };
        File::open(&part).and_then(|file| file.sync_all()).map_err(io)?;
        fs::rename(&part, &target).map_err(|source| HubError::Io { path: target, source })
    }

    /// Requests the missing bytes of a file once and appends them to `part`. Returns the expected file size if the hub
    /// or the response states it.
    fn attempt(
        &self,
        id: &HubId<'_>,
        file: &ListedFile,
        url: &str,
        part: &Path,
    ) -> Result<Option<u64>, AttemptError> {
        let mut offset = len(part);
        if file.size().is_some_and(|size| offset == size) && offset > 0 {
            return Ok(file.size());
        }
        let mut response = self.get(url, offset).map_err(|error| self.connection(id, error))?;
        let status = response.status().as_u16();
        let resumed = status == 206 && range_start(&response) == Some(offset);
        if status == 416 || (status == 206 && !resumed) {
            // The partial file does not match the server's: start over.
            let _ = fs::remove_file(part);
            return Err(AttemptError::Transient(TransferError::Range { status, offset }));
        }
        if is_transient(status) {
            return Err(AttemptError::Transient(TransferError::Status { status }));
        }
        if status != 200 && !resumed {
            return Err(AttemptError::Permanent(self.refusal(format!("{id}/{}", file.name), status)));
        }
        let io = |source| AttemptError::Permanent(HubError::Io { path: part.to_owned(), source });
        let mut to = OpenOptions::new()
            .create(true)
            .write(true)
            .append(resumed)
            .truncate(!resumed)
            .open(part)
            .map_err(io)?;
        if !resumed {
            offset = 0;
        }
        let announced = response.body().content_length().map(|rest| offset + rest);
        let size = file.size().or(announced);
        let mut body = response.body_mut().as_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    to.write_all(&buffer[..n]).map_err(io)?;
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(AttemptError::Transient(error.into())),
            }
        }
        to.flush().map_err(io)?;
        match size {
            Some(size) if offset < size => {
                Err(AttemptError::Transient(TransferError::Ended { at: offset, size }))
            }
            size => Ok(size),
        }
    }

    fn connection(&self, id: &HubId<'_>, error: ureq::Error) -> AttemptError {
        match error {
            ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => {
                AttemptError::Transient(error.into())
            }
            // A wrong address, an unknown host, a bad certificate: retrying would not help.
            _ => AttemptError::Permanent(self.unreachable(id.to_string(), error.into())),
        }
    }

    /// Retries `attempt` until it succeeds, or until `retries` attempts in a row made no progress.
    fn with_retries<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, AttemptError>,
        exhausted: impl Fn(TransferError, u32) -> HubError,
        progress: impl Fn() -> u64,
    ) -> Result<T, HubError> {
        let (mut stalled, mut attempts, mut best) = (0, 0, progress());
        loop {
            attempts += 1;
            match attempt() {
                Ok(value) => return Ok(value),
                Err(AttemptError::Permanent(error)) => return Err(error),
                Err(AttemptError::Transient(cause)) => {
                    stalled = if progress() > best { 1 } else { stalled + 1 };
                    best = best.max(progress());
                    if stalled > self.options.retries {
                        return Err(exhausted(cause, attempts));
                    }
                    std::thread::sleep(self.wait(stalled));
                }
            }
        }
    }

    fn wait(&self, retry: u32) -> Duration {
        self.options.retry_wait.saturating_mul(1 << (retry - 1).min(6))
    }
}

/// Checks size and checksum as listed by the hub; removes a damaged file.
fn check(id: &HubId<'_>, file: &ListedFile, part: &Path, size: Option<u64>) -> Result<(), HubError> {
    let io = |source| HubError::Io { path: part.to_owned(), source };
    let actual = len(part);
    let error = match size {
        Some(expected) if expected != actual => {
            HubError::Size { id: id.to_string(), file: file.name.clone(), expected, actual }
        }
        _ => {
            let Some(expected) = file.sha256() else { return Ok(()) };
            let actual = sha256(part).map_err(io)?;
            if actual.eq_ignore_ascii_case(expected) {
                return Ok(());
            }
            let expected = expected.to_owned();
            HubError::Checksum { id: id.to_string(), file: file.name.clone(), expected, actual }
        }
    };
    fs::remove_file(part).map_err(io)?;
    Err(error)
}

/// True for statuses of a server that is temporarily unavailable.
fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Returns N of `content-range: bytes N-…`.
fn range_start(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let mut text = String::new();
    for byte in hasher.finalize() {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
    }
    Ok(text)
}
