//! Clients that people use, unmodified: run by `.ci/agents`, which installs them.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rloom_serve::{Exchange, SessionStatus};
use serde_json::{Map, Value};

use crate::script::{Setup, TestServer};
use crate::sessions::{check_all, ended};

/// A word of prompts whose completions are held until the test releases them.
const HELD: &str = "slow";

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
    if prompt.contains(HELD) {
        return "word ".repeat(100);
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

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// Copies a script into the folder with `node_modules`: modules are looked up from the script's own folder.
fn node_script(folder: &str, script: &str) -> PathBuf {
    let folder = Path::new(folder);
    for name in ["cancelling.mjs", script] {
        std::fs::copy(scripts().join(name), folder.join(name)).unwrap();
    }
    folder.join(script)
}

/// A server of the agent, and an address for `tests/clients/cancelling.*`: each connection gets the numbers of requests that
/// are computed and of clients that have disconnected.
fn start() -> (TestServer, SocketAddr) {
    let server = Setup { holds: Some(HELD), ..Setup::new(agent) }.start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (engine, exchanges) = (Arc::clone(&server.engine), Arc::clone(&server.exchanges));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let gone = gone(&exchanges.lock().unwrap());
            let live = engine.live.load(Ordering::SeqCst);
            write!(connection.unwrap(), "{live} {gone}").unwrap();
        }
    });
    (server, address)
}

/// Clients that have disconnected.
fn gone(exchanges: &[Exchange]) -> usize {
    exchanges.iter().filter(|exchange| exchange.outcome == "client disconnected").count()
}

fn run(program: &Path, script: &Path) {
    let (server, engine) = start();
    let url = format!("http://{}", server.address);
    let status = Command::new(program)
        .arg(script)
        .env("RLOOM_ENGINE", engine.to_string())
        .env("OPENAI_BASE_URL", format!("{url}/v1"))
        .env("ANTHROPIC_BASE_URL", &url)
        .env("OPENAI_API_KEY", "unused")
        .env("ANTHROPIC_API_KEY", "unused")
        .status()
        .unwrap();
    assert!(status.success(), "the clients failed: {status}");
    // Cancelled requests are cancelled in the engine, and nothing else is.
    server.idle();
    let exchanges = server.exchanges.lock().unwrap();
    let cancelled = server.engine.cancelled.load(Ordering::SeqCst);
    assert!(cancelled > 0);
    assert_eq!(cancelled, gone(&exchanges));
    assert!(exchanges.iter().all(|exchange| exchange.status < Some(500)), "{exchanges:#?}");
}

/// Runs cases of a script, each in a session of its own. A case has the turns of the segments that it leaves: linear
/// conversations are one, and so are answers that were lost and requested again. A cancelled answer leaves none if it had not
/// begun, and is computed to its end if it had: the program may have acted on it.
fn run_in_sessions(program: &Path, script: &Path, cases: &[(&str, &[usize])]) {
    let (server, engine) = start();
    let sessions: Vec<_> = cases.iter().map(|_| server.session()).collect();
    let urls: Map<String, Value> = cases
        .iter()
        .zip(&sessions)
        .map(|((name, _), session)| {
            ((*name).to_owned(), format!("http://{}{}", server.address, session.path()).into())
        })
        .collect();
    let urls = Value::Object(urls).to_string();
    let mut command = Command::new(program);
    command.arg(script).env("RLOOM_SESSIONS", urls).env("RLOOM_ENGINE", engine.to_string());
    let status = command.status().unwrap();
    assert!(status.success(), "the clients failed: {status}");
    server.engine.held.close();
    server.idle();
    let mut all = Vec::new();
    for ((name, expected), mut session) in cases.iter().zip(sessions) {
        // The engine is idle before the last answer is recorded.
        let completions = expected.iter().sum::<usize>() as u64;
        TestServer::until(name, || session.calls() >= completions);
        session.close(SessionStatus::Finished);
        let segments = ended(&mut session).segments;
        let turns: Vec<usize> = segments.iter().map(|segment| segment.policy_ranges().count()).collect();
        assert_eq!(turns, *expected, "{name}");
        all.push(segments);
    }
    // Nothing else was cancelled or sampled twice, nothing is trained twice.
    let cancelled = cases.iter().filter(|(_, turns)| turns.is_empty()).count();
    assert_eq!(server.engine.cancelled.load(Ordering::SeqCst), cancelled);
    check_all(&server, &all);
}

#[test]
#[ignore = "needs the packages of .ci/agents.txt: run by .ci/agents"]
fn agents_python_sessions() {
    let python = std::env::var("RLOOM_TEST_PYTHON").expect("RLOOM_TEST_PYTHON names an interpreter");
    let script = scripts().join("sessions.py");
    let (linear, cancelled, begun): (&[usize], &[usize], &[usize]) = (&[2], &[], &[1]);
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
        ("openai_responses", linear),
        ("openai_responses lost", linear),
        ("anthropic", linear),
        ("anthropic lost", linear),
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
        ("pydantic_ai responses lost", &[4]),
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
        ("cancelled openai chat", cancelled),
        ("cancelled openai completions", cancelled),
        ("cancelled openai responses", cancelled),
        ("cancelled anthropic", cancelled),
        ("cancelled openai_agents chat", cancelled),
        ("cancelled openai_agents responses", cancelled),
        ("cancelled langgraph", cancelled),
        ("cancelled pydantic_ai chat", cancelled),
        ("cancelled pydantic_ai responses", cancelled),
        ("cancelled pydantic_ai anthropic", cancelled),
        ("cancelled autogen", cancelled),
        ("cancelled litellm", cancelled),
        ("cancelled openai chat stream", begun),
        ("cancelled openai completions stream", begun),
        ("cancelled openai responses stream", begun),
        ("cancelled anthropic stream", begun),
        ("cancelled openai_agents chat stream", begun),
        ("cancelled openai_agents responses stream", begun),
        ("cancelled langgraph stream", begun),
        ("cancelled pydantic_ai chat stream", begun),
        ("cancelled pydantic_ai responses stream", begun),
        ("cancelled pydantic_ai anthropic stream", begun),
        ("cancelled litellm stream", begun),
        ("cancelled smolagents stream", begun),
    ];
    run_in_sessions(Path::new(&python), &script, cases);
}

#[test]
#[ignore = "needs the packages of .ci/agents-npm.txt: run by .ci/agents"]
fn agents_node_sessions() {
    let Ok(folder) = std::env::var("RLOOM_TEST_NODE") else { return };
    let script = node_script(&folder, "sessions.mjs");
    let (linear, cancelled, begun): (&[usize], &[usize], &[usize]) = (&[2], &[], &[1]);
    let cases: &[(&str, &[usize])] = &[
        ("openai", linear),
        ("openai lost", linear),
        ("responses", linear),
        ("responses lost", linear),
        ("anthropic", linear),
        ("anthropic lost", linear),
        ("ai", &[2, 2]),
        // It does not say that it repeats a request: the lost answers are branches.
        ("ai lost", &[1, 2, 1, 1, 2, 1]),
        ("cancelled openai chat", cancelled),
        ("cancelled openai responses", cancelled),
        ("cancelled anthropic", cancelled),
        ("cancelled ai", cancelled),
        ("cancelled openai chat stream", begun),
        ("cancelled openai responses stream", begun),
        ("cancelled anthropic stream", begun),
        ("cancelled ai stream", begun),
    ];
    run_in_sessions(Path::new("node"), &script, cases);
}

#[test]
#[ignore = "needs the packages of .ci/agents.txt: run by .ci/agents"]
fn agents_python() {
    let python = std::env::var("RLOOM_TEST_PYTHON").expect("RLOOM_TEST_PYTHON names an interpreter");
    run(Path::new(&python), &scripts().join("clients.py"));
}

#[test]
#[ignore = "needs the packages of .ci/agents-npm.txt: run by .ci/agents"]
fn agents_node() {
    let Ok(folder) = std::env::var("RLOOM_TEST_NODE") else { return };
    run(Path::new("node"), &node_script(&folder, "clients.mjs"));
}
