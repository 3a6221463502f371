//! The caller's side of a helper.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rloom_core::Program;

use crate::folder::WorkingFolder;
use crate::group::Group;
use crate::helper::{DIRECT, ENTER, Pool, STAGE};
use crate::message::{Reply, Request};
use crate::sandbox::Watched;
use crate::{COMMAND, Execution, Outcome, SandboxError, Tier};

/// Time for preparation and cleaning up, in addition to that of the program.
const GRACE: Duration = Duration::from_secs(20);
/// Wait for the end of a helper that lost its caller.
const ENDING: Duration = Duration::from_secs(5);

/// Runs a program in a helper process.
pub(crate) fn call(
    program: &Program,
    tier: Tier,
    pool: &Arc<Pool>,
    execution: &Execution,
    watched: Option<Watched<'_>>,
) -> Result<Outcome, SandboxError> {
    let failed = |error: io::Error| SandboxError::Failed { reason: error.to_string() };
    let folder = match tier {
        Tier::Namespaces => None,
        Tier::Landlock | Tier::None => Some(WorkingFolder::create().map_err(failed)?),
    };
    let path = folder.as_ref().map(|folder| folder.path().to_owned());
    let request = Request { tier, execution: execution.clone(), folder: path };
    let request = rmp_serde::to_vec(&request).map_err(|e| SandboxError::Failed { reason: e.to_string() })?;
    let group = pool.groups().map(|groups| groups.create(&execution.limits, tier));
    let group = group.transpose().map_err(|error| in_group(&error))?;
    let mut helper = pool.take(program, tier).map_err(failed)?;
    if let Some(group) = &group {
        // Before its request, which it waits for.
        if let Err(error) = group.take(helper.child.id()) {
            helper.end();
            return Err(in_group(&error));
        }
    }
    let stopper = watched.as_ref().map(|watched| watched.stopper.clone());
    if let Some(watched) = watched
        && let Err(error) = helper.watch(watched)
    {
        helper.end();
        return Err(error);
    }
    let timeout = execution.limits.wall + GRACE;
    let reply = helper.exchange(&request, timeout).map(|bytes| rmp_serde::from_slice(&bytes));
    if let Ok(Ok(Reply::Ended(mut outcome))) = reply {
        if let Some(ending) = group.as_ref().and_then(Group::exceeded) {
            outcome.ending = ending;
        }
        // All processes of the program have ended; the kernel takes a while to clean up after the helper.
        let (program, pool) = (program.clone(), Arc::clone(pool));
        let end = move || {
            pool.refill(&program, tier);
            helper.end();
            drop(group);
        };
        let _ = std::thread::Builder::new().name("sandbox".to_owned()).spawn(end);
        return Ok(outcome);
    }
    let stderr = helper.end();
    Err(match reply {
        Ok(Ok(Reply::NotStarted(reason))) => {
            let program = execution.command.first().cloned().unwrap_or_default();
            SandboxError::NotStarted { program, reason }
        }
        Ok(Ok(Reply::Failed(reason))) => SandboxError::Failed { reason },
        _ if stopper.is_some_and(|stopper| stopper.is_stopped()) => SandboxError::Stopped,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => SandboxError::TimedOut { timeout },
        Err(error) => SandboxError::Failed { reason: reason_of(&stderr, &error.to_string()) },
        Ok(_) => SandboxError::Failed { reason: reason_of(&stderr, "its process ended") },
    })
}

fn in_group(error: &io::Error) -> SandboxError {
    SandboxError::Failed { reason: format!("its control group: {error}") }
}

fn reason_of(stderr: &str, otherwise: &str) -> String {
    let text = stderr.trim();
    if text.is_empty() {
        otherwise.to_owned()
    } else {
        text.strip_prefix("error: ").unwrap_or(text).to_owned()
    }
}

/// A helper process that waits for its request, or carries it out.
#[derive(Debug)]
pub(super) struct Helper {
    child: Child,
    socket: UnixStream,
}

impl Helper {
    pub(super) fn start(program: &Program, tier: Tier) -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        let mut command = program.command(COMMAND);
        let stage = if tier == Tier::Namespaces { ENTER } else { DIRECT };
        // The program can read the environment of the helper, which is process 1 of its namespace.
        command.env_clear().env(STAGE, stage).current_dir("/").process_group(0);
        command.stdin(OwnedFd::from(other)).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Self { child: command.spawn()?, socket })
    }

    /// Reads what the program writes, and ends the helper when it is stopped.
    fn watch(&mut self, watched: Watched<'_>) -> Result<(), SandboxError> {
        let failed = |error: io::Error| SandboxError::Failed { reason: error.to_string() };
        if !watched.stopper.arm(self.socket.try_clone().map_err(failed)?) {
            return Err(SandboxError::Stopped);
        }
        if let Some(mut stderr) = self.child.stderr.take() {
            let read = move || (watched.output)(&mut stderr);
            std::thread::Builder::new().name("sandbox output".to_owned()).spawn(read).map_err(failed)?;
        }
        Ok(())
    }

    /// True if its process runs.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn exchange(&mut self, request: &[u8], timeout: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        self.socket.set_write_timeout(Some(timeout))?;
        self.socket.write_all(request).and_then(|()| self.socket.shutdown(Shutdown::Write))?;
        let mut reply = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.read(&mut buffer) {
                Ok(0) => return Ok(reply),
                Ok(count) => reply.extend_from_slice(&buffer[..count]),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the end of the helper, which kills the program if it still runs. Returns its messages.
    pub(super) fn end(mut self) -> String {
        let _ = self.socket.shutdown(Shutdown::Both);
        let deadline = Instant::now() + ENDING;
        let mut wait = Duration::from_micros(200);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(20));
        }
        let mut text = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(1 << 14).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}
