//! Clients that people use, unmodified: run by `.ci/agents`, which installs them.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use rloom_serve::SessionStatus;
use serde_json::{Map, Value};

use crate::script::{Setup, TestServer};
use crate::sessions::{check_all, ended};

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
    let is_handover = |results: &str| results.contains("\"assistant\"");
    if let Some((_, results)) =
        last.split_once("<tool_response>").filter(|(_, results)| !is_handover(results))
    {
        let results = results.replace("<tool_response>", "").replace("</tool_response>", "");
        let results: Vec<&str> =
            results.split_whitespace().filter(|word| !word.contains("<|stop|>")).collect();
        return format!("The weather: {}.", results.join(" "));
    }
    // An agent that hands its task over.
    if prompt.contains("transfer_to_expert") && !prompt.contains("know the weather") {
        return call("transfer_to_expert", "{}");
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

/// Runs cases of a script, each in a session of its own. A case has the turns of the segments that it leaves: linear
/// conversations are one, and so are answers that were lost and requested again.
fn run_in_sessions(program: &Path, script: &Path, cases: &[(&str, &[usize])]) {
    let server = Setup::new(agent).start();
    let sessions: Vec<_> = cases.iter().map(|_| server.session()).collect();
    let urls: Map<String, Value> = cases
        .iter()
        .zip(&sessions)
        .map(|((name, _), session)| {
            ((*name).to_owned(), format!("http://{}{}", server.address, session.path()).into())
        })
        .collect();
    let urls = Value::Object(urls).to_string();
    let status = Command::new(program).arg(script).env("RLOOM_SESSIONS", urls).status().unwrap();
    assert!(status.success(), "the clients failed: {status}");
    server.idle();
    let mut all = Vec::new();
    for ((name, expected), mut session) in cases.iter().zip(sessions) {
        session.close(SessionStatus::Finished);
        let segments = ended(&mut session).segments;
        let turns: Vec<usize> = segments.iter().map(|segment| segment.policy_ranges().count()).collect();
        assert_eq!(turns, *expected, "{name}");
        all.push(segments);
    }
    // Nothing was sampled twice, nothing is trained twice.
    assert_eq!(server.engine.cancelled.load(Ordering::SeqCst), 0);
    check_all(&server, &all);
}

#[test]
#[ignore = "needs the packages of .ci/agents.txt: run by .ci/agents"]
fn agents_python_sessions() {
    let python = std::env::var("RLOOM_TEST_PYTHON").expect("RLOOM_TEST_PYTHON names an interpreter");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/sessions.py");
    let linear: &[usize] = &[2];
    let cases: &[(&str, &[usize])] = &[
        ("openai_plain", linear),
        ("openai_plain lost", linear),
        ("openai_tools", linear),
        ("openai_tools lost", linear),
        ("openai_stream", linear),
        ("openai_stream lost", linear),
        // The replies are equal: the first of them is continued.
        ("openai_choices", &[2, 1, 1]),
        ("openai_completions", linear),
        ("openai_completions lost", linear),
        ("openai_cancelled", &[1]),
        ("openai_responses", linear),
        ("openai_responses lost", linear),
        ("anthropic", linear),
        ("anthropic lost", linear),
        ("anthropic_cancelled", &[1]),
        ("openai_agents chat", &[2, 2]),
        ("openai_agents chat lost", &[2, 2]),
        ("openai_agents responses", &[2, 2]),
        ("openai_agents responses lost", &[2, 2]),
        // The expert has another system prompt and other tools.
        ("openai_handoff", &[1, 2]),
        ("langgraph", &[2, 2]),
        ("langgraph lost", &[2, 2]),
        ("pydantic_ai chat", &[4]),
        ("pydantic_ai chat lost", &[4]),
        ("pydantic_ai responses", &[4]),
        ("pydantic_ai anthropic", &[4]),
        ("pydantic_ai anthropic lost", &[4]),
        // The call that reflects on the result has no tools.
        ("autogen", &[1, 1]),
        ("autogen lost", &[1, 1]),
        ("litellm", linear),
        ("litellm lost", linear),
        // Calls and results are repeated as text.
        ("smolagents", &[1, 1]),
        ("smolagents lost", &[1, 1]),
    ];
    run_in_sessions(Path::new(&python), &script, cases);
}

#[test]
#[ignore = "needs the packages of .ci/agents-npm.txt: run by .ci/agents"]
fn agents_node_sessions() {
    let Ok(folder) = std::env::var("RLOOM_TEST_NODE") else { return };
    let script = Path::new(&folder).join("sessions.mjs");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/sessions.mjs");
    std::fs::copy(own, &script).unwrap();
    let linear: &[usize] = &[2];
    let cases: &[(&str, &[usize])] = &[
        ("openai", linear),
        ("openai lost", linear),
        ("responses", linear),
        ("responses lost", linear),
        ("cancelled", &[1]),
        ("anthropic", linear),
        ("anthropic lost", linear),
        ("anthropicCancelled", &[1]),
        ("ai", &[2, 2]),
        // It does not say that it repeats a request: the lost answers are branches.
        ("ai lost", &[1, 2, 1, 1, 2, 1]),
    ];
    run_in_sessions(Path::new("node"), &script, cases);
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
