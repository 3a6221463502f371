//! Downloads from a hub emulated on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_model::Model;
use rloom_model::hub::{HubError, HubOptions, resolve};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::reference::fixture;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Faults of the server.
#[derive(Default, Clone)]
struct Faults {
    /// Bytes of the weights after which the connection is dropped, per attempt.
    drops: Vec<usize>,
    /// Status of the listing.
    status: Option<u16>,
    /// Listed size of the weights.
    listed_size: Option<u64>,
    /// Listed hash of the weights.
    listed_sha256: Option<String>,
    /// Answers range requests with the whole file.
    ignores_ranges: bool,
    /// Never answers requests for the weights.
    silent: bool,
}

struct Server {
    address: String,
    /// Request lines and the relevant headers.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(name: &str, faults: Faults) -> Self {
        let files: BTreeMap<String, Vec<u8>> = fs::read_dir(fixture(name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, faults) = (Arc::clone(&seen), Arc::new(Mutex::new(faults)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &files, &faults, &log);
            }
        });
        Self { address, seen }
    }

    fn options(&self, cache: &TempDir) -> HubOptions {
        HubOptions {
            endpoint: Some(self.address.clone()),
            timeout: Duration::from_millis(500),
            retries: 2,
            retry_wait: Duration::from_millis(1),
            ..HubOptions::new(cache.path().to_owned())
        }
    }

    fn count(&self, part: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }
}

fn answer(
    mut stream: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    faults: &Mutex<Faults>,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
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
    log.lock().unwrap().push(format!("{request} from {from} {token}"));
    let path = request.split(' ').nth(1).unwrap_or_default();
    let mut faults = faults.lock().unwrap();
    let refuse = |stream: &mut TcpStream, status: u16| {
        write!(stream, "HTTP/1.1 {status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    };
    if let Some(rest) = path.strip_prefix("/api/models/org/name/revision/") {
        if let Some(status) = faults.status {
            return refuse(&mut stream, status);
        }
        if !rest.starts_with("main?") && !rest.starts_with("v1%2Fx?") {
            return refuse(&mut stream, 404);
        }
        let listed = |(name, bytes): (&String, &Vec<u8>)| -> Value {
            if !name.ends_with(".safetensors") {
                return json!({"rfilename": name, "size": bytes.len()});
            }
            let digest = hex(&Sha256::digest(bytes));
            let size = faults.listed_size.unwrap_or(bytes.len() as u64);
            let sha256 = faults.listed_sha256.clone().unwrap_or(digest);
            json!({"rfilename": name, "size": size, "lfs": {"sha256": sha256, "size": size}})
        };
        let mut siblings: Vec<Value> = files.iter().map(listed).collect();
        siblings.push(json!({"rfilename": "onnx/model.onnx", "size": 1}));
        siblings.push(json!({"rfilename": "consolidated.safetensors", "size": 1}));
        let body = json!({"sha": COMMIT, "siblings": siblings}).to_string();
        return write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
    }
    let file = path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/"));
    let Some((name, bytes)) = file.and_then(|file| files.get_key_value(file)) else {
        return refuse(&mut stream, 404);
    };
    let weights = name.ends_with(".safetensors");
    if weights && faults.silent {
        drop(faults);
        std::thread::sleep(Duration::from_secs(3));
        return Ok(());
    }
    if weights && faults.ignores_ranges {
        from = 0;
    }
    let head = if from > 0 {
        format!("HTTP/1.1 206 Partial\r\ncontent-range: bytes {from}-{}/{}", bytes.len() - 1, bytes.len())
    } else {
        "HTTP/1.1 200 OK".to_owned()
    };
    let rest = &bytes[from..];
    write!(stream, "{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", rest.len())?;
    let drop_at = if weights && !faults.drops.is_empty() { faults.drops.remove(0) } else { rest.len() };
    stream.write_all(&rest[..drop_at])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn weights(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("model.safetensors")).unwrap()
}

#[test]
fn a_model_is_downloaded_once() {
    let server = Server::start("tiny-qwen3", Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions { token: Some("secret".into()), ..server.options(&cache) };
    let folder = resolve("org/name", &options).unwrap();
    Model::load(&folder).unwrap();
    let files = server.count("/resolve/");
    assert_eq!(files, 5, "configuration, generation, index and two shards");
    assert_eq!(server.count("bearer secret"), files + 1);
    assert_eq!(server.count("onnx") + server.count("consolidated"), 0);

    assert_eq!(resolve("org/name@v1/x", &options).unwrap(), folder, "the same commit");
    assert_eq!(server.count("/resolve/"), files);
    let offline = HubOptions::new(cache.path().to_owned());
    assert_eq!(resolve(&format!("org/name@{COMMIT}"), &offline).unwrap(), folder, "no network needed");
    assert_eq!(resolve(folder.to_str().unwrap(), &offline).unwrap(), folder, "a folder is itself");
}

#[test]
fn an_interrupted_download_is_resumed() {
    let faults = Faults { drops: vec![50_000, 1_000, 0, 30_000], ..Faults::default() };
    let server = Server::start("tiny-llama", faults);
    let cache = tempfile::tempdir().unwrap();
    let folder = resolve("org/name", &server.options(&cache)).unwrap();
    assert_eq!(weights(&folder), weights(&fixture("tiny-llama")));
    for from in ["from 0", "from 50000", "from 51000", "from 81000"] {
        let expected_requests = if from == "from 51000" { 2 } else { 1 };
        assert_eq!(server.count(&format!("model.safetensors HTTP/1.1 {from} ")), expected_requests, "{from}");
    }
}

/// A second run resumes the first one's download, even if the server does not support ranges.
#[test]
fn a_second_run_resumes_the_download() {
    for ignores_ranges in [false, true] {
        let faults = Faults { drops: vec![50_000, 0, 0, 0], ignores_ranges, ..Faults::default() };
        let server = Server::start("tiny-llama", faults);
        let cache = tempfile::tempdir().unwrap();
        let options = HubOptions { retries: u32::from(!ignores_ranges), ..server.options(&cache) };
        let error = resolve("org/name", &options).unwrap_err();
        assert!(matches!(&error, HubError::Interrupted { at: 50_000, .. }), "{error}");
        assert!(error.to_string().contains("hint: run again"), "{error}");
        let options = HubOptions { retries: 3, ..options };
        let folder = resolve("org/name", &options).unwrap();
        assert_eq!(weights(&folder), weights(&fixture("tiny-llama")));
    }
}

#[test]
fn downloads_are_verified() {
    let cache = tempfile::tempdir().unwrap();
    let short = Server::start("tiny-llama", Faults { listed_size: Some(90_000), ..Faults::default() });
    let error = resolve("org/name", &short.options(&cache)).unwrap_err();
    assert!(matches!(error, HubError::Size { expected: 90_000, actual: 94_904, .. }), "{error}");
    let wrong =
        Server::start("tiny-llama", Faults { listed_sha256: Some("00".repeat(32)), ..Faults::default() });
    let error = resolve("org/name", &wrong.options(&cache)).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    // Nothing damaged remains, and a correct server completes the download.
    let correct = Server::start("tiny-llama", Faults::default());
    let folder = resolve("org/name", &correct.options(&cache)).unwrap();
    assert_eq!(weights(&folder), weights(&fixture("tiny-llama")));
}

#[test]
fn refusals_have_hints() {
    let cache = tempfile::tempdir().unwrap();
    let error = |status: u16, token: Option<&str>| {
        let server = Server::start("tiny-llama", Faults { status: Some(status), ..Faults::default() });
        let options = HubOptions { token: token.map(Into::into), ..server.options(&cache) };
        resolve("org/name", &options).unwrap_err()
    };
    let missing = error(404, None);
    assert!(matches!(missing, HubError::NotFound { .. }), "{missing}");
    let anonymous = error(401, None).to_string();
    assert!(anonymous.contains("org/name@main") && anonymous.contains("set HF_TOKEN"), "{anonymous}");
    let gated = error(403, Some("secret")).to_string();
    assert!(gated.contains("terms are accepted") && !gated.contains("secret"), "{gated}");
    let busy = error(503, None);
    assert!(matches!(busy, HubError::Unreachable { .. }), "{busy}");
    let server = Server::start("tiny-llama", Faults::default());
    let error = resolve("org/name@nosuch", &server.options(&cache)).unwrap_err();
    assert!(matches!(error, HubError::NotFound { .. }), "{error}");
}

#[test]
fn every_wait_has_a_timeout() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start("tiny-llama", Faults { silent: true, ..Faults::default() });
    let options = HubOptions { timeout: Duration::from_millis(100), retries: 0, ..server.options(&cache) };
    let error = resolve("org/name", &options).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
    assert!(error.to_string().contains("timeout"), "{error}");
}

#[test]
fn hints_without_a_reachable_hub() {
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions::new(cache.path().to_owned());
    let error = resolve("org/name", &options).unwrap_err().to_string();
    assert!(error.contains("set HF_ENDPOINT"), "{error}");
    let error = resolve("no-model", &options).unwrap_err();
    assert!(error.is_wrong_name() && error.to_string().contains("no-model: no such folder"), "{error}");
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(resolve(file.to_str().unwrap(), &options), Err(HubError::NotAFolder { .. })));

    // A port without a listener.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = Some(format!("http://{closed}"));
    let options = HubOptions { endpoint, retries: 0, ..options };
    let error = resolve("org/name", &options).unwrap_err().to_string();
    assert!(error.contains("cannot reach") && error.contains("give a local folder"), "{error}");
    let server = Server::start("tiny-llama", Faults::default());
    let folder = resolve("org/name", &server.options(&cache)).unwrap();
    let error = resolve("org/name", &options).unwrap_err().to_string();
    assert!(error.contains(&format!("an earlier download is {}", folder.display())), "{error}");
}
