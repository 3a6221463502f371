//! Ranks as child processes of the test.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rloom_remote::{RankCommand, RankEnd, RankLauncher, RankProcess};

/// Lines of error output that are kept.
const LINES: usize = 120;
/// Characters of a line that are kept.
const CHARACTERS: usize = 400;

/// Longest wait for the output of a process that has ended.
const DRAIN: Duration = Duration::from_secs(2);

/// Ranks as child processes.
#[derive(Debug, Clone)]
pub(crate) struct LocalRanks {
    /// The Python interpreter.
    pub(crate) python: PathBuf,
    /// Variables to add to the environment, such as `PYTHONPATH`.
    pub(crate) environment: Vec<(String, String)>,
}

impl RankLauncher for LocalRanks {
    fn start(&self, command: &RankCommand) -> io::Result<Box<dyn RankProcess>> {
        let mut child = Command::new(&self.python)
            .args(&command.arguments)
            .envs(self.environment.iter().chain(&command.environment).map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let tail = Tail::default();
        let reader = child.stderr.take().map(|stderr| {
            let tail = tail.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                    tail.push(&String::from_utf8_lossy(&line));
                }
            })
        });
        Ok(Box::new(LocalRank { child, reader, tail, end: None }))
    }
}

/// Last lines of an output.
#[derive(Debug, Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(CHARACTERS).collect());
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// A child process.
#[derive(Debug)]
struct LocalRank {
    child: Child,
    reader: Option<JoinHandle<()>>,
    tail: Tail,
    end: Option<RankEnd>,
}

impl RankProcess for LocalRank {
    fn ended(&mut self) -> Option<RankEnd> {
        if self.end.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.end = Some(RankEnd { status: status.to_string(), was_killed: status.signal().is_some() });
            // The rest of its output is in the pipe; a process that it started may keep the pipe open.
            let until = Instant::now() + DRAIN;
            while self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.end.clone()
    }

    fn request_stacks(&self) {
        let _ = Command::new("kill").args(["-USR1", &self.child.id().to_string()]).status();
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn stderr(&self) -> String {
        self.tail.text()
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.kill();
    }
}
