//! The end of what a process wrote to stderr.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Bytes that are kept.
const KEPT: usize = 8 << 10;
/// Lines that are quoted.
const QUOTED: usize = 20;
/// Longest wait for output that is still in the pipe after a process has ended.
const DRAIN: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
struct Content {
    bytes: VecDeque<u8>,
    is_complete: bool,
}

/// The last lines of a text.
pub(crate) fn quoted(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(QUOTED)..].join("\n")
}

/// Collects the stderr of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stderr(Arc<(Mutex<Content>, Condvar)>);

impl Stderr {
    /// Reads until the end of `input`.
    pub(crate) fn collect(&self, mut input: impl Read) {
        let (content, changed) = &*self.0;
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = input.read(&mut buffer) {
            let mut content = content.lock().unwrap_or_else(PoisonError::into_inner);
            content.bytes.extend(&buffer[..read]);
            let excess = content.bytes.len().saturating_sub(KEPT);
            content.bytes.drain(..excess);
        }
        content.lock().unwrap_or_else(PoisonError::into_inner).is_complete = true;
        changed.notify_all();
    }

    /// The last lines so far.
    pub(crate) fn tail(&self) -> String {
        let content = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = content.bytes.iter().copied().collect();
        drop(content);
        quoted(&String::from_utf8_lossy(&bytes))
    }

    /// The last lines of a process that has ended.
    pub(crate) fn final_tail(&self) -> String {
        let (content, changed) = &*self.0;
        let guard = content.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_timeout_while(guard, DRAIN, |content| !content.is_complete));
        self.tail()
    }
}
