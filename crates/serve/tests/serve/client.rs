//! A client that sends what it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer of the server.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Data of the events of a stream, `[DONE]` excluded.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Text of a request with a body.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Reads an answer up to the end of the connection; `None` if there is none.
pub(crate) fn read(stream: &mut TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    // A connection that is reset after the answer has nothing more to say.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut body = bytes[end + 4..].to_vec();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Some(Answer { status, head, body: String::from_utf8(body).unwrap() })
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        let from = end + 2;
        let Some(chunk) = bytes.get(from..from + size) else { break };
        body.extend_from_slice(chunk);
        bytes = bytes.get(from + size + 2..).unwrap_or_default();
    }
    body
}

/// Sends a request and reads the answer.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Option<Answer> {
    let mut stream = connect(address);
    // The server may answer, and close the connection, before it has read everything.
    let _ = stream.write_all(bytes);
    read(&mut stream)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    exchange(address, &request("GET", path, "", b"")).unwrap()
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    let headers = "content-type: application/json\r\n";
    exchange(address, &request("POST", path, headers, body.to_string().as_bytes())).unwrap()
}

/// The same request as a stream.
pub(crate) fn stream(address: SocketAddr, path: &str, body: &Value) -> Answer {
    let mut body = body.clone();
    body["stream"] = true.into();
    let answer = post(address, path, &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"));
    answer
}
