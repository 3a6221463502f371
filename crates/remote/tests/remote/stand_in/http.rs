//! The least of an HTTP/1.1 server that can also misbehave.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request with its body.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// Reads one request; `None` at the end of the connection.
pub(crate) async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let head = loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        more(stream, buffer).await?;
    };
    let text = String::from_utf8(buffer[..head].to_vec()).unwrap();
    let mut lines = text.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse::<usize>().unwrap());
    while buffer.len() < head + length {
        more(stream, buffer).await?;
    }
    let body = &buffer[head..head + length];
    let body = if length == 0 { Value::Null } else { serde_json::from_slice(body).unwrap() };
    buffer.drain(..head + length);
    Some(Request { method, path: path.to_owned(), query: query.to_owned(), body })
}

async fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(buffer).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}

/// Writes an answer, of which the last `missing` bytes are left out.
pub(crate) async fn write(stream: &mut TcpStream, status: u16, body: &[u8], missing: usize) {
    let head = format!(
        "HTTP/1.1 {status} Answer\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let kept = body.len().saturating_sub(missing);
    drop(stream.write_all(&[head.as_bytes(), &body[..kept]].concat()).await);
    drop(stream.flush().await);
}

/// Waits until the client has closed the connection.
pub(crate) async fn closed(stream: &TcpStream) {
    let mut byte = [0];
    // A client that sends a further request before the answer does not exist here.
    while stream.peek(&mut byte).await.is_ok_and(|count| count > 0) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
