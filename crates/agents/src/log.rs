//! Output of agents: kept in files of the run directory, of a bounded size and number.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::redact::Redactor;

/// Largest log in bytes; the rest of an output is counted.
const MAX_BYTES: u64 = 1 << 20;
/// Bytes of the end of an output that errors can quote.
const TAIL_BYTES: usize = 4 << 10;
/// Lines that errors quote.
const TAIL_LINES: usize = 12;
/// Longest wait for output that is still in the pipe after a process has ended.
const DRAIN: Duration = Duration::from_millis(500);

/// End of the name of a log, and of that of an agent that failed.
const LOG: &str = ".log";
const FAILED: &str = ".failed.log";

/// The folder of the logs.
#[derive(Debug)]
pub(crate) struct Logs {
    folder: PathBuf,
    keep: usize,
    /// Oldest first.
    failed: Mutex<VecDeque<PathBuf>>,
    others: Mutex<VecDeque<PathBuf>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Logs {
    /// The logs in a folder, which is created with the first one.
    pub(crate) fn new(folder: PathBuf, keep: usize) -> Self {
        let mut found: Vec<(SystemTime, PathBuf)> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().ends_with(LOG))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        found.sort();
        let (failed, others) =
            found.into_iter().map(|(_, path)| path).partition(|path: &PathBuf| is_failed(path));
        Self { folder, keep, failed: Mutex::new(failed), others: Mutex::new(others) }
    }

    /// Begins the log of an agent. Without a file, for example because the disk is full, its end is still quoted.
    pub(crate) fn begin(&self, name: &str) -> Log {
        if self.keep == 0 {
            return Log::default();
        }
        let path = self.folder.join(format!("{name}{LOG}"));
        // One of the same name, of an earlier evaluation, is replaced: it is not one to remove any more.
        lock(&self.others).retain(|other| *other != path);
        let file = fs::create_dir_all(&self.folder).and_then(|()| File::create(&path)).ok();
        Log { path: file.is_some().then_some(path), file, ..Log::default() }
    }

    /// Keeps the log of an agent that has ended, and removes the oldest one above the limit. Returns its path.
    pub(crate) fn end(&self, output: &Output, has_failed: bool) -> Option<PathBuf> {
        let path = output.take_path()?;
        let kept = if has_failed { &self.failed } else { &self.others };
        let path = if has_failed { rename(&path) } else { path };
        let mut kept = lock(kept);
        kept.retain(|other| *other != path);
        kept.push_back(path.clone());
        while kept.len() > self.keep {
            if let Some(oldest) = kept.pop_front() {
                let _ = fs::remove_file(oldest);
            }
        }
        Some(path)
    }
}

fn is_failed(path: &Path) -> bool {
    path.to_string_lossy().ends_with(FAILED)
}

/// Gives a log the name of one that failed.
fn rename(path: &Path) -> PathBuf {
    let name = path.to_string_lossy();
    let failed = PathBuf::from(format!("{}{FAILED}", name.strip_suffix(LOG).unwrap_or(&name)));
    if fs::rename(path, &failed).is_ok() { failed } else { path.to_owned() }
}

/// The log of a running agent.
#[derive(Debug, Default)]
pub(crate) struct Log {
    file: Option<File>,
    path: Option<PathBuf>,
    redactor: Redactor,
    output: Output,
}

impl Log {
    /// The log without a secret.
    pub(crate) fn without(self, secret: &str) -> Self {
        Self { redactor: Redactor::new(secret), ..self }
    }

    /// The output as it is read elsewhere.
    pub(crate) fn output(&self) -> Output {
        lock(&self.output.0.path).clone_from(&self.path);
        self.output.clone()
    }

    /// Reads an output to its end.
    pub(crate) fn collect(mut self, mut output: impl Read) {
        let mut buffer = vec![0; 16 << 10];
        let mut sizes = (0, 0);
        loop {
            match output.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    let bytes = self.redactor.push(&buffer[..read]);
                    self.keep(&bytes, &mut sizes);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let bytes = self.redactor.finish();
        self.keep(&bytes, &mut sizes);
        let omitted = sizes.1;
        if let (Some(file), true) = (&mut self.file, omitted > 0) {
            let _ = writeln!(file, "\n[{omitted} bytes more]");
        }
        self.output.0.is_complete.store(true, Ordering::SeqCst);
        self.output.0.completed.notify_one();
    }

    /// Adds bytes, of which the file has those before its limit. `sizes` counts those that are written and omitted.
    fn keep(&mut self, bytes: &[u8], (written, omitted): &mut (u64, u64)) {
        self.output.add(bytes);
        let room = (MAX_BYTES - *written).min(bytes.len() as u64);
        if let Some(file) = &mut self.file
            && file.write_all(&bytes[..room as usize]).is_err()
        {
            self.file = None;
        }
        (*written, *omitted) = (*written + room, *omitted + bytes.len() as u64 - room);
    }
}

/// The end of an output.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    tail: Mutex<VecDeque<u8>>,
    path: Mutex<Option<PathBuf>>,
    is_complete: AtomicBool,
    completed: Notify,
}

impl Output {
    fn add(&self, bytes: &[u8]) {
        let mut tail = lock(&self.0.tail);
        tail.extend(bytes);
        let excess = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..excess);
    }

    fn take_path(&self) -> Option<PathBuf> {
        lock(&self.0.path).take()
    }

    /// The last lines, after a short wait for those that are still to be read.
    pub(crate) async fn last_lines(&self) -> String {
        if !self.0.is_complete.load(Ordering::SeqCst) {
            let _ = timeout(DRAIN, self.0.completed.notified()).await;
        }
        self.tail()
    }

    fn tail(&self) -> String {
        let bytes: Vec<u8> = lock(&self.0.tail).iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_bounded_number_of_logs_of_a_bounded_size_is_kept() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("agents");
        let logs = Logs::new(path.clone(), 2);
        for number in 0..6 {
            let log = logs.begin(&format!("rl-{number}-0"));
            let output = log.output();
            log.collect(format!("line {number}\n").as_bytes());
            assert_eq!(output.tail(), format!("line {number}"));
            logs.end(&output, number % 2 == 1);
        }
        assert_eq!(names(&path), ["rl-2-0.log", "rl-3-0.failed.log", "rl-4-0.log", "rl-5-0.failed.log"]);
        // A log that replaces another is not removed in its place.
        let log = logs.begin("rl-2-0");
        let output = log.output();
        let other = logs.begin("rl-6-0").output();
        logs.end(&other, false);
        log.collect(&b"again"[..]);
        logs.end(&output, false);
        assert_eq!(names(&path), ["rl-2-0.log", "rl-3-0.failed.log", "rl-5-0.failed.log", "rl-6-0.log"]);
        // Those of an earlier attempt count.
        let logs = Logs::new(path.clone(), 2);
        let log = logs.begin("rl-7-0");
        let output = log.output();
        let flood = vec![b'x'; 3 << 20];
        log.collect(&flood[..]);
        let kept = logs.end(&output, false).unwrap_or_default();
        assert_eq!(names(&path), ["rl-2-0.log", "rl-3-0.failed.log", "rl-5-0.failed.log", "rl-7-0.log"]);
        let text = fs::read_to_string(kept)?;
        assert!(text.len() < (1 << 20) + 100 && text.ends_with("\n[2097152 bytes more]\n"), "{}", text.len());
        Ok(())
    }
}
