//! Clients that people use, unmodified: run by `.ci/agents`, which installs them.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use crate::script::{Setup, TestServer};

/// An agent with the tool `weather`, as far as the scripts of `tests/clients` need one.
fn agent(prompt: &str) -> String {
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let turns: Vec<&str> = prompt.split("<|im_start|>").collect();
    let last = turns.iter().rev().nth(1).copied().unwrap_or_default();
    let has = |name: &str| prompt.contains(&format!("\"name\": \"{name}\""));
    // smolagents repeats calls and results as text.
    if has("final_answer") && prompt.contains("Oslo:sun") {
        return call("final_answer", r#"{"answer": "The weather: Oslo:sun."}"#);
    }
    if let Some((_, results)) = last.split_once("<tool_response>") {
        let results = results.replace("<tool_response>", "").replace("</tool_response>", "");
        let results: Vec<&str> =
            results.split_whitespace().filter(|word| !word.contains("<|stop|>")).collect();
        return format!("The weather: {}.", results.join(" "));
    }
    if last.contains("slow") {
        return "word ".repeat(1000);
    }
    if has("weather") && last.contains("both") {
        let both = [r#"{"city": "Oslo"}"#, r#"{"city": "Rome"}"#].map(|city| call("weather", city));
        return format!("I look.\n{}", both.join("\n"));
    }
    if has("weather") {
        return call("weather", r#"{"city": "Oslo"}"#);
    }
    "Hello! Grüße 🙂.".to_owned()
}

fn run(program: &Path, script: &str, server: &TestServer) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let url = format!("http://{}", server.address);
    let status = Command::new(program)
        .arg(script)
        .env("OPENAI_BASE_URL", format!("{url}/v1"))
        .env("ANTHROPIC_BASE_URL", &url)
        .env("OPENAI_API_KEY", "unused")
        .env("ANTHROPIC_API_KEY", "unused")
        .status()
        .unwrap();
    assert!(status.success(), "the clients failed: {status}");
    // Cancelled requests are cancelled in the engine, and nothing else is.
    server.idle();
    assert!(server.engine.cancelled.load(Ordering::SeqCst) > 0);
    let exchanges = server.exchanges.lock().unwrap();
    assert!(exchanges.iter().all(|exchange| exchange.status < Some(500)), "{exchanges:#?}");
}

#[test]
#[ignore = "needs the packages of .ci/agents.txt: run by .ci/agents"]
fn agents_python() {
    let python = std::env::var("RLOOM_TEST_PYTHON").expect("RLOOM_TEST_PYTHON names an interpreter");
    run(Path::new(&python), "clients.py", &Setup::new(agent).start());
}

#[test]
#[ignore = "needs the packages of .ci/agents-npm.txt: run by .ci/agents"]
fn agents_node() {
    let Ok(folder) = std::env::var("RLOOM_TEST_NODE") else { return };
    // Modules are looked up from the script's folder.
    let server = Setup::new(agent).start();
    let script = Path::new(&folder).join("clients.mjs");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/clients.mjs"), &script).unwrap();
    run(Path::new("node"), script.to_str().unwrap(), &server);
}
