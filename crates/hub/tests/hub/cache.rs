//! Layout of the cache, which Python's `huggingface_hub` shares.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rloom_hub::{DefaultSplit, Hub, HubOptions};

use crate::said;
use crate::server::{COMMIT, Faults, Repo, Server};

pub(crate) const CARD: &[u8] =
    b"---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: main/train-*}\n---\n";

/// A model and a data set.
pub(crate) fn repositories() -> [(&'static str, Repo); 2] {
    let model = Repo::new(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"model\": 1}"),
        ("README.md", b"# A model"),
        ("model.safetensors", b"weights"),
    ]);
    let data = Repo::new(&[
        ("README.md", CARD),
        ("main/train-00000-of-00002.parquet", b"first"),
        ("main/train-00001-of-00002.parquet", b"second"),
    ]);
    [("models/org/model", model), ("datasets/org/data", data)]
}

/// Files and links below a folder: `-> target` for a link, the contents of small files.
pub(crate) fn layout(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(current).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            if let Ok(target) = fs::read_link(&path) {
                found.insert(name, format!("-> {}", target.display()));
            } else if path.is_dir() {
                folders.push(path);
            } else {
                let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                found.insert(name, text);
            }
        }
    }
    found
}

/// What only one of the programs writes.
fn is_shared(path: &str) -> bool {
    !path.contains("/.rloom/")
        && !path.contains("/trees/")
        && !path.contains(".no_exist")
        && path != "CACHEDIR.TAG"
}

pub(crate) fn shared_layout(folder: &Path) -> BTreeMap<String, String> {
    layout(folder).into_iter().filter(|(path, _)| is_shared(path)).collect()
}

/// Downloads the files that `huggingface_hub_cache.py` downloads.
pub(crate) fn download(options: &HubOptions) {
    let hub = Hub::new(options.clone());
    hub.model("org/model").unwrap();
    let dataset = "hf:org/data".parse().unwrap();
    hub.dataset_files(&dataset, DefaultSplit::Train, &["parquet"]).unwrap();
}

/// The layout was written by `huggingface_hub`, which the test in `python.rs` confirms.
#[test]
fn the_layout_is_that_of_huggingface_hub() {
    let golden = include_str!("../golden/cache_layout.json");
    let golden: BTreeMap<String, String> = serde_json::from_str(golden).unwrap();
    let server = Server::start(&repositories(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    download(&server.options(cache.path()));
    assert_eq!(shared_layout(cache.path()), golden);
    let all = layout(cache.path());
    assert_eq!(all[&format!("models--org--model/.no_exist/{COMMIT}/chat_template.jinja")], "");
    assert!(all["CACHEDIR.TAG"].starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"));
}

/// A cache that `huggingface_hub` wrote is complete without a list of files and without network.
#[test]
fn a_cache_of_huggingface_hub_is_found() {
    let golden = include_str!("../golden/cache_layout.json");
    let golden: BTreeMap<String, String> = serde_json::from_str(golden).unwrap();
    let cache = tempfile::tempdir().unwrap();
    for (path, text) in &golden {
        let path = cache.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text.strip_prefix("-> ") {
            Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
            None => fs::write(path, text).unwrap(),
        }
    }
    let options = HubOptions { offline: true, ..HubOptions::new(cache.path().to_owned()) };
    download(&options);
    assert_eq!(layout(cache.path()), golden, "nothing is written");

    // Parts of it are not mistaken for the whole.
    let hub = Hub::new(options);
    let snapshot = |name: &str| cache.path().join(name).join("snapshots").join(COMMIT);
    fs::remove_file(snapshot("models--org--model").join("model.safetensors")).unwrap();
    let error = said(&hub.model("org/model").unwrap_err());
    assert!(error.contains("model.safetensors is missing"), "{error}");
    fs::remove_file(snapshot("datasets--org--data").join("main/train-00000-of-00002.parquet")).unwrap();
    let dataset = "hf:org/data".parse().unwrap();
    let error = said(&hub.dataset_files(&dataset, DefaultSplit::Train, &["parquet"]).unwrap_err());
    assert!(error.contains("main/train-00000-of-00002 is missing"), "{error}");
}
