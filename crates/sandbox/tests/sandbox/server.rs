//! Programs on a server with SandboxFusion's interface: a stand-in that runs them, and one that lies, hangs and fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rloom_sandbox::code::{CaseVerdict, CodeJudge, CodeVerdict, Language, cases};
use rloom_sandbox::{SandboxError, Server};
use serde_json::{Value, json};

use super::*;

/// What the stand-in does with a request, by its number.
type Answer = dyn Fn(usize, &Value) -> Reply + Send + Sync;

enum Reply {
    /// Status and body.
    Body(u16, String),
    /// A body that ends in the middle.
    Cut(String),
    /// Nothing, until the client gives up.
    Hang,
    /// The end of the connection.
    Close,
}

struct StandIn {
    url: String,
    requests: Arc<AtomicUsize>,
}

/// A server on a free port, which ends with the test.
fn stand_in(answer: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static) -> StandIn {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/run_code", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let (count, answer): (_, Arc<Answer>) = (Arc::clone(&requests), Arc::new(answer));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (count, answer) = (Arc::clone(&count), Arc::clone(&answer));
            std::thread::spawn(move || serve(stream.unwrap(), &count, &*answer));
        }
    });
    StandIn { url, requests }
}

fn serve(mut stream: TcpStream, count: &AtomicUsize, answer: &Answer) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read_request(&mut reader) {
        let (status, body, length) = match answer(count.fetch_add(1, Ordering::SeqCst), &request) {
            Reply::Body(status, body) => (status, body.clone(), body.len()),
            Reply::Cut(body) => (200, body.clone(), body.len() + 100),
            Reply::Hang => {
                let _ = reader.read(&mut [0]);
                return;
            }
            Reply::Close => return,
        };
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        if stream.write_all((head + &body).as_bytes()).is_err() || length != body.len() {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

/// Does what SandboxFusion does with Python: files, the code, the requested files.
fn run_code(request: &Value) -> Value {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in request["files"].as_object().unwrap() {
        std::fs::write(folder.path().join(name), STANDARD.decode(content.as_str().unwrap()).unwrap())
            .unwrap();
    }
    assert_eq!(request["language"], "python");
    std::fs::write(folder.path().join("code.py"), request["code"].as_str().unwrap()).unwrap();
    let output = Command::new(python().unwrap())
        .arg("code.py")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut files = serde_json::Map::new();
    for name in request["fetch_files"].as_array().unwrap() {
        let name = name.as_str().unwrap();
        if let Ok(content) = std::fs::read(folder.path().join(name)) {
            files.insert(name.to_owned(), json!(STANDARD.encode(content)));
        }
    }
    json!({
        "status": if output.status.success() { "Success" } else { "Failed" },
        "message": "",
        "compile_result": null,
        "run_result": {
            "status": "Finished",
            "execution_time": 0.1,
            "return_code": output.status.code(),
            "stdout": text(&output.stdout),
            "stderr": text(&output.stderr),
        },
        "files": files,
    })
}

fn body(value: &Value) -> Reply {
    Reply::Body(200, value.to_string())
}

fn judge(url: &str, workers: usize) -> CodeJudge {
    let limits = Limits { cpu: Duration::from_secs(30), wall: Duration::from_mins(1), ..Limits::default() };
    CodeJudge::new(Server::new(url), workers, limits, Vec::new())
}

fn verdict(url: &str, language: Language, source: &str, tests: &Value) -> Result<CodeVerdict, SandboxError> {
    let deadline = Instant::now() + Duration::from_mins(5);
    judge(url, 2).judge(language, source, &cases(tests).unwrap(), false, deadline)
}

#[test]
fn verdicts_are_those_of_the_sandbox() {
    if python().is_none() {
        return;
    }
    let server = stand_in(|_, request| body(&run_code(request)));
    Server::new(&server.url).check(Instant::now() + Duration::from_mins(1)).unwrap();
    let tests = json!([
        {"assertion": "assert f(2) == 4"},
        {"call": "f", "arguments": [3], "expected": 9},
        {"pytest": "from solution import f\ndef test():\n  assert f(2) == 4"},
        {"stdin": "2", "stdout": "4"},
        {"assertion": "assert f(2) == 5"},
    ]);
    let found = verdict(&server.url, Language::Python, "def f(x): return x * x\nprint(4)", &tests).unwrap();
    assert_eq!(found.cases, [[CaseVerdict::Passed; 4].as_slice(), &[CaseVerdict::Failed]].concat());
    for forgery in
        ["import os\nos._exit(0)", "raise SystemExit(0)", "print('{\"nonce\": \"\", \"ended\": {}}')"]
    {
        let found = verdict(&server.url, Language::Python, forgery, &tests).unwrap();
        assert_eq!((found.passed(), found.cases.len()), (0, 5), "{forgery}");
    }
    if std::path::Path::new("/usr/bin/gcc").exists() {
        let source =
            "#include <stdio.h>\nint main(void) { int n; scanf(\"%d\", &n); printf(\"%d\\n\", n * 2); }";
        let tests = json!([{"stdin": "4", "stdout": "8"}]);
        assert!(verdict(&server.url, Language::C, source, &tests).unwrap().is_solved());
        let found = verdict(&server.url, Language::C, "int main( {", &tests).unwrap();
        assert_eq!(found.cases, [CaseVerdict::NotCompiled]);
    }
}

/// A failure of a server is an error, repeated where it may pass, and never the verdict of a program.
#[test]
fn failures_of_the_server_are_no_verdicts() {
    let tests = json!([{"stdout": ""}]);
    let success = json!({"status": "Success", "message": "", "run_result": {"status": "Finished", "return_code": 0, "stdout": "", "stderr": ""}});
    let with_files = |content: String| {
        move |_: usize, request: &Value| {
            let name = request["fetch_files"][0].as_str().unwrap().to_owned();
            body(&json!({"status": "Success", "files": { name: STANDARD.encode(&content) }}))
        }
    };
    let cases: Vec<(&str, Box<Answer>, bool)> = vec![
        ("a success without a report", Box::new(move |_, _| body(&success)), true),
        ("a failed run", Box::new(|_, _| body(&json!({"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "stderr": null, "return_code": null}}))), true),
        ("an error of the sandbox", Box::new(|_, _| body(&json!({"status": "SandboxError", "message": "no space"}))), true),
        ("the report of another request", Box::new(with_files(json!({"nonce": "x", "ended": {"ending": {"exited": 0}, "stdout": "", "stderr": "", "report": ""}}).to_string())), true),
        ("a report of unknown form", Box::new(with_files("[]".to_owned())), true),
        ("no JSON", Box::new(|_, _| Reply::Body(200, "<html>".to_owned())), true),
        ("an empty body", Box::new(|_, _| Reply::Body(200, String::new())), true),
        ("a body that ends early", Box::new(|_, _| Reply::Cut("{\"status\": \"Succ".to_owned())), true),
        ("a closed connection", Box::new(|_, _| Reply::Close), true),
        ("status 429", Box::new(|_, _| Reply::Body(429, "later".to_owned())), true),
        ("status 500", Box::new(|_, _| Reply::Body(500, String::new())), true),
        ("status 504", Box::new(|_, _| Reply::Body(504, String::new())), true),
        ("status 404", Box::new(|_, _| Reply::Body(404, "not here".to_owned())), false),
    ];
    for (name, answer, may_pass) in cases {
        let server = stand_in(move |number, request| answer(number, request));
        let error = verdict(&server.url, Language::Python, "", &tests).unwrap_err();
        assert!(matches!(error, SandboxError::Server { .. }), "{name}: {error:?}");
        assert!(error.to_string().contains(&server.url), "{name}: {error}");
        assert_eq!(server.requests.load(Ordering::SeqCst), 1, "{name}");
        assert_eq!(error.is_retryable(), may_pass, "{name}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = verdict(&format!("http://{closed}/run_code"), Language::Python, "", &tests).unwrap_err();
    assert!(matches!(error, SandboxError::Server { may_pass: true, .. }), "{error:?}");
}

#[test]
fn a_server_that_recovers_loses_no_case() {
    if python().is_none() {
        return;
    }
    let server = stand_in(|number, request| match number {
        0 => Reply::Body(503, String::new()),
        1 => Reply::Cut("{".to_owned()),
        _ => body(&run_code(request)),
    });
    let tests = json!([{"stdout": "1"}, {"stdout": "2"}, {"stdout": "1"}]);
    for _ in 0..2 {
        let error = verdict(&server.url, Language::Python, "print(1)", &tests).unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
    let found = verdict(&server.url, Language::Python, "print(1)", &tests).unwrap();
    assert_eq!((found.passed(), found.total, found.cases.len()), (2, 3, 3));
    assert_eq!(server.requests.load(Ordering::SeqCst), 5);
}

#[test]
fn a_server_that_hangs_is_given_up_at_the_deadline() {
    let server = stand_in(|_, _| Reply::Hang);
    let deadline = Instant::now() + Duration::from_millis(500);
    let list = cases(&json!([{"stdout": ""}])).unwrap();
    let error = judge(&server.url, 2).judge(Language::Python, "", &list, false, deadline).unwrap_err();
    assert!(matches!(error, SandboxError::TimedOut { .. }), "{error:?}");
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
}

/// Also with a sandbox of the machine: the same places are taken.
#[test]
fn no_more_programs_run_at_a_time_than_workers() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let server = stand_in(move |_, _| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        now.fetch_sub(1, Ordering::SeqCst);
        Reply::Body(404, String::new())
    });
    let judge = judge(&server.url, 2);
    let list = cases(&json!([{"stdout": ""}])).unwrap();
    std::thread::scope(|scope| {
        for number in 0..12 {
            let (judge, list) = (&judge, &list);
            scope.spawn(move || {
                let deadline = Instant::now() + Duration::from_mins(5);
                judge.judge(Language::Python, &format!("#{number}"), list, false, deadline).unwrap_err()
            });
        }
    });
    assert_eq!((most.load(Ordering::SeqCst), server.requests.load(Ordering::SeqCst)), (2, 12));
}
