//! Each hint is followed, and the error is gone.

use std::fs;
use std::path::PathBuf;

use rloom_hub::{DefaultSplit, Hub, HubError, HubOptions};

use crate::models::nowhere;
use crate::said;
use crate::server::{COMMIT, Faults, Repo, Server};

fn repo() -> Repo {
    Repo::new(&[("config.json", b"{}"), ("tokenizer.json", b"{}"), ("model.safetensors", b"weights")])
}

fn serve(faults: Faults) -> Server {
    Server::start(&[("models/org/name", repo())], faults)
}

/// Checks the hint of a result.
fn refused<T>(result: Result<T, HubError>, hint: &str) {
    let text = said(&result.map(|_| ()).unwrap_err());
    assert!(text.contains(&format!("hint: {hint}")), "{text}");
}

/// `hf:` names of the files of a data set.
fn dataset(server: &Server, name: &str, formats: &[&str]) -> Result<Vec<PathBuf>, HubError> {
    let cache = tempfile::tempdir().unwrap();
    Hub::new(server.options(cache.path())).dataset_files(&name.parse().unwrap(), DefaultSplit::Train, formats)
}

#[test]
fn of_models() {
    let cache = tempfile::tempdir().unwrap();
    let (server, model) = (serve(Faults::default()), "org/name");
    let options = server.options(cache.path());
    let folder = cache.path().join("copy");
    // HubError::Offline
    refused(
        Hub::new(HubOptions { offline: true, ..options.clone() }).model(model),
        "unset HF_HUB_OFFLINE to download it",
    );
    let found = Hub::new(options.clone()).model(model).unwrap();
    // HubError::NotFound, for a wrong name and for a private repository
    refused(
        Hub::new(options.clone()).model("org/nmae"),
        "check the spelling; no local folder has this name either; for a private repository, set HF_TOKEN",
    );
    assert_eq!(Hub::new(options.clone()).model(model).unwrap(), found);
    // HubError::NotAFolder
    fs::create_dir(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(found.join(file), folder.join(file)).unwrap();
    }
    let (file, folder) = (folder.join("config.json"), folder.to_str().unwrap().to_owned());
    refused(
        Hub::new(options.clone()).model(file.to_str().unwrap()),
        "give the folder that contains config.json",
    );
    Hub::new(options.clone()).model(&folder).unwrap();
    // HubError::Unreachable
    let fresh = tempfile::tempdir().unwrap();
    let away = HubOptions { endpoint: nowhere(), retries: 0, ..server.options(fresh.path()) };
    refused(Hub::new(away.clone()).model(model), "check the network and HF_ENDPOINT, or give a local path");
    Hub::new(away.clone()).model(&folder).unwrap();
    Hub::new(HubOptions { endpoint: server.options(fresh.path()).endpoint, ..away }).model(model).unwrap();
    // HubError::NotAModel
    let partial =
        Server::start(&[("models/org/name", Repo::new(&[("config.json", b"{}")]))], Faults::default());
    let fresh = tempfile::tempdir().unwrap();
    refused(
        Hub::new(partial.options(fresh.path())).model(model),
        "only models with config.json and safetensors weights can be opened",
    );
    let fresh = tempfile::tempdir().unwrap();
    Hub::new(server.options(fresh.path())).model(model).unwrap();
}

/// The second attempt reaches a server without the fault.
#[test]
fn of_transfers() {
    let faults = [
        // HubError::Denied
        (
            Faults { status: Some((403, "GatedRepo")), ..Faults::default() },
            "check the spelling; for a private or gated repository, set HF_TOKEN",
        ),
        // HubError::Status
        (Faults { status: Some((418, "")), ..Faults::default() }, "try again later"),
        // HubError::Commit
        (
            Faults { wrong_commit: true, ..Faults::default() },
            "check that HF_ENDPOINT is the address of a hub",
        ),
        // HubError::Size
        (Faults { listed_size: Some(3), ..Faults::default() }, "the partial file was removed; run again"),
        // HubError::Checksum
        (
            Faults { listed_sha256: Some("00".repeat(32)), ..Faults::default() },
            "the damaged file was removed; run again",
        ),
        // HubError::Interrupted
        (Faults { drops: vec![3], ..Faults::default() }, "run again to resume it"),
    ];
    for (fault, hint) in faults {
        let cache = tempfile::tempdir().unwrap();
        let server = serve(fault);
        let options = HubOptions { retries: 0, ..server.options(cache.path()) };
        refused(Hub::new(options.clone()).model("org/name"), hint);
        let endpoint = serve(Faults::default()).options(cache.path()).endpoint;
        let token = Some("secret".into());
        Hub::new(HubOptions { endpoint, token, ..options })
            .model("org/name")
            .unwrap_or_else(|error| panic!("{hint}: {error}"));
    }
}

#[test]
fn of_data_sets() {
    let card = b"---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train.jsonl\n  - split: test\n    path: main/test.jsonl\n- config_name: other\n  data_files: other.jsonl\n---\n";
    let described = Repo::new(&[
        ("README.md", card),
        ("main/train.jsonl", b"{}"),
        ("main/test.jsonl", b"{}"),
        ("other.jsonl", b"{}"),
    ]);
    let formats: &[&str] = &["jsonl", "parquet"];
    let server = Server::start(&[("datasets/org/name", described)], Faults::default());
    // HubError::Subset
    refused(dataset(&server, "hf:org/name", formats), "write `hf:org/name/<subset>`");
    dataset(&server, "hf:org/name/main", formats).unwrap();
    // HubError::Split
    refused(dataset(&server, "hf:org/name/main:dev", formats), "write `hf:org/name/main:<split>`");
    dataset(&server, "hf:org/name/main:test", formats).unwrap();
    // HubError::Card
    let invalid = Repo::new(&[("README.md", b"---\nconfigs: {\n---\n"), ("train.jsonl", b"{}")]);
    let server = Server::start(&[("datasets/org/name", invalid)], Faults::default());
    refused(dataset(&server, "hf:org/name", formats), "download the files and give their path");
    // HubError::NoData
    let (original, converted) =
        (Repo::new(&[("train.csv", b"a,b")]), Repo::new(&[("default/train/0000.parquet", b"rows")]));
    let converted = converted.at("refs/convert/parquet", &COMMIT.replace('0', "f"));
    let repos = [("datasets/org/name", original), ("datasets/org/name", converted)];
    let server = Server::start(&repos, Faults::default());
    let hint = "Parquet and JSONL files can be read; without a revision, the hub's converted copy is used";
    refused(dataset(&server, &format!("hf:org/name@{COMMIT}"), formats), hint);
    dataset(&server, "hf:org/name", formats).unwrap();
}
