//! `rloom serve` with a model: same tokens as `rloom generate`, streams, signals, keys.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::stand_in::{Protocol, StandIn};
use crate::support::Sandbox;

const RECIPE: &str = r#"
[run]
seed = 1

[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 64

[tokenizer]
alphabet = "0123456789+= \n"
chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}="

[data]
path = "rows.jsonl"

[[stage]]
name = "warmup"
method = "sft"
steps = 1
groups_per_batch = 1
"#;

/// A server that is killed when it is dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a model in `runs/rows`.
fn trained() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("rows.toml", RECIPE);
    sandbox.write("rows.jsonl", "{\"prompt\": \"1+2=\", \"answer\": \"3\", \"demonstration\": \"3\"}\n");
    let result = sandbox.run(&["train", "rows.toml", "--quiet", "--run-name", "rows"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    sandbox
}

/// Starts a server; returns the line in which it says where it is.
fn serve(sandbox: &Sandbox, more: &[&str]) -> (Serving, Value) {
    let arguments = [&["serve", "runs/rows", "--port", "0", "--json", "--temperature", "1"], more].concat();
    let mut command = sandbox.command(&arguments);
    let child = command.env_remove("RLOOM_API_KEY").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Ok(line) = serde_json::from_str(&line) else {
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        panic!("{line}{errors}");
    };
    (Serving(child), line)
}

/// Status and body of the answer to a request.
fn post(server: &Value, path: &str, headers: &str, body: &Value) -> (String, String) {
    let address =
        server["url"].as_str().unwrap().strip_prefix("http://").unwrap().replace("0.0.0.0", "127.0.0.1");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    let body = body.to_string();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

#[test]
fn served_completions_are_those_of_generate() {
    let sandbox = trained();
    let (mut serving, server) = serve(&sandbox, &[]);
    for seed in ["5", "6"] {
        let generated = sandbox.run(&[
            "generate",
            "runs/rows",
            "1+2=",
            "--json",
            "--seed",
            seed,
            "--temperature",
            "1",
            "--max-new-tokens",
            "30",
        ]);
        let generated: Value = serde_json::from_str(&generated.stdout).unwrap();
        let seed: u64 = seed.parse().unwrap();
        let body = json!({"prompt": "1+2=", "max_tokens": 30, "seed": seed, "logprobs": 0});
        let (status, answer) = post(&server, "/v1/completions", "", &body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status.as_str(), &answer["choices"][0]["text"]), ("200", &generated["completion"]));
        assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], generated["logprobs"]);
        // The chat template makes the same prompt.
        let mut body = json!({
            "messages": [{"role": "user", "content": "1+2"}], "max_tokens": 30, "seed": seed, "stream": true,
        });
        let (_, stream) = post(&server, "/v1/chat/completions", "", &body);
        let events = stream
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let text: String = events
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(text, generated["completion"]);
        assert!(stream.contains("data: [DONE]"));
        body["messages"][0]["content"] = json!("letters");
        assert_eq!(post(&server, "/v1/chat/completions", "", &body).0, "400");
    }
    kill_process(Pid::from_child(&serving.0), Signal::TERM).unwrap();
    assert_eq!(serving.0.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    serving.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("POST /v1/completions 200"), "{log}");
    assert!(log.ends_with("stopped\n"), "{log}");
}

#[test]
fn other_machines_need_a_key() {
    let sandbox = trained();
    let (_serving, server) = serve(&sandbox, &["--host", "0.0.0.0"]);
    let key = server["api_key"].as_str().unwrap();
    let body = json!({"prompt": "1+2=", "max_tokens": 2});
    assert_eq!(post(&server, "/v1/completions", "", &body).0, "401");
    let header = format!("authorization: Bearer {key}\r\n");
    assert_eq!(post(&server, "/v1/completions", &header, &body).0, "200");
    let (_serving, server) = serve(&sandbox, &["--api-key", "own"]);
    assert_eq!(server.get("api_key"), None, "a given key is not shown");
    assert_eq!(post(&server, "/v1/completions", "", &body).0, "401");
    assert_eq!(post(&server, "/v1/completions", "x-api-key: own\r\n", &body).0, "200");
}

/// Servers that run already compute the completions; the rows' model has as many tokens as the stand-ins have.
#[test]
fn other_servers_compute_the_completions() {
    let sandbox = trained();
    for (protocol, engine) in [(Protocol::Vllm, "vllm"), (Protocol::Sglang, "sglang")] {
        let servers = [StandIn::at(0, protocol), StandIn::at(0, protocol)];
        let urls =
            ["--url", &servers[0].url, "--url", &servers[1].url, "--engine", engine, "--max-requests", "64"];
        let (mut serving, server) = serve(&sandbox, &urls);
        let body = json!({"prompt": "1+2=", "max_tokens": 12, "logprobs": 0, "n": 4});
        let (status, answer) = post(&server, "/v1/completions", "", &body);
        assert_eq!(status, "200", "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let texts: Vec<&Value> =
            answer["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
        assert!(texts.iter().any(|text| **text != *texts[0]), "{texts:?}");
        let (_, stream) = post(&server, "/v1/completions", "", &json!({"prompt": "1+2=", "stream": true}));
        assert!(stream.contains("data: [DONE]"), "{stream}");
        // Both have got the model from its folder.
        for server in &servers {
            assert!(server.world.lock().unwrap().admitted > 0);
        }
        kill_process(Pid::from_child(&serving.0), Signal::TERM).unwrap();
        assert_eq!(serving.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn the_training_api_is_served_as_well() {
    let sandbox = trained();
    let (_serving, server) = serve(&sandbox, &["--train", "trained", "--host", "0.0.0.0"]);
    let key = server["api_key"].as_str().unwrap();
    assert!(key.starts_with("tml-"), "the SDK sends no other keys: {key}");
    let header = format!("x-api-key: {key}\r\n");
    let call = |path: &str, body: Value| {
        let (status, answer) = post(&server, &format!("/api/v1/{path}"), &header, &body);
        assert_eq!(status, "200", "{answer}");
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    assert_eq!(post(&server, "/api/v1/create_session", "", &json!({"sdk_version": "0.38.0"})).0, "401");
    let session = call("create_session", json!({"sdk_version": "0.38.0"}))["session_id"].clone();
    let body = json!({"session_id": session, "model_seq_id": 0, "base_model": "rows"});
    let model = call("create_model", body)["model_id"].clone();
    let body = json!({"model_id": model, "seq_id": 1, "path": "first"});
    let saved = call("save_weights", body)["request_id"].clone();
    let result = call("retrieve_future", json!({"request_id": saved}));
    let path = result["path"].as_str().unwrap();
    // The checkpoint is a model of this program.
    let folder = format!("trained/{}", path.strip_prefix("tinker://").unwrap().replace(':', "-"));
    let generated = sandbox.run(&["generate", &folder, "1+2=", "--json", "--max-new-tokens", "4"]);
    assert_eq!(generated.code, Some(0), "{}", generated.text());
    let body = json!({"prompt": "1+2=", "max_tokens": 2});
    assert_eq!(post(&server, "/v1/completions", &header, &body).0, "200");
}

#[test]
fn wrong_arguments_are_errors_of_usage() {
    let sandbox = Sandbox::new();
    for (arguments, message) in [
        (&["serve", "nowhere", "--port", "0"][..], "nowhere"),
        (&["serve", "nowhere", "--api-key", "a b"], "the API key must consist of"),
        (&["serve", "nowhere", "--max-requests", "0"], "--max-requests must be at least 1"),
        (&["serve", "nowhere", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1 port 8000"),
        (&["serve", "nowhere", "--calls", "morse"], "the formats are hermes"),
        (&["serve", "nowhere", "--engine", "sglang"], "--url"),
        (&["serve", "nowhere", "--url", "http://127.0.0.1:1", "--threads", "2"], "no effect on the servers"),
        (&["serve", "nowhere", "--train", "x", "--api-key", "own"], "the API key must begin with `tml-`"),
        (&["serve", "nowhere", "--train", "x", "--train-models", "0"], "--train-models must be at least 1"),
        (&["serve", "nowhere", "--train-models", "2"], "--train <DIR>"),
    ] {
        let result = sandbox.run(arguments);
        assert_eq!(result.code, Some(2), "{}", result.text());
        assert!(result.stderr.contains(message), "{}", result.text());
    }
}
