//! The daemon's side of a guard.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rloom_wire::TOKEN_VARIABLE;

use crate::exit::Exit;
use crate::guard;
use crate::lines::{self, Line, Lines};
use crate::log_file::LogFile;
use crate::message::{GuardCommand, GuardEvent, NodeEvent};
use crate::spec::ProcessSpec;
use crate::tail::Tail;
use rloom_core::Program;

/// Time by which a guard's lease is longer than that of the daemon, which ends its processes itself if it can.
const LEASE_BEYOND: Duration = Duration::from_secs(2);
/// Wait for the rest of the output after the exit.
const REST: Duration = Duration::from_secs(1);

/// A process that a guard started. The guard kills it when this is dropped.
#[derive(Debug)]
pub(crate) struct Guarded {
    socket: UnixStream,
    output: Tail,
}

impl Guarded {
    /// Starts a guard and its program, whose standard input and output are `stdio` if there is one. `report` is called in a
    /// thread; its last event is `NotStarted` or `Exited`. The guard expects beats within the lease.
    pub(crate) fn start(
        this: &Program,
        spec: ProcessSpec,
        stdio: Option<OwnedFd>,
        lease: Duration,
        report: impl Fn(NodeEvent) + Send + 'static,
    ) -> io::Result<Self> {
        let (socket, end_of_guard) = UnixStream::pair()?;
        let mut command = this.command(guard::COMMAND);
        let is_relayed = stdio.is_some();
        command.stdin(OwnedFd::from(end_of_guard)).stdout(stdio.map_or_else(Stdio::null, Stdio::from));
        command.stderr(Stdio::piped());
        let mut child = command.env_remove(TOKEN_VARIABLE).process_group(0).spawn()?;
        // Closes this process's copy of the guard's end of the socket pair.
        drop(command);
        let log = spec.log.clone();
        let watch = || {
            let pipe = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
            let output = Tail::follow(pipe, log.as_deref().map(LogFile::append))?;
            let lease_ms = (lease + LEASE_BEYOND).as_millis() as u64;
            lines::write(&socket, &GuardCommand::Start { spec, is_relayed, lease_ms })?;
            Ok::<_, io::Error>((output, Lines::new(socket.try_clone()?)))
        };
        let (output, events) = match watch() {
            Ok(watched) => watched,
            Err(error) => {
                drop(socket);
                let _ = child.wait();
                return Err(error);
            }
        };
        let followed = output.clone();
        let follow = move || follow(child, events, &followed, log, report);
        std::thread::Builder::new().name("guarded".to_owned()).spawn(follow)?;
        Ok(Self { socket, output })
    }

    pub(crate) fn send(&self, command: &GuardCommand) -> io::Result<()> {
        lines::write(&self.socket, command)
    }

    /// Shows the guard that the daemon watches its controller. A guard that reads nothing is left out: it never blocks the
    /// daemon, and commands keep their room in the socket.
    pub(crate) fn beat(&self) {
        let mut events = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        let is_writable = poll(&mut events, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        if is_writable {
            // One that has ended is reported by its thread.
            let _ = self.send(&GuardCommand::Beat);
        }
    }

    /// The end of the output so far.
    pub(crate) fn output(&self) -> String {
        self.output.text()
    }

    /// Has the guard kill the group.
    pub(crate) fn abandon(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Reports the events of a guard until its end.
fn follow(
    mut guard: Child,
    mut events: Lines,
    output: &Tail,
    log: Option<PathBuf>,
    report: impl Fn(NodeEvent),
) {
    let mut group = None;
    let last = loop {
        match events.next(None) {
            Line::Value(GuardEvent::Started { pid }) => {
                group = Some(Pid::from_raw(pid));
                report(NodeEvent::Started { pid });
            }
            Line::Value(GuardEvent::NotStarted { reason }) => break NodeEvent::NotStarted { reason },
            Line::Value(GuardEvent::Exited(exit)) => break NodeEvent::Exited(exit),
            Line::TimedOut => {}
            Line::Closed => break without_guard(group),
        }
    };
    let _ = guard.wait();
    report(match last {
        NodeEvent::Exited(exit) => NodeEvent::Exited(Exit { output: output.last_text(REST), log, ..exit }),
        last => last,
    });
}

/// Kills the group of a guard that died: its program is dead by now, the children of that may not be.
fn without_guard(group: Option<Pid>) -> NodeEvent {
    let Some(group) = group else {
        return NodeEvent::NotStarted { reason: "its guard has ended".to_owned() };
    };
    let _ = killpg(group, Signal::SIGKILL);
    NodeEvent::Exited(Exit { signal: Some(Signal::SIGKILL as i32), ..Exit::default() })
}
