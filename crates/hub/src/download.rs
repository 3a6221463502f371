//! Download of one file into the cache.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use ureq::Body;
use ureq::http::Response;

use crate::cache::at;
use crate::http::{AttemptError, header, is_transient};
use crate::hub::{Hub, HubEvent, Snapshot};
use crate::listing::ListedFile;
use crate::lock::FileLock;
use crate::url::escape_path;
use crate::{HubError, TransferError};

/// Interval between reports of a download's progress.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// Description of a file by the hub.
struct Remote {
    url: String,
    /// Name of its contents in the cache.
    etag: String,
    size: Option<u64>,
    sha256: Option<String>,
}

impl Hub {
    /// Downloads a file, unless it is in the cache. Returns its path in the snapshot.
    pub(crate) fn download(&self, snapshot: &Snapshot, file: &ListedFile) -> Result<PathBuf, HubError> {
        let (cache, commit) = (&snapshot.cache, snapshot.listing.commit.as_str());
        let target = cache.file(commit, &file.path);
        if target.is_file() {
            return Ok(target);
        }
        if self.options.offline {
            let id = format!("{}/{}", snapshot.id(), file.path);
            let kind = snapshot.repository.kind;
            return Err(HubError::Offline { kind, id, cache: self.options.cache.clone() });
        }
        let remote = self.describe(snapshot, file)?;
        cache.prepare()?;
        let blob = cache.blob(&remote.etag);
        let (repository, path) = (&snapshot.repository, file.path.as_str());
        let _lock = FileLock::acquire(
            &cache.lock(&remote.etag),
            self.options.timeout,
            || cache.bytes_of(&remote.etag),
            || self.report(&HubEvent::Waiting { repository, file: path }),
        )?;
        if !blob.is_file() {
            let part = cache.blob(&format!("{}.incomplete", remote.etag));
            self.fetch(snapshot, file, &remote, &part)?;
            fs::rename(&part, &blob).map_err(at(&blob))?;
            self.report(&HubEvent::Downloaded { repository, file: path, bytes: len(&blob) });
        }
        cache.link(commit, &file.path, &remote.etag)
    }

    /// Requests the name, size and checksum of a file's contents.
    fn describe(&self, snapshot: &Snapshot, file: &ListedFile) -> Result<Remote, HubError> {
        let commit = &snapshot.listing.commit;
        let id = format!("{}/{}", snapshot.id(), file.path);
        let endpoint = &self.client.endpoint;
        let repository = snapshot.repository.files_path();
        let url = format!("{endpoint}/{repository}/resolve/{commit}/{}", escape_path(&file.path));
        self.client.with_retries(
            || {
                let response = self.client.head(&url)?;
                let status = response.status();
                if is_transient(status.as_u16()) {
                    return Err(TransferError::Status { status: status.as_u16() }.into());
                }
                if status == 404 {
                    snapshot.cache.mark_missing(commit, &file.path)?;
                }
                if status != 200 && !status.is_redirection() {
                    return Err(self.client.refusal(&snapshot.repository, id.clone(), &response).into());
                }
                if let Some(actual) = header(&response, "x-repo-commit").filter(|actual| *actual != commit) {
                    let (endpoint, actual) = (endpoint.clone(), actual.to_owned());
                    return Err(HubError::Commit { id: id.clone(), endpoint, actual }.into());
                }
                let etag = etag(&response).or_else(|| file.sha256.clone()).or_else(|| file.blob_id.clone());
                let etag = etag.filter(|etag| is_file_name(etag));
                let etag =
                    etag.ok_or_else(|| HubError::NoEtag { id: id.clone(), endpoint: endpoint.clone() })?;
                let own_length = header(&response, "content-length").filter(|_| status == 200);
                let length = header(&response, "x-linked-size").or(own_length);
                let size = file.size.or_else(|| length?.parse().ok());
                // The name of a large file's contents is their SHA-256; that of others is git's identifier.
                let sha256 = file.sha256.clone().or_else(|| is_sha256(&etag).then(|| etag.clone()));
                Ok(Remote { url: url.clone(), etag, size, sha256 })
            },
            |source, _| self.client.unreachable(id.clone(), source),
            || 0,
        )
    }

    /// Downloads contents to `part`, resuming an earlier attempt, and verifies them.
    fn fetch(
        &self,
        snapshot: &Snapshot,
        file: &ListedFile,
        remote: &Remote,
        part: &Path,
    ) -> Result<(), HubError> {
        let size = self.client.with_retries(
            || self.attempt(snapshot, file, remote, part),
            |source, attempts| HubError::Interrupted {
                id: snapshot.id(),
                file: file.path.clone(),
                attempts,
                at: len(part),
                source,
            },
            || len(part),
        )?;
        check(&snapshot.id(), &file.path, part, size, remote.sha256.as_deref())?;
        File::open(part).and_then(|file| file.sync_all()).map_err(at(part))
    }

    /// Requests the missing bytes of a file once and appends them to `part`. Returns the expected file size if the hub
    /// or the response states it.
    fn attempt(
        &self,
        snapshot: &Snapshot,
        file: &ListedFile,
        remote: &Remote,
        part: &Path,
    ) -> Result<Option<u64>, AttemptError> {
        let mut offset = len(part);
        if remote.size.is_some_and(|size| offset == size) && offset > 0 {
            return Ok(remote.size);
        }
        let mut response = self.client.get(&remote.url, offset)?;
        let status = response.status().as_u16();
        let resumed = status == 206 && range_start(&response) == Some(offset);
        if status == 416 || (status == 206 && !resumed) {
            // The partial file does not match the server's: start over.
            let _ = fs::remove_file(part);
            return Err(TransferError::Range { status, offset }.into());
        }
        if is_transient(status) {
            return Err(TransferError::Status { status }.into());
        }
        if status != 200 && !resumed {
            let id = format!("{}/{}", snapshot.id(), file.path);
            return Err(self.client.refusal(&snapshot.repository, id, &response).into());
        }
        if !resumed {
            offset = 0;
        }
        let announced = response.body().content_length().map(|rest| offset + rest);
        let size = remote.size.or(announced);
        let mut to = open_part(part, resumed).map_err(at(part))?;
        let report = |bytes| {
            let repository = &snapshot.repository;
            self.report(&HubEvent::Download { repository, file: &file.path, bytes, size });
        };
        report(offset);
        let mut reported = Instant::now();
        let mut body = response.body_mut().as_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    to.write_all(&buffer[..n]).map_err(at(part))?;
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TransferError::Read(error).into()),
            }
            if reported.elapsed() >= REPORT_EVERY {
                report(offset);
                reported = Instant::now();
            }
        }
        to.flush().map_err(at(part))?;
        report(offset);
        match size {
            Some(size) if offset < size => Err(TransferError::Ended { at: offset, size }.into()),
            size => Ok(size),
        }
    }
}

fn open_part(part: &Path, resumed: bool) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).append(resumed).truncate(!resumed).open(part)
}

/// Checks size and checksum; removes a damaged file.
fn check(id: &str, file: &str, part: &Path, size: Option<u64>, sha256: Option<&str>) -> Result<(), HubError> {
    let actual = len(part);
    let (id, file) = (id.to_owned(), file.to_owned());
    let error = match size {
        Some(expected) if expected != actual => HubError::Size { id, file, expected, actual },
        _ => {
            let Some(expected) = sha256 else { return Ok(()) };
            let actual = hash(part).map_err(at(part))?;
            if actual.eq_ignore_ascii_case(expected) {
                return Ok(());
            }
            HubError::Checksum { id, file, expected: expected.to_owned(), actual }
        }
    };
    fs::remove_file(part).map_err(at(part))?;
    Err(error)
}

/// The etag of a file's contents, without quotes and the mark of a weak one.
fn etag(response: &Response<Body>) -> Option<String> {
    let etag = header(response, "x-linked-etag").or_else(|| header(response, "etag"))?;
    Some(etag.trim_start_matches("W/").trim_matches('"').to_owned())
}

fn is_file_name(etag: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !etag.is_empty() && !etag.starts_with('.') && etag.chars().all(fine)
}

fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit())
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Returns N of `content-range: bytes N-…`.
fn range_start(response: &Response<Body>) -> Option<u64> {
    header(response, "content-range")?.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

fn hash(path: &Path) -> io::Result<String> {
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
