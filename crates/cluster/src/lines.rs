//! JSON values, one a line, over a socket pair.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest line in bytes.
const LONGEST: usize = 16 << 20;

/// Writes a value.
pub(crate) fn write(mut stream: &UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads values.
pub(crate) struct Lines {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// Result of waiting for a line.
pub(crate) enum Line<T> {
    Value(T),
    TimedOut,
    Closed,
}

impl Lines {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// The next value; without a timeout, waits for as long as it takes. A stream that is broken counts as closed.
    pub(crate) fn next<T: DeserializeOwned>(&mut self, timeout: Option<Duration>) -> Line<T> {
        // Zero would mean no timeout.
        let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
        if self.stream.set_read_timeout(timeout).is_err() {
            return Line::Closed;
        }
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_or(Line::Closed, Line::Value);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Line::Closed,
                Ok(count) if self.buffer.len() < LONGEST => self.buffer.extend(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Line::TimedOut;
                }
                Ok(_) | Err(_) => return Line::Closed,
            }
        }
    }
}
