//! The Python process that calls the package of a tracker: one request a line, one answer a line, strictly in turn.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Tracking, TrackingError};
use crate::{Metrics, Tracker};

/// The Python side, which the program carries with it: the interpreter needs the tracker's package only.
const PROGRAM: &str = include_str!("../../../../python/rloom/track.py");
/// Longest wait for an answer. Trackers repeat failed uploads for minutes.
const LONGEST_CALL: Duration = Duration::from_mins(30);
/// Longest wait for an answer after tracking was asked to stop.
const LONGEST_CALL_AT_STOP: Duration = Duration::from_secs(10);
/// Time between two looks at the process and at requests to stop.
const LOOK: Duration = Duration::from_millis(100);

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
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The tracker has confirmed the end of the run.
    is_finished: bool,
    stop: &'a AtomicBool,
}

impl<'a> Process<'a> {
    pub(super) fn start(tracking: &Tracking, stop: &'a AtomicBool) -> Result<Self, TrackingError> {
        let failed = |source| TrackingError::Interpreter {
            tracker: tracking.kind,
            python: tracking.python.clone(),
            source,
        };
        let mut command = Command::new(&tracking.python);
        command.args(["-c", PROGRAM, tracking.kind.name()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (requests, output) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = channel();
        let read = move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        // If the thread cannot start, neither can the tracker.
        if let Err(error) = std::thread::Builder::new().name("tracker".into()).spawn(read) {
            let _ = child.kill();
            return Err(failed(error));
        }
        Ok(Self { tracker: tracking.kind, child, requests, answers, is_finished: false, stop })
    }

    fn send(&mut self, request: &Request<'_>) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let requests = self.requests.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        requests.write_all(&line)
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
            if is_stopping && start.elapsed() > LONGEST_CALL_AT_STOP {
                self.kill();
                return Err(TrackingError::Interrupted);
            }
            if start.elapsed() > LONGEST_CALL {
                self.kill();
                let minutes = LONGEST_CALL.as_secs() / 60;
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
        match self.end(Instant::now() + LONGEST_CALL_AT_STOP) {
            Ok(status) => TrackingError::Ended { tracker, status },
            Err(error) => TrackingError::Failed { tracker, message: error.to_string() },
        }
    }
}

impl Answering for Process<'_> {
    fn answer(&mut self, request: &Request<'_>) -> Result<Answer, TrackingError> {
        if self.send(request).is_err() {
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
        let longest = if self.is_finished { LONGEST_CALL } else { LONGEST_CALL_AT_STOP };
        let _ = self.end(Instant::now() + longest);
    }
}
