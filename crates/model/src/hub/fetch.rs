//! Getting files over HTTP.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::http::Response;
use ureq::{Agent, Body};

use super::listing::{ListedFile, Listing};
use super::{HubError, HubId, HubOptions};

pub(super) struct Client<'a> {
    agent: Agent,
    endpoint: &'a str,
    options: &'a HubOptions,
}

/// Why one attempt to get a file ended.
enum Failed {
    /// Worth another attempt.
    Broken(String),
    /// Not worth one.
    Final(HubError),
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
            // For each read, not for the whole body: a large file may take long, a silent server may not.
            .timeout_per_read(wait)
            // Compressed bytes could not be resumed by their position.
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

    fn refuse(&self, id: String, status: u16) -> HubError {
        let endpoint = self.endpoint.to_owned();
        match status {
            404 => HubError::NotFound { id, endpoint },
            401 | 403 => HubError::Denied { id, endpoint, status, with_token: self.options.token.is_some() },
            _ => HubError::Status { id, endpoint, status },
        }
    }

    fn unreachable(&self, id: String, message: String) -> HubError {
        HubError::Unreachable { id, endpoint: self.endpoint.to_owned(), message, downloaded: None }
    }

    /// The commit and the files that a revision stands for.
    pub(super) fn listing(&self, id: &HubId<'_>) -> Result<Listing, HubError> {
        let revision = id.revision.replace('/', "%2F");
        let url = format!(
            "{}/api/models/{}/{}/revision/{revision}?blobs=true",
            self.endpoint, id.organisation, id.name
        );
        self.with_retries(
            || {
                let mut response = self.get(&url, 0).map_err(|error| self.connection(id, &error))?;
                let status = response.status().as_u16();
                if is_passing(status) {
                    return Err(Failed::Broken(format!("status {status}")));
                }
                if status != 200 {
                    return Err(Failed::Final(self.refuse(id.to_string(), status)));
                }
                let body = response.body_mut().read_to_vec();
                let body = body.map_err(|error| Failed::Broken(error.to_string()))?;
                let listing = serde_json::from_slice(&body).map_err(|error| error.to_string());
                let checked = listing.and_then(|listing: Listing| listing.check().map(|()| listing));
                checked.map_err(|message| {
                    let endpoint = self.endpoint.to_owned();
                    Failed::Final(HubError::Listing { id: id.to_string(), endpoint, message })
                })
            },
            |message, _| self.unreachable(id.to_string(), message),
            || 0,
        )
    }

    /// Puts a file into `folder`, unless it is there.
    pub(super) fn download(
        &self,
        id: &HubId<'_>,
        commit: &str,
        file: &ListedFile,
        folder: &Path,
    ) -> Result<(), HubError> {
        let whole = folder.join(&file.name);
        if whole.is_file() {
            return Ok(()); // renamed into place after its checks
        }
        let part = folder.join(format!("{}.part", file.name));
        let url = format!("{}/{}/{}/resolve/{commit}/{}", self.endpoint, id.organisation, id.name, file.name);
        let size = self.with_retries(
            || self.attempt(id, file, &url, &part),
            |message, attempts| HubError::Interrupted {
                id: id.to_string(),
                file: file.name.clone(),
                attempts,
                at: len(&part),
                message,
            },
            || len(&part),
        )?;
        check(id, file, &part, size)?;
        let io = |source| HubError::Io { path: part.clone(), source };
        File::open(&part).and_then(|file| file.sync_all()).map_err(io)?;
        fs::rename(&part, &whole).map_err(|source| HubError::Io { path: whole, source })
    }

    /// One request for what is missing of a file, appended to `part`. Gives the size that the file is to have, where
    /// hub or answer say it.
    fn attempt(
        &self,
        id: &HubId<'_>,
        file: &ListedFile,
        url: &str,
        part: &Path,
    ) -> Result<Option<u64>, Failed> {
        let mut have = len(part);
        if file.size().is_some_and(|size| have == size) && have > 0 {
            return Ok(file.size());
        }
        let mut response = self.get(url, have).map_err(|error| self.connection(id, &error))?;
        let status = response.status().as_u16();
        let resumed = status == 206 && range_start(&response) == Some(have);
        if status == 416 || (status == 206 && !resumed) {
            // What is there does not fit what the server has: begin again.
            let _ = fs::remove_file(part);
            return Err(Failed::Broken(format!("status {status} for the bytes from {have}")));
        }
        if is_passing(status) {
            return Err(Failed::Broken(format!("status {status}")));
        }
        if status != 200 && !resumed {
            return Err(Failed::Final(self.refuse(format!("{id}/{}", file.name), status)));
        }
        let io = |source| Failed::Final(HubError::Io { path: part.to_owned(), source });
        let mut to = OpenOptions::new()
            .create(true)
            .write(true)
            .append(resumed)
            .truncate(!resumed)
            .open(part)
            .map_err(io)?;
        if !resumed {
            have = 0;
        }
        let announced = response.body().content_length().map(|rest| have + rest);
        let size = file.size().or(announced);
        let mut body = response.body_mut().as_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    to.write_all(&buffer[..n]).map_err(io)?;
                    have += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failed::Broken(error.to_string())),
            }
        }
        to.flush().map_err(io)?;
        match size {
            Some(size) if have < size => {
                Err(Failed::Broken(format!("the connection ended at byte {have} of {size}")))
            }
            size => Ok(size),
        }
    }

    fn connection(&self, id: &HubId<'_>, error: &ureq::Error) -> Failed {
        match error {
            ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => {
                Failed::Broken(error.to_string())
            }
            // A wrong address, an unknown host, a bad certificate: the next attempt would see the same.
            _ => Failed::Final(self.unreachable(id.to_string(), error.to_string())),
        }
    }

    /// Attempts until one succeeds, or until `retries` in a row got nothing further (`progress`).
    fn with_retries<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Failed>,
        give_up: impl Fn(String, u32) -> HubError,
        progress: impl Fn() -> u64,
    ) -> Result<T, HubError> {
        let (mut idle, mut attempts, mut best) = (0, 0, progress());
        loop {
            attempts += 1;
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Failed::Final(error)) => return Err(error),
                Err(Failed::Broken(message)) => {
                    idle = if progress() > best { 1 } else { idle + 1 };
                    best = best.max(progress());
                    if idle > self.options.retries {
                        return Err(give_up(message, attempts));
                    }
                    std::thread::sleep(self.wait(idle));
                }
            }
        }
    }

    fn wait(&self, retry: u32) -> Duration {
        self.options.retry_wait.saturating_mul(1 << (retry - 1).min(6))
    }
}

/// Size and content as the hub lists them; a damaged file is removed.
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

/// Statuses of a server that is only busy at the moment.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// N of `content-range: bytes N-…`.
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
