//! A judge that does what the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// What the server does with a request.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// Answers with this text, as a chat completion.
    Say(String),
    /// Answers with this body and status 200.
    Body(Value),
    /// Answers with status, further header lines and body.
    Status(u16, &'static str, String),
    /// Announces a longer body than it sends.
    CutOff,
    /// Sends a body without an end.
    Endless,
    /// Sends nothing, and keeps the connection.
    Hang,
    /// Closes the connection.
    Close,
}

pub(super) fn say(text: &str) -> Act {
    Act::Say(text.to_owned())
}

/// A request to the server.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) body: Value,
}

impl Asked {
    /// The question of a chat.
    pub(super) fn text(&self) -> &str {
        self.body["messages"][0]["content"].as_str().unwrap_or_default()
    }

    /// The nonce of the verdict.
    pub(super) fn nonce(&self) -> &str {
        let text = self.text();
        let (_, after) = text.rsplit_once("`Verdict ").unwrap_or_default();
        after.split(':').next().unwrap_or_default()
    }

    /// An answer in the required form.
    pub(super) fn verdict(&self, verdict: &str) -> Act {
        Act::Say(format!("I compared the texts.\nVerdict {}: {verdict}", self.nonce()))
    }

    /// The text between the tags of a name.
    pub(super) fn block(&self, tag: &str) -> &str {
        let open = self.text().split_once(&format!("<{tag} ")).and_then(|(_, after)| after.split_once(">\n"));
        let inner = open.and_then(|(_, after)| after.split_once(&format!("\n</{tag} ")));
        inner.map_or("", |(inner, _)| inner)
    }
}

/// A server on a port of its own, which lives as long as the test program.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Requests in progress, and the most at a time.
    running: Arc<AtomicU64>,
    peak: Arc<AtomicU64>,
}

impl Server {
    /// A server that acts by the request and its number, from 0 on.
    pub(super) fn start(act: impl Fn(&Asked, usize) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            url: format!("http://{}/v1", listener.local_addr().unwrap()),
            asked: Arc::default(),
            running: Arc::default(),
            peak: Arc::default(),
        };
        let (own, act) = (server.clone(), Arc::new(act));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (own, act) = (own.clone(), Arc::clone(&act));
                std::thread::spawn(move || own.serve(&stream.unwrap(), &*act));
            }
        });
        server
    }

    /// The requests so far.
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    fn serve(&self, stream: &TcpStream, act: &(dyn Fn(&Asked, usize) -> Act + Send + Sync)) {
        let asked = read(stream);
        let number = {
            let mut all = self.asked.lock().unwrap();
            all.push(asked.clone());
            all.len() - 1
        };
        self.peak.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let act = act(&asked, number);
        self.running.fetch_sub(1, Ordering::SeqCst);
        perform(stream, &act);
    }
}

fn read(stream: &TcpStream) -> Asked {
    let mut input = BufReader::new(stream);
    let (mut length, mut authorization, mut path) = (0, None, String::new());
    for number in 0.. {
        let mut line = String::new();
        input.read_line(&mut line).unwrap();
        let line = line.trim();
        if number == 0 {
            line.split(' ').nth(1).unwrap_or_default().clone_into(&mut path);
        }
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().unwrap();
            }
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                authorization = Some(value.to_owned());
            }
            _ if line.is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).unwrap();
    Asked { path, authorization, body: serde_json::from_slice(&body).unwrap() }
}

fn perform(mut stream: &TcpStream, act: &Act) {
    let head = |status: u16, headers: &str, length: usize| {
        format!("HTTP/1.1 {status} X\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n")
    };
    // The client may be gone.
    let mut send = |text: &[u8]| stream.write_all(text).is_ok();
    match act {
        Act::Say(text) => {
            let message = json!({ "role": "assistant", "content": text });
            let body = json!({ "choices": [{ "message": message, "finish_reason": "stop" }] }).to_string();
            send((head(200, "", body.len()) + &body).as_bytes());
        }
        Act::Body(body) => {
            let body = body.to_string();
            send((head(200, "", body.len()) + &body).as_bytes());
        }
        Act::Status(status, headers, body) => {
            send((head(*status, headers, body.len()) + body).as_bytes());
        }
        Act::CutOff => {
            send((head(200, "", 1000) + r#"{"choices": [{"message": {"content": "yes"#).as_bytes());
        }
        Act::Endless => {
            let mut goes_on = send(b"HTTP/1.1 200 X\r\nconnection: close\r\n\r\n{\"choices\": \"");
            while goes_on {
                goes_on = send(&[b'y'; 8192]);
            }
        }
        // Longer than the timeout of any test.
        Act::Hang => std::thread::sleep(Duration::from_mins(10)),
        Act::Close => {}
    }
}
