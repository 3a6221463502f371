//! A hub emulated on this machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_hub::HubOptions;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Longer than any timeout of a test.
const SILENCE: Duration = Duration::from_mins(10);

/// A repository at one commit. Files that end in `.safetensors` or `.parquet` are large files.
#[derive(Clone, Default)]
pub(crate) struct Repo {
    pub(crate) revisions: Vec<String>,
    pub(crate) commit: String,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Repo {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec()));
        Self { revisions: vec!["main".into()], commit: COMMIT.into(), files: files.collect() }
    }

    pub(crate) fn at(self, revision: &str, commit: &str) -> Self {
        Self { revisions: vec![revision.into()], commit: commit.into(), ..self }
    }
}

/// Faults and peculiarities of the server.
#[derive(Default, Clone)]
pub(crate) struct Faults {
    /// Bytes of a large file after which the connection is dropped, per attempt.
    pub(crate) drops: Vec<usize>,
    /// Bytes of a large file after which the first attempt gets no more, on an open connection.
    pub(crate) stall: Option<usize>,
    /// Status and error code of the listing.
    pub(crate) status: Option<(u16, &'static str)>,
    /// Listed size of large files.
    pub(crate) listed_size: Option<u64>,
    /// Listed hash of large files.
    pub(crate) listed_sha256: Option<String>,
    /// Answers range requests with the whole file.
    pub(crate) ignores_ranges: bool,
    /// Never answers requests for the contents of large files.
    pub(crate) silent: bool,
    /// Delay of each large file's contents.
    pub(crate) delay: Duration,
    /// Commit in the header of files, if not that of the repository.
    pub(crate) wrong_commit: bool,
    /// Address of the server to which requests for large files are redirected.
    pub(crate) large_files_at: Option<String>,
    /// Former names of repositories (`models/old/name`), with the present ones.
    pub(crate) renamed: Vec<(String, String)>,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: String,
    /// Request lines and the relevant headers.
    seen: Arc<Mutex<Vec<String>>>,
}

struct State {
    repos: Vec<(String, Repo)>,
    faults: Mutex<Faults>,
    seen: Arc<Mutex<Vec<String>>>,
}

struct Request {
    method: String,
    path: String,
    from: usize,
}

impl Server {
    /// Serves repositories by their kind and name (`models/org/name`).
    pub(crate) fn start(repos: &[(&str, Repo)], faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let repos = repos.iter().map(|(name, repo)| ((*name).to_owned(), repo.clone())).collect();
        let state = Arc::new(State { repos, faults: Mutex::new(faults), seen: Arc::clone(&seen) });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || {
                    let _ = state.answer(stream);
                });
            }
        });
        Self { address, seen }
    }

    pub(crate) fn options(&self, cache: &Path) -> HubOptions {
        HubOptions {
            endpoint: self.address.clone(),
            timeout: Duration::from_mins(2),
            retries: 2,
            retry_wait: Duration::from_millis(1),
            ..HubOptions::new(cache.to_owned())
        }
    }

    /// Number of requests that contain `part`.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }

    /// Number of downloads, complete or not.
    pub(crate) fn downloads(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|line| line.starts_with("GET") && !line.contains("/api/")).count()
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let line = lines.next().unwrap_or(Ok(String::new()))?;
        let (mut from, mut token) = (0, String::new());
        for line in lines {
            let line = line?.to_ascii_lowercase();
            if let Some(range) = line.strip_prefix("range: bytes=") {
                from = range.trim_end_matches('-').parse().unwrap();
            } else if let Some(value) = line.strip_prefix("authorization: ") {
                value.clone_into(&mut token);
            } else if line.is_empty() {
                break;
            }
        }
        self.seen.lock().unwrap().push(format!("{line} from {from} {token}"));
        let mut words = line.split(' ').map(str::to_owned);
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default();
        let request = Request { method, path: path.split('?').next().unwrap_or_default().to_owned(), from };
        let faults = self.faults.lock().unwrap().clone();
        for (old, new) in &faults.renamed {
            if request.path.contains(&url_name(old)) {
                let location = path.replace(&url_name(old), &url_name(new));
                return respond(&mut stream, &request, 307, &[("location", location)], b"");
            }
        }
        if request.path.starts_with("/api/") {
            self.describe(&mut stream, &request, &faults)
        } else {
            self.file(&mut stream, &request, &faults)
        }
    }

    fn describe(&self, stream: &mut TcpStream, request: &Request, faults: &Faults) -> std::io::Result<()> {
        if let Some((status, code)) = faults.status {
            return respond(stream, request, status, &[("x-error-code", code.into())], b"");
        }
        let rest = &request.path["/api/".len()..];
        let found = self.repos.iter().find_map(|(name, repo)| {
            let rest = rest.strip_prefix(name.as_str())?.strip_prefix('/')?;
            let (what, revision) = rest.split_once('/')?;
            let revision = revision.replace("%2F", "/");
            let known = revision == repo.commit || repo.revisions.contains(&revision);
            known.then(|| (what.to_owned(), name, repo))
        });
        let Some((what, name, repo)) = found else {
            return respond(stream, request, 404, &[("x-error-code", "RevisionNotFound".into())], b"");
        };
        let listed = repo.files.iter().map(|(path, bytes)| listed(path, bytes, &what, faults));
        let listed: Vec<Value> = listed.collect();
        let id = name.split_once('/').unwrap().1;
        let body = if what == "tree" {
            json!(listed)
        } else {
            json!({"id": id, "sha": repo.commit, "siblings": listed})
        };
        respond(
            stream,
            request,
            200,
            &[("content-type", "application/json".into())],
            body.to_string().as_bytes(),
        )
    }

    fn file(&self, stream: &mut TcpStream, request: &Request, faults: &Faults) -> std::io::Result<()> {
        let path = percent_decoded(request.path.trim_start_matches('/'));
        let found = self.repos.iter().find_map(|(name, repo)| {
            let rest = path.strip_prefix(&url_name(name)[1..])?.strip_prefix("/resolve/")?;
            let mut revisions = repo.revisions.iter().chain([&repo.commit]);
            let file = revisions.find_map(|r| rest.strip_prefix(r.as_str())?.strip_prefix('/'))?;
            Some((repo, file.to_owned()))
        });
        let Some((repo, name)) = found else { return respond(stream, request, 404, &[], b"") };
        let commit = if faults.wrong_commit { COMMIT.replace('0', "f") } else { repo.commit.clone() };
        let mut headers = vec![("x-repo-commit", commit)];
        let Some(bytes) = repo.files.get(&name) else {
            headers.push(("x-error-code", "EntryNotFound".into()));
            return respond(stream, request, 404, &headers, b"");
        };
        if !is_large(&name) {
            headers.push(("etag", format!("\"{}\"", blob_id(bytes))));
            return respond(stream, request, 200, &headers, bytes);
        }
        if let Some(other) = &faults.large_files_at {
            headers.push(("x-linked-etag", format!("\"{}\"", hex(&Sha256::digest(bytes)))));
            headers.push(("x-linked-size", bytes.len().to_string()));
            headers.push(("location", format!("{other}{}", request.path)));
            return respond(stream, request, 302, &headers, b"");
        }
        headers.push(("etag", format!("\"{}\"", hex(&Sha256::digest(bytes)))));
        if request.method == "HEAD" {
            return respond(stream, request, 200, &headers, bytes);
        }
        if faults.silent {
            std::thread::sleep(SILENCE);
            return Ok(());
        }
        std::thread::sleep(faults.delay);
        let from = if faults.ignores_ranges { 0 } else { request.from };
        let status = if from > 0 { 206 } else { 200 };
        if from > 0 {
            headers.push(("content-range", format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len())));
        }
        let drop_at = {
            let drops = &mut self.faults.lock().unwrap().drops;
            if drops.is_empty() { bytes.len() } else { from + drops.remove(0) }
        };
        write_head(stream, status, &headers, bytes.len() - from)?;
        let stall = self.faults.lock().unwrap().stall.take();
        if let Some(stall_at) = stall {
            stream.write_all(&bytes[from..from + stall_at])?;
            std::thread::sleep(SILENCE);
            return Ok(());
        }
        stream.write_all(&bytes[from..drop_at])
    }
}

fn respond(
    stream: &mut TcpStream,
    request: &Request,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<()> {
    write_head(stream, status, headers, body.len())?;
    if request.method == "HEAD" { Ok(()) } else { stream.write_all(body) }
}

fn write_head(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    length: usize,
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Status\r\nconnection: close\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())
}

fn listed(path: &str, bytes: &[u8], what: &str, faults: &Faults) -> Value {
    let size = faults.listed_size.filter(|_| is_large(path)).unwrap_or(bytes.len() as u64);
    let mut entry = if what == "tree" {
        json!({"type": "file", "path": path, "size": size, "oid": blob_id(bytes)})
    } else {
        json!({"rfilename": path, "size": size, "blobId": blob_id(bytes)})
    };
    if is_large(path) {
        let sha256 = faults.listed_sha256.clone().unwrap_or_else(|| hex(&Sha256::digest(bytes)));
        entry["lfs"] = json!({"sha256": sha256, "oid": sha256, "size": size, "pointerSize": 134});
    }
    entry
}

/// `/org/name` of a model, `/datasets/org/name` of a data set.
fn url_name(name: &str) -> String {
    format!("/{}", name.strip_prefix("models/").unwrap_or(name))
}

fn is_large(path: &str) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".parquet")
}

/// Identifier of a small file. The hub's is a SHA-1; only its length matters here.
pub(crate) fn blob_id(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))[..40].to_owned()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn percent_decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        if let (b'%', Some(code)) = (first, tail.get(..2)) {
            bytes.push(u8::from_str_radix(std::str::from_utf8(code).unwrap(), 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).unwrap()
}
