//! The Python process that calls the package of a tracker: one request a line, one answer a line, strictly in turn.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Tracking, TrackingError};
use crate::{Metrics, Tracker};

/// The Python side, which the program carries with it: the interpreter needs the tracker's package only.
const PROGRAM: &str = include_str!("../../../../python/rloom/track.py");
/// Time between two looks at the process and at requests to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Longest waits for an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    call: Duration,
    /// After tracking was asked to stop.
    call_at_stop: Duration,
}

impl Default for Limits {
    /// Trackers repeat failed uploads for minutes.
    fn default() -> Self {
        Self { call: Duration::from_mins(30), call_at_stop: Duration::from_secs(10) }
    }
}

/// A request to a tracker.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request<'a> {
    /// Starts or continues a run.
    Start {
        run: &'a Path,
        name: &'a str,
        key: &'a str,
        project: &'a str,
        config: &'a Value,
        /// Scalars of the configuration by dotted key.
        settings: &'a Map<String, Value>,
    },
    /// Passes on metrics of a global step and their Unix time.
    Log { step: u64, metrics: &'a Metrics, time: f64 },
    /// Passes on samples.
    Table { step: u64, columns: &'a [&'a str], rows: &'a [&'a Value] },
    /// Ends the connection. `state` is that of the run.
    Finish { state: &'a str },
}

/// The answer to a request.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Answer {
    /// Last step that the tracker has, if it tells; -1 for none.
    #[serde(default)]
    pub(super) stored: Option<i64>,
    #[serde(default)]
    pub(super) error: Option<String>,
    /// A package that could not be imported.
    #[serde(default)]
    pub(super) missing: Option<String>,
    /// Path of the interpreter.
    #[serde(default)]
    pub(super) python: String,
}

/// Answers requests.
pub(super) trait Answering {
    fn answer(&mut self, request: &Request<'_>) -> Result<Answer, TrackingError>;
}

/// The process.
#[derive(Debug)]
pub(super) struct Process<'a> {
    tracker: Tracker,
    child: Child,
    /// Written by a thread: the process may not read them.
    requests: Option<Sender<Vec<u8>>>,
    answers: Receiver<String>,
    /// The tracker has confirmed the end of the run.
    is_finished: bool,
    stop: &'a AtomicBool,
    limits: Limits,
}

impl<'a> Process<'a> {
    pub(super) fn start(
        tracking: &Tracking,
        stop: &'a AtomicBool,
        limits: Limits,
    ) -> Result<Self, TrackingError> {
        let failed = |source| TrackingError::Interpreter {
            tracker: tracking.kind,
            python: tracking.python.clone(),
            source,
        };
        let mut command = Command::new(&tracking.python);
        command.args(["-c", PROGRAM, tracking.kind.name()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = channel();
        let (requests, lines) = channel::<Vec<u8>>();
        // Both threads end with the pipes of the process.
        let write = move || {
            let Some(mut input) = input else { return };
            while lines.recv().is_ok_and(|line| input.write_all(&line).is_ok()) {}
        };
        let read = move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        let thread = || std::thread::Builder::new().name("tracker".into());
        // If a thread cannot start, neither can the tracker.
        if let Err(error) = thread().spawn(write).and_then(|_| thread().spawn(read)) {
            let _ = child.kill();
            return Err(failed(error));
        }
        let requests = Some(requests);
        Ok(Self { tracker: tracking.kind, child, requests, answers, is_finished: false, stop, limits })
    }

    /// Passes on a request. False if the process no longer takes any.
    fn send(&self, request: &Request<'_>) -> serde_json::Result<bool> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        Ok(self.requests.as_ref().is_some_and(|requests| requests.send(line).is_ok()))
    }

    /// Waits for the end of the process, and kills it at the deadline.
    fn end(&mut self, deadline: Instant) -> std::io::Result<ExitStatus> {
        self.requests = None;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(LOOK);
        }
        self.child.kill()?;
        self.child.wait()
    }

    /// Waits for an answer; unless it is the last, not for long once tracking is to stop.
    fn line(&mut self, is_last: bool) -> Result<String, TrackingError> {
        let start = Instant::now();
        let mut has_ended = false;
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                // A process that the tracker has started may keep the pipe of one that has ended open.
                Err(RecvTimeoutError::Timeout) if has_ended => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {
                    has_ended = self.child.try_wait().is_ok_and(|status| status.is_some());
                }
            }
            let is_stopping = self.stop.load(Ordering::Relaxed) && !is_last;
            if is_stopping && start.elapsed() > self.limits.call_at_stop {
                self.kill();
                return Err(TrackingError::Interrupted);
            }
            if start.elapsed() > self.limits.call {
                self.kill();
                let minutes = self.limits.call.as_secs() / 60;
                return Err(TrackingError::Hung { tracker: self.tracker, minutes });
            }
        }
    }

    fn kill(&mut self) {
        self.requests = None;
        let _ = self.child.kill();
    }

    fn ended(&mut self) -> TrackingError {
        let tracker = self.tracker;
        match self.end(Instant::now() + self.limits.call_at_stop) {
            Ok(status) => TrackingError::Ended { tracker, status },
            Err(error) => TrackingError::Failed { tracker, message: error.to_string() },
        }
    }
}

impl Answering for Process<'_> {
    fn answer(&mut self, request: &Request<'_>) -> Result<Answer, TrackingError> {
        if !self.send(request).is_ok_and(|is_sent| is_sent) {
            return Err(self.ended());
        }
        let is_last = matches!(request, Request::Finish { .. });
        let line = self.line(is_last)?;
        self.is_finished = is_last;
        let message = format!("unreadable answer {line:.100}");
        serde_json::from_str(&line).map_err(|_| TrackingError::Failed { tracker: self.tracker, message })
    }
}

impl Drop for Process<'_> {
    /// Closes the connection, which ends the process; one that hangs is killed.
    fn drop(&mut self) {
        let longest = if self.is_finished { self.limits.call } else { self.limits.call_at_stop };
        let _ = self.end(Instant::now() + longest);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    /// A program in the place of Python.
    fn program(text: &str) -> (TempDir, Tracking) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("python");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let tracking = Tracking { python: path.display().to_string(), ..Tracking::new(Tracker::Wandb) };
        (folder, tracking)
    }

    fn limits(call: u64, call_at_stop: u64) -> Limits {
        Limits { call: Duration::from_millis(call), call_at_stop: Duration::from_millis(call_at_stop) }
    }

    #[test]
    fn a_process_that_does_not_answer_is_killed() {
        let (_folder, tracking) = program("read l; exec sleep 1000");
        let stop = AtomicBool::new(false);
        let mut process = Process::start(&tracking, &stop, limits(20, 10)).unwrap();
        let error = process.answer(&Request::Finish { state: "running" }).unwrap_err();
        assert!(matches!(error, TrackingError::Hung { .. }), "{error}");
        assert!(!process.child.wait().unwrap().success(), "it was killed");
    }

    #[test]
    fn a_process_that_does_not_read_is_killed() {
        let (_folder, tracking) = program("exec sleep 1000");
        let stop = AtomicBool::new(false);
        let mut process = Process::start(&tracking, &stop, limits(20, 10)).unwrap();
        let large = Value::String("a".repeat(1 << 20));
        let request = Request::Table { step: 1, columns: &["completion"], rows: &[&large] };
        let error = process.answer(&request).unwrap_err();
        assert!(matches!(error, TrackingError::Hung { .. }), "{error}");
    }

    #[test]
    fn a_stop_does_not_wait_for_an_answer_unless_it_is_the_last() {
        let (_folder, tracking) = program("read l; exec sleep 1000");
        let stop = AtomicBool::new(true);
        let request = Request::Table { step: 1, columns: &[], rows: &[] };
        let mut process = Process::start(&tracking, &stop, limits(1_000_000, 10)).unwrap();
        assert!(matches!(process.answer(&request), Err(TrackingError::Interrupted)));
        let mut process = Process::start(&tracking, &stop, limits(1000, 10)).unwrap();
        let error = process.answer(&Request::Finish { state: "running" }).unwrap_err();
        assert!(matches!(error, TrackingError::Hung { .. }), "{error}");
    }

    #[test]
    fn a_process_that_stays_after_its_last_answer_is_killed() {
        let (_folder, tracking) = program("read l; echo '{}'; exec sleep 1000");
        let stop = AtomicBool::new(false);
        let mut process = Process::start(&tracking, &stop, limits(60_000, 10)).unwrap();
        process.answer(&Request::Finish { state: "finished" }).unwrap();
        process.limits.call = Duration::from_millis(10);
        drop(process); // or the test takes as long as the process
    }
}
