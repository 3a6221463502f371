//! Python's `huggingface_hub` and this crate on the same cache and the same emulated hub.

use std::path::Path;
use std::process::Command;

use rloom_hub::HubOptions;
use serde_json::{Value, json};

use crate::cache::{download, repositories, shared_layout};
use crate::server::{COMMIT, Faults, Server};

fn python(task: &str, options: &HubOptions) -> Value {
    let python = std::env::var("RLOOM_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/huggingface_hub_cache.py");
    let output = Command::new(python)
        .arg(script)
        .arg(task)
        .env("HF_ENDPOINT", &options.endpoint)
        .env("HF_HOME", options.cache.with_file_name("home"))
        .env("HF_HUB_CACHE", &options.cache)
        .env("HF_HUB_OFFLINE", if options.offline { "1" } else { "0" })
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "needs Python with huggingface_hub; see tests/golden/huggingface_hub_cache.py"]
fn caches_are_shared_with_huggingface_hub() {
    let storage = Server::start(&repositories(), Faults::default());
    let faults = Faults { large_files_at: Some(storage.address.clone()), ..Faults::default() };
    let server = Server::start(&repositories(), faults);
    let folder = tempfile::tempdir().unwrap();
    let options = |name: &str| server.options(&folder.path().join(name));
    let offline =
        |options: HubOptions| HubOptions { offline: true, endpoint: "http://127.0.0.1:9".into(), ..options };

    // Written here, found there without network.
    download(&options("rust"));
    let found = python("find", &offline(options("rust")));
    println!("{found:#}");
    let snapshot = folder.path().join("rust/models--org--model/snapshots").join(COMMIT);
    assert_eq!(found["model"], json!(snapshot));
    assert_eq!(found["known_missing"], true);
    assert_eq!(found["warnings"], json!([]));
    assert_eq!(found["refs"], json!(["org/data main", "org/model main"]));

    // Written there, file by file, found here without network.
    println!("{:#}", python("download-files", &options("files")));
    download(&offline(options("files")));
    let written = shared_layout(&folder.path().join("files"));
    assert_eq!(written, shared_layout(&folder.path().join("rust")), "the same files and links");
    if let Ok(path) = std::env::var("RLOOM_WRITE_LAYOUT") {
        std::fs::write(path, serde_json::to_string_pretty(&written).unwrap() + "\n").unwrap();
    }

    // Written there as snapshots.
    println!("{:#}", python("download-snapshots", &options("snapshots")));
    download(&offline(options("snapshots")));

    // One program completes what the other downloaded in part.
    println!("{:#}", python("find", &options("files")));
    let downloads = server.downloads();
    download(&options("snapshots"));
    assert_eq!(server.downloads(), downloads, "nothing is missing");
}
