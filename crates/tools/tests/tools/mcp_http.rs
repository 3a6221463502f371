//! MCP servers over HTTP that behave, hang, fail and lie.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_tools::{Output, Toolbox};
use serde_json::{Value, json};

use crate::support::{LONG, SHORT, call, toolbox};

const TOOLS: [&str; 10] = [
    "who",
    "asks",
    "fails",
    "moves",
    "ends",
    "mumbles",
    "lies",
    "hangs",
    "hangs_in_its_answer",
    "hangs_in_its_events",
];

/// Marks an answer that has no length and stays open.
const OPEN: &str = "x-open: 1\r\n";

/// A request: its first line, its session and its message.
struct Request {
    first: String,
    session: String,
    message: Value,
}

impl Request {
    fn read(stream: &TcpStream) -> Self {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut length, mut session, mut line) = (0, String::new(), String::new());
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        while reader.read_line(&mut line).unwrap() > 2 {
            let (name, value) = line.trim().split_once(':').unwrap();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "mcp-session-id" => value.trim().clone_into(&mut session),
                _ => {}
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        Self { first, session, message: serde_json::from_slice(&body).unwrap_or_default() }
    }

    fn answer_to(id: &Value, result: &Value) -> String {
        json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
    }

    /// Status, type, further headers and body of the answer. A body that is longer than it is said to be never ends.
    fn answer(&self) -> (&'static str, &'static str, &'static str, String) {
        let (ok, json, events) = ("200 OK", "application/json", "text/event-stream");
        let id = &self.message["id"];
        let plain = |result: Value| (ok, json, "", Self::answer_to(id, &result));
        match self.message["method"].as_str() {
            Some("initialize") => (ok, json, "mcp-session-id: s1\r\n", Self::answer_to(id, &json!({}))),
            Some("tools/list") => {
                let tools = TOOLS.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
                plain(json!({"tools": tools}))
            }
            Some("tools/call") => {
                let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
                let right = Self::answer_to(id, &text(&self.session));
                match self.message["params"]["name"].as_str().unwrap() {
                    "who" => {
                        let noise = "event: message\ndata: {\"jsonrpc\": \"2.0\", \"method\": \"notifications/x\"}\n\n";
                        // An answer to another request, and a request with the same number.
                        let other = Self::answer_to(&json!(999), &text("other"));
                        let asks = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
                        let all = format!(
                            ": comment\n{noise}data: {other}\n\ndata: {asks}\n\ndata: broken\n\ndata: {right}\n\n"
                        );
                        (ok, events, "", all)
                    }
                    // The server waits for the answers.
                    "asks" => {
                        let ask = |id: &str, method: &str| {
                            format!("data: {}\n\n", json!({"jsonrpc": "2.0", "id": id, "method": method}))
                        };
                        (ok, events, OPEN, ask("p", "ping") + &ask("s", "sampling/createMessage"))
                    }
                    "fails" => ("500 No", "text/plain", "", "out of memory".to_owned()),
                    "moves" => ("307 Moved", json, "location: /elsewhere\r\n", String::new()),
                    "ends" => (ok, events, "", "data: {}\n\n".to_owned()),
                    "mumbles" => (ok, json, "", "not JSON".to_owned()),
                    "lies" => plain(json!({"content": 5})),
                    "hangs_in_its_answer" => (ok, json, "content-length: 99\r\n", "{".to_owned()),
                    "hangs_in_its_events" => (ok, events, "content-length: 99\r\n", ": comment\n".to_owned()),
                    _ => (ok, json, "content-length: 99\r\n", String::new()),
                }
            }
            _ => (ok, json, "", String::new()),
        }
    }
}

/// A server that notes the sessions that were ended.
struct Server {
    url: String,
    ended: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let ended = Arc::new(Mutex::new(Vec::new()));
        let of_thread = Arc::clone(&ended);
        std::thread::spawn(move || {
            // Streams of answers that never end stay open.
            let mut open = Vec::new();
            let (mut asking, mut answers): (Option<(TcpStream, Value)>, Vec<Value>) = Default::default();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = Request::read(&stream);
                if request.first.starts_with("DELETE") {
                    of_thread.lock().unwrap().push(request.session.clone());
                }
                if request.message["method"].is_null() && request.message["id"].is_string() {
                    answers.push(request.message.clone());
                }
                let (status, kind, more, body) = request.answer();
                let length = body.len();
                let length = if more.contains("length") || more == OPEN {
                    String::new()
                } else {
                    format!("content-length: {length}\r\n")
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{more}{length}connection: close\r\n"
                );
                write!(stream, "{head}\r\n{body}").unwrap();
                if more == OPEN {
                    asking = Some((stream, request.message["id"].clone()));
                } else if more.contains("length") {
                    open.push(stream);
                }
                if answers.len() == 2
                    && let Some((mut stream, id)) = asking.take()
                {
                    let text = Value::from(std::mem::take(&mut answers)).to_string();
                    let result = json!({"content": [{"type": "text", "text": text}]});
                    write!(stream, "data: {}\n\n", Request::answer_to(&id, &result)).unwrap();
                }
            }
        });
        Self { url, ended }
    }

    fn toolbox(&self, timeout: Duration) -> Toolbox {
        toolbox(json!({"kind": "mcp", "url": self.url}), timeout).unwrap()
    }
}

#[test]
fn servers_are_called_over_http() {
    let server = Server::start();
    let toolbox = server.toolbox(LONG);
    assert_eq!(toolbox.tools().len(), TOOLS.len());
    assert_eq!(call(&toolbox.open(), "who", &json!({})).unwrap(), Output::ok("s1"));
    // The server does not keep the session of a client that has gone.
    drop(toolbox);
    while server.ended.lock().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(*server.ended.lock().unwrap(), ["s1"]);
}

#[test]
fn requests_of_a_server_over_http_are_answered() {
    let toolbox = Server::start().toolbox(LONG);
    let Output { text, is_error } = call(&toolbox.open(), "asks", &json!({})).unwrap();
    assert!(!is_error);
    let answers: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answers[0], json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&json!("s"), &json!(-32601)));
}

#[test]
fn failures_of_a_server_over_http_are_no_results() {
    let toolbox = Server::start().toolbox(LONG);
    for (tool, problem) in [
        ("fails", "answered with status 500: out of memory"),
        ("moves", "answered with status 307"),
        ("ends", "ended its answer without a result"),
        ("mumbles", "answered nonsense: expected"),
        ("lies", "answered nonsense to `tools/call`"),
    ] {
        let error = call(&toolbox.open(), tool, &json!({})).unwrap_err().to_string();
        assert!(error.contains(problem), "{tool}: {error}");
    }
    // Another session serves the next call.
    assert_eq!(call(&toolbox.open(), "who", &json!({})).unwrap(), Output::ok("s1"));
}

#[test]
fn calls_over_http_that_hang_end_at_their_timeout() {
    let toolbox = Server::start().toolbox(SHORT);
    for tool in ["hangs", "hangs_in_its_answer", "hangs_in_its_events"] {
        let late = Output::error("the call took longer than 0.5 s");
        assert_eq!(call(&toolbox.open(), tool, &json!({})).unwrap(), late, "{tool}");
    }
}

#[test]
fn servers_that_cannot_be_reached_are_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let error = toolbox(json!({"kind": "mcp", "url": url}), LONG).unwrap_err().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
}
