//! Downloads from a hub emulated on this machine, as the user sees them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Finished, Sandbox, is_ignored, snapshot};
use server::{Faults, Repo, Server};

#[path = "../../../hub/tests/hub/server.rs"]
#[expect(dead_code, reason = "the tests of the hub use the rest")]
mod server;

const RECIPE: &str = r#"
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 32
[tokenizer]
alphabet = "0123456789+= "
[data]
path = "hf:org/sums"
[reward]
components = [{ kind = "exact" }]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "grpo"
steps = 1
groups_per_batch = 2
[stage.algorithm]
group_size = 2
"#;

fn sums() -> Repo {
    let rows = b"{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": \"1+2=\", \"answer\": 3}\n";
    Repo::new(&[("README.md", b"# Sums"), ("train.jsonl", rows)])
}

/// A model that can be downloaded, but not opened.
fn model() -> Repo {
    Repo::new(&[("config.json", b"{}"), ("tokenizer.json", b"{ }"), ("model.safetensors", &vec![7; 100_000])])
}

/// The program with the hub at the server's address.
fn command(sandbox: &Sandbox, server: &Server, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(arguments);
    command.env("HF_ENDPOINT", &server.address).env_remove("HF_HUB_OFFLINE");
    command
}

fn run(sandbox: &Sandbox, server: &Server, arguments: &[&str]) -> Finished {
    sandbox.finished(&command(sandbox, server, arguments).output().unwrap())
}

/// The lines about downloads, without durations and rates.
fn downloads(stderr: &str) -> String {
    let lines = stderr.lines().filter(|line| line.contains("download"));
    lines.fold(String::new(), |mut text, line| {
        let _ = match line.split_once(" in ") {
            Some((line, _)) => writeln!(text, "{line} in TIME"),
            None => writeln!(text, "{line}"),
        };
        text
    })
}

#[test]
fn downloads_are_lines_without_a_terminal() {
    let server = Server::start(
        &[("datasets/org/sums", sums()), ("models/org/model", model())],
        Faults { drops: vec![50_000], ..Faults::default() },
    );
    let sandbox = Sandbox::new();
    sandbox.write("hub.toml", RECIPE);
    let mut shown = String::new();
    for arguments in [&["train", "hub.toml"][..], &["generate", "org/model", "1"]] {
        let first = run(&sandbox, &server, arguments);
        assert!(!first.stderr.contains('\x1b'), "{}", first.stderr);
        let _ = write!(shown, "$ rloom {}\n{}", arguments.join(" "), downloads(&first.stderr));
        let again = run(&sandbox, &server, arguments);
        assert_eq!(downloads(&again.stderr), "", "all files are in the cache");
        assert_eq!(again.code, first.code);
    }
    assert!(sandbox.path("runs/hub-2/report.html").is_file(), "{shown}");
    snapshot("downloads", &shown);

    let sandbox = Sandbox::new();
    sandbox.write("hub.toml", RECIPE);
    let quiet = run(&sandbox, &server, &["train", "hub.toml", "--quiet"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
}

/// A signal during a download ends the program at once; the next start continues the file.
#[test]
fn an_interrupted_download_continues_at_the_next_start() {
    let recipe = RECIPE.split_once("[data]").unwrap().1;
    let recipe = format!("[model]\npath = \"org/model\"\n[data]{recipe}");
    for arguments in [&["train", "model.toml"][..], &["generate", "org/model", "1"]] {
        // A process that was started in the background, with SIGINT ignored, keeps ignoring it; a run does not.
        if arguments[0] == "generate" && is_ignored(2) {
            continue;
        }
        let faults = Faults { stall: Some(50_000), ..Faults::default() };
        let server = Server::start(&[("models/org/model", model()), ("datasets/org/sums", sums())], faults);
        let sandbox = Sandbox::new();
        sandbox.write("model.toml", &recipe);
        let mut child = command(&sandbox, &server, arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("downloading model.safetensors") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the program ended");
        }
        let blobs = sandbox.path("cache/models--org--model/blobs");
        let sizes = || std::fs::read_dir(&blobs).unwrap().map(|blob| blob.unwrap().metadata().unwrap().len());
        while !sizes().any(|size| size == 50_000) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let rest: Vec<String> = stderr.lines().map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
        assert_eq!(
            rest,
            ["interrupted; what was downloaded is kept, and the next start continues from there"],
            "{arguments:?}"
        );
        assert!(!sandbox.path("runs").exists(), "a run without steps");
        let second = run(&sandbox, &server, arguments);
        assert!(
            second.stderr.contains(
                "downloading model.safetensors of org/model (98 KiB), continuing at 49 KiB\n\
                 downloaded model.safetensors (98 KiB) in "
            ),
            "{}",
            second.text()
        );
        assert_eq!(server.count("/model.safetensors HTTP/1.1 from 50000 "), 1);
    }
}
