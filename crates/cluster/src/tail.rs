//! The end of a process's output, in bounded memory.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::log_file::LogFile;

/// Bytes kept.
const KEPT: usize = 16 << 10;

/// The end of an output that a thread reads.
#[derive(Debug, Clone)]
pub(crate) struct Tail(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    bytes: VecDeque<u8>,
    has_ended: bool,
}

impl Tail {
    /// Reads a pipe until its end, as fast as it is filled, and copies it to `log`.
    pub(crate) fn follow(
        mut pipe: impl Read + Send + 'static,
        mut log: Option<LogFile>,
    ) -> std::io::Result<Self> {
        let tail = Self(Arc::default());
        let follower = tail.clone();
        let follow = move || {
            let mut buffer = vec![0; 64 << 10];
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        follower.push(&buffer[..count]);
                        if let Some(log) = &mut log {
                            log.write(&buffer[..count]);
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            follower.state().has_ended = true;
            follower.0.1.notify_all();
        };
        std::thread::Builder::new().name("output".to_owned()).spawn(follow)?;
        Ok(tail)
    }

    fn push(&self, bytes: &[u8]) {
        let mut state = self.state();
        let kept = &bytes[bytes.len().saturating_sub(KEPT)..];
        let excess = (state.bytes.len() + kept.len()).saturating_sub(KEPT);
        state.bytes.drain(..excess);
        state.bytes.extend(kept);
    }

    /// The end of the output as text without control characters.
    pub(crate) fn text(&self) -> String {
        let state = self.state();
        let bytes: Vec<u8> = state.bytes.iter().copied().collect();
        drop(state);
        plain(&String::from_utf8_lossy(&bytes))
    }

    /// The end of the output, once the pipe is closed or the time is over: another process may hold it open.
    pub(crate) fn last_text(&self, timeout: Duration) -> String {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.has_ended || left.is_zero() {
                drop(state);
                return self.text();
            }
            state = self.0.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes escape sequences, which could change a terminal's state, and other control characters.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => {
                if characters.next_if_eq(&'[').is_some() {
                    // Parameters, then one final character.
                    while characters.next_if(|c| ('\x20'..='\x3f').contains(c)).is_some() {}
                    characters.next();
                }
            }
            '\n' | '\t' => plain.push(character),
            // A progress bar that is drawn again.
            '\r' => plain.push('\n'),
            character if character.is_control() => {}
            character => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_kept_to_its_end() {
        let flood: Vec<u8> = (0..200_000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
        let tail = Tail::follow(std::io::Cursor::new(flood), None).unwrap();
        let text = tail.last_text(Duration::from_mins(2));
        assert!(text.ends_with("line 199999\n"), "{}", &text[text.len() - 40..]);
        assert_eq!(text.len(), KEPT);
        assert_eq!(tail.state().bytes.len(), KEPT);
    }

    #[test]
    fn escape_sequences_are_removed() {
        assert_eq!(plain("\x1b[31;1mred\x1b[0m\x07 ü\r50%\r100%\n"), "red ü\n50%\n100%\n");
        assert_eq!(plain("\x1b]0;title\x07"), "]0;title");
    }
}
