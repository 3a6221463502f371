//! Models: what is downloaded, faults of the network and the server, refusals.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_hub::{Hub, HubError, HubEvent, HubOptions};

use crate::said;
use crate::server::{COMMIT, Faults, Repo, Server};

const SIZE: usize = 94_904;

/// Weights of a model in one file.
fn weights() -> Vec<u8> {
    (0..SIZE).map(|i| (i * i / 7) as u8).collect()
}

fn single() -> Repo {
    let mut repo = Repo::new(&[
        ("config.json", b"{}"),
        ("generation_config.json", b"{ }"),
        ("tokenizer.json", b"{\"model\": 1}"),
        ("README.md", b"# A model"),
        (".gitattributes", b"*"),
        ("onnx/model.onnx", b"o"),
        ("consolidated.safetensors", b"c"),
        ("model.safetensors", &weights()),
    ]);
    repo.revisions.push("v1/x".into());
    repo
}

fn sharded() -> Repo {
    let index = br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    Repo::new(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("model-00001-of-00002.safetensors", b"first"),
        ("model-00002-of-00002.safetensors", b"second"),
        ("model-fp16.bin", b"other"),
    ])
}

fn serve(repo: Repo, faults: Faults) -> Server {
    Server::start(&[("models/org/name", repo)], faults)
}

fn model(options: &HubOptions) -> Result<std::path::PathBuf, HubError> {
    Hub::new(options.clone()).model("org/name")
}

fn downloaded_weights(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("model.safetensors")).unwrap()
}

#[test]
fn a_model_is_downloaded_once() {
    let server = serve(single(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions { token: Some("secret".into()), ..server.options(cache.path()) };
    let hub = Hub::new(options.clone());
    let folder = hub.model("org/name").unwrap();
    assert_eq!(downloaded_weights(&folder), weights());
    let files = server.downloads();
    assert_eq!(files, 4, "configuration, generation, tokenizer and weights");
    assert_eq!(
        server.count("bearer secret"),
        2 * files + 1,
        "a description and a download each, and the list"
    );
    assert_eq!(server.count("onnx") + server.count("consolidated") + server.count("README"), 0);

    assert_eq!(hub.model("org/name@v1/x").unwrap(), folder, "the same commit");
    assert_eq!(server.downloads(), files);
    let requests = server.count("");
    assert_eq!(hub.model(&format!("org/name@{COMMIT}")).unwrap(), folder);
    assert_eq!(server.count(""), requests, "a commit needs no network");
    let offline = Hub::new(HubOptions { offline: true, ..options });
    assert_eq!(offline.model("org/name").unwrap(), folder, "a branch that was looked up before");
    assert_eq!(server.count(""), requests);
    assert_eq!(offline.model(folder.to_str().unwrap()).unwrap(), folder, "a folder is itself");
}

#[test]
fn shards_are_downloaded() {
    let server = serve(sharded(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let folder = model(&server.options(cache.path())).unwrap();
    assert_eq!(server.downloads(), 4, "configuration, index and two shards");
    assert_eq!(fs::read(folder.join("model-00002-of-00002.safetensors")).unwrap(), b"second");
}

#[test]
fn a_model_is_pinned_to_its_commit() {
    let server = serve(single(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(server.options(cache.path()));
    let pinned = hub.pin_model("org/name@v1/x").unwrap();
    assert_eq!(pinned, format!("org/name@{COMMIT}"));
    assert_eq!(server.downloads(), 0, "nothing is downloaded");
    let requests = server.count("");
    assert_eq!(hub.pin_model(&pinned).unwrap(), pinned);
    assert_eq!(server.count(""), requests, "a pinned name needs no network");
    let folder = cache.path().to_str().unwrap();
    assert_eq!(hub.pin_model(folder).unwrap(), folder, "a local folder stays");
    assert!(hub.pin_model("nosuch").unwrap_err().is_wrong_name());
}

#[test]
fn an_interrupted_download_is_resumed() {
    let faults = Faults { drops: vec![50_000, 1_000, 0, 30_000], ..Faults::default() };
    let server = serve(single(), faults);
    let cache = tempfile::tempdir().unwrap();
    let folder = model(&server.options(cache.path())).unwrap();
    assert_eq!(downloaded_weights(&folder), weights());
    for from in ["from 0", "from 50000", "from 51000", "from 81000"] {
        let expected_requests = if from == "from 51000" { 2 } else { 1 };
        let gets = server.count(&format!("/model.safetensors HTTP/1.1 {from} "));
        let heads = usize::from(from == "from 0");
        assert_eq!(gets - heads, expected_requests, "{from}");
    }
}

/// A second run resumes the first one's download, even if the server does not support ranges.
#[test]
fn a_second_run_resumes_the_download() {
    for ignores_ranges in [false, true] {
        let faults = Faults { drops: vec![50_000, 0, 0, 0], ignores_ranges, ..Faults::default() };
        let server = serve(single(), faults);
        let cache = tempfile::tempdir().unwrap();
        let options = HubOptions { retries: u32::from(!ignores_ranges), ..server.options(cache.path()) };
        let error = model(&options).unwrap_err();
        assert!(matches!(&error, HubError::Interrupted { at: 50_000, .. }), "{error}");
        assert!(said(&error).contains("hint: run again"), "{error}");
        let options = HubOptions { retries: 3, ..options };
        assert_eq!(downloaded_weights(&model(&options).unwrap()), weights());
    }
}

#[test]
fn downloads_are_verified() {
    let cache = tempfile::tempdir().unwrap();
    let short = serve(single(), Faults { listed_size: Some(90_000), ..Faults::default() });
    let error = model(&short.options(cache.path())).unwrap_err();
    assert!(matches!(error, HubError::Size { expected: 90_000, actual: 94_904, .. }), "{error}");
    fs::remove_dir_all(cache.path().join("models--org--name/.rloom")).unwrap();
    let wrong = serve(single(), Faults { listed_sha256: Some("00".repeat(32)), ..Faults::default() });
    let error = model(&wrong.options(cache.path())).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    fs::remove_dir_all(cache.path().join("models--org--name/.rloom")).unwrap();
    let other = serve(single(), Faults { wrong_commit: true, ..Faults::default() });
    let error = model(&other.options(cache.path())).unwrap_err();
    assert!(matches!(error, HubError::Commit { .. }), "{error}");
    // Nothing damaged remains, and a correct server completes the download.
    let correct = serve(single(), Faults::default());
    assert_eq!(downloaded_weights(&model(&correct.options(cache.path())).unwrap()), weights());
}

/// The name of a large file's contents is their SHA-256, so they are verified without a list, too.
#[test]
fn a_damaged_large_file_is_found_by_its_etag() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve(single(), Faults { drops: vec![50_000], ..Faults::default() });
    let options = HubOptions { retries: 0, ..server.options(cache.path()) };
    model(&options).unwrap_err();
    let blobs = cache.path().join("models--org--name/blobs");
    let part = fs::read_dir(&blobs).unwrap().map(|entry| entry.unwrap().path());
    let part = part.into_iter().find(|path| path.extension().is_some_and(|e| e == "incomplete")).unwrap();
    fs::write(&part, vec![0; 50_000]).unwrap();
    let error = model(&options).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert!(!part.exists());
    assert_eq!(downloaded_weights(&model(&options).unwrap()), weights());
}

#[test]
fn refusals_have_hints() {
    let cache = tempfile::tempdir().unwrap();
    let error = |status: u16, code: &'static str, token: Option<&str>| {
        let server = serve(single(), Faults { status: Some((status, code)), ..Faults::default() });
        let options = HubOptions { token: token.map(Into::into), ..server.options(cache.path()) };
        model(&options).unwrap_err()
    };
    let missing = error(404, "", None);
    assert!(matches!(missing, HubError::NotFound { .. }), "{missing}");
    let missing = error(401, "RepoNotFound", None);
    assert!(matches!(missing, HubError::NotFound { .. }) && missing.is_wrong_name(), "{missing}");
    assert!(said(&missing).contains("for a private repository, set HF_TOKEN"), "{missing}");
    let anonymous = said(&error(401, "GatedRepo", None));
    assert!(anonymous.contains("org/name@main") && anonymous.contains("set HF_TOKEN"), "{anonymous}");
    let gated = said(&error(403, "GatedRepo", Some("secret")));
    assert!(gated.contains("terms are accepted") && !gated.contains("secret"), "{gated}");
    let busy = error(503, "", None);
    assert!(matches!(busy, HubError::Unreachable { .. }), "{busy}");
    let server = serve(single(), Faults::default());
    let error = Hub::new(server.options(cache.path())).model("org/name@nosuch").unwrap_err();
    assert!(matches!(error, HubError::NotFound { .. }), "{error}");
    let server = serve(Repo::new(&[("config.json", b"{}")]), Faults::default());
    let empty = tempfile::tempdir().unwrap();
    let error = model(&server.options(empty.path())).unwrap_err();
    assert!(matches!(error, HubError::NotAModel { missing: "model.safetensors", .. }), "{error}");
}

#[test]
fn every_wait_has_a_timeout() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve(single(), Faults { silent: true, ..Faults::default() });
    // The requests before the file are answered in this time, also on a busy machine.
    let options = HubOptions { timeout: Duration::from_secs(3), retries: 0, ..server.options(cache.path()) };
    let error = model(&options).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
    assert!(said(&error).contains("timeout"), "{error}");
}

/// An address without a listener.
pub(crate) fn nowhere() -> String {
    format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

#[test]
fn hints_without_a_reachable_hub() {
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions { offline: true, ..HubOptions::new(cache.path().to_owned()) };
    let error = said(&model(&options).unwrap_err());
    assert!(error.contains("unset HF_HUB_OFFLINE"), "{error}");
    let error = Hub::new(options.clone()).model("no-model").unwrap_err();
    assert!(error.is_wrong_name() && said(&error).contains("no-model: no such folder"), "{error}");
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Hub::new(options).model(file.to_str().unwrap()).unwrap_err();
    assert!(matches!(error, HubError::NotAFolder { .. }), "{error}");

    let server = serve(single(), Faults::default());
    let unreachable = HubOptions { endpoint: nowhere(), retries: 0, ..server.options(cache.path()) };
    let error = said(&model(&unreachable).unwrap_err());
    assert!(error.contains("cannot reach") && error.contains("give a local path"), "{error}");
}

#[test]
fn a_cached_model_is_used_if_the_hub_is_unreachable() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve(single(), Faults::default());
    let folder = model(&server.options(cache.path())).unwrap();
    let options = HubOptions { endpoint: nowhere(), retries: 0, ..server.options(cache.path()) };
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let hub = Hub::new(options).with_observer(move |event| {
        if let HubEvent::Cached { revision, commit, .. } = event {
            log.lock().unwrap().push(format!("{revision} {commit}"));
        }
    });
    assert_eq!(hub.model("org/name").unwrap(), folder);
    assert_eq!(*events.lock().unwrap(), [format!("main {COMMIT}")], "which is reported");
    let error = hub.model("org/name@v1/x").unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "a revision that was never looked up: {error}");
}

/// Large files come from another server by redirect; the token stays with the hub.
#[test]
fn a_token_does_not_follow_redirects_to_other_servers() {
    let storage = serve(single(), Faults { drops: vec![50_000], ..Faults::default() });
    let faults = Faults { large_files_at: Some(storage.address.clone()), ..Faults::default() };
    let hub = serve(single(), faults);
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions { token: Some("secret".into()), ..hub.options(cache.path()) };
    assert_eq!(downloaded_weights(&model(&options).unwrap()), weights());
    assert_eq!(storage.count("/model.safetensors HTTP/1.1 from 0 "), 1);
    assert_eq!(storage.count("/model.safetensors HTTP/1.1 from 50000 "), 1, "resumed there");
    assert_eq!(storage.count("HEAD"), 0, "the hub describes the file");
    assert_eq!(storage.count("secret"), 0);
    assert_eq!(hub.count("bearer secret"), hub.count(""), "with every request to the hub");
    let blobs = fs::read_dir(cache.path().join("models--org--name/blobs")).unwrap();
    assert_eq!(blobs.count(), 4, "named by the hub's etags");
}

/// A renamed repository: the hub redirects to its present name, with a relative address.
#[test]
fn relative_redirects_are_followed_with_the_token() {
    let faults =
        Faults { renamed: vec![("models/org/name".into(), "models/new/name".into())], ..Faults::default() };
    let server = Server::start(&[("models/new/name", single())], faults);
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions { token: Some("secret".into()), ..server.options(cache.path()) };
    let folder = model(&options).unwrap();
    assert_eq!(downloaded_weights(&folder), weights());
    assert!(
        folder.starts_with(cache.path().join("models--org--name")),
        "cached under the name that was given"
    );
    assert_eq!(server.count("bearer secret"), server.count(""));
    assert!(server.count("/new/name/") > 0);
}

#[test]
fn redirects_are_limited() {
    let renamed = ["org", "new"].map(|name| format!("models/{name}/name"));
    let [org, new] = renamed;
    let faults = Faults { renamed: vec![(org.clone(), new.clone()), (new, org)], ..Faults::default() };
    let server = serve(single(), faults);
    let cache = tempfile::tempdir().unwrap();
    let error = said(&model(&server.options(cache.path())).unwrap_err());
    assert!(error.contains("more than 10 redirects"), "{error}");
    assert_eq!(server.count(""), 11, "without retries");
}

/// Several processes that need the same model download it once.
#[test]
fn concurrent_downloads_share_their_work() {
    let server = serve(single(), Faults { delay: Duration::from_millis(200), ..Faults::default() });
    let cache = tempfile::tempdir().unwrap();
    let options = server.options(cache.path());
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| model(&options).unwrap())).collect();
        for one in all {
            assert_eq!(downloaded_weights(&one.join().unwrap()), weights());
        }
    });
    assert_eq!(server.downloads(), 4, "each file once");
}

#[test]
fn progress_is_reported() {
    let server = serve(single(), Faults { drops: vec![50_000], ..Faults::default() });
    let cache = tempfile::tempdir().unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let call_log = Arc::clone(&calls);
    let hub = Hub::new(server.options(cache.path())).with_observer(move |event| match event {
        HubEvent::Download { file: "model.safetensors", bytes, size, .. } => {
            log.lock().unwrap().push((*bytes, *size));
        }
        HubEvent::Started => call_log.lock().unwrap().push("started".to_owned()),
        HubEvent::Ended => call_log.lock().unwrap().push("ended".to_owned()),
        HubEvent::Downloaded { file, bytes, .. } => {
            call_log.lock().unwrap().push(format!("{file} {bytes}"));
        }
        _ => {}
    });
    hub.model("org/name").unwrap();
    let (first, all) = (50_000, SIZE as u64);
    let said = std::mem::take(&mut *calls.lock().unwrap());
    assert!(said.starts_with(&["started".into(), "config.json 2".into()]), "{said:?}");
    assert!(said.ends_with(&[format!("model.safetensors {all}"), "ended".into()]), "{said:?}");
    hub.model("org/name").unwrap();
    assert_eq!(*calls.lock().unwrap(), ["started", "ended"], "all files are in the cache");
    let bytes: Vec<u64> = events.lock().unwrap().iter().map(|(bytes, _)| *bytes).collect();
    assert!(bytes.starts_with(&[0]) && bytes.contains(&first) && bytes.ends_with(&[all]), "{bytes:?}");
    assert!(events.lock().unwrap().iter().all(|(_, size)| *size == Some(all)));
}
