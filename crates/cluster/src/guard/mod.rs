//! A guard: the parent of one program, which ends with everything it started when the daemon is gone.
//!
//! Standard input and output of a relayed program are a socket, which the guard has as its own standard output until the
//! program has it.

mod children;
mod memory;
mod program;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

pub use program::run as become_program;

use crate::exit::Exit;
use crate::lines::{self, Line, Lines};
use crate::message::{GuardCommand, GuardEvent};
use rloom_core::Program;

/// Name of the command that runs a guard.
pub(crate) const COMMAND: &str = "guard";

/// Runs a guard. Its standard input is one end of a socket pair, over which the daemon sends commands and receives
/// reports; its standard error is that of the program. Must be called from a thread that lives as long as the process.
pub fn run(this: &Program) -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut commands = Lines::new(socket.try_clone()?);
    let Line::Value(GuardCommand::Start { spec, is_relayed, lease_ms }) = commands.next(None) else {
        return Ok(()); // The daemon died at once.
    };
    children::adopt(&spec.role);
    let oom_kills = memory::oom_kills();
    let (child, report) = match program::start(this, &spec, is_relayed) {
        Ok(started) => started,
        Err(reason) => return lines::write(&socket, &GuardEvent::NotStarted { reason }),
    };
    if is_relayed {
        // The stream ends when the program closes it, not when the guard ends.
        nix::unistd::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    }
    let group = Arc::new(Group::new(&child));
    let obeying = Arc::clone(&group);
    let obey = move || obeying.obey(commands, Duration::from_millis(lease_ms));
    std::thread::Builder::new().name("commands".to_owned()).spawn(obey)?;
    if let Some(reason) = program::failure(report) {
        group.end(child);
        return lines::write(&socket, &GuardEvent::NotStarted { reason });
    }
    let started = lines::write(&socket, &GuardEvent::Started { pid: group.pid.as_raw() });
    let mut exit = group.end(child);
    exit.out_of_memory = memory::is_cause(&exit, oom_kills, memory::oom_kills());
    started.and(lines::write(&socket, &GuardEvent::Exited(exit)))
}

/// The process group of a program.
struct Group {
    pid: Pid,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    /// The program has not been waited for, so its process id is its own.
    is_valid: bool,
    /// The daemon asked it to stop, is gone or is silent.
    is_stopped: bool,
}

impl Group {
    fn new(child: &Child) -> Self {
        let state = State { is_valid: true, is_stopped: false };
        Self { pid: Pid::from_raw(child.id() as i32), state: Mutex::new(state) }
    }

    /// Follows the commands of the daemon. Stops the program without it: a daemon that is stopped or hangs cannot end the
    /// program when the lease of the controller is over.
    fn obey(&self, mut commands: Lines, lease: Duration) {
        let mut killed_at: Option<Instant> = None;
        let mut heard = Instant::now();
        loop {
            let left = killed_at.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.stop(Signal::SIGKILL);
                killed_at = None;
                continue;
            }
            let command = commands.next(Some(left.unwrap_or(lease).min(lease)));
            // Beats that arrived while this process was stopped have been read before the silence is judged.
            if !matches!(command, Line::TimedOut) {
                heard = Instant::now();
            } else if heard.elapsed() >= lease {
                self.stop(Signal::SIGKILL);
                return;
            }
            match command {
                Line::Value(GuardCommand::Stop { grace_ms: 0 }) => self.stop(Signal::SIGKILL),
                Line::Value(GuardCommand::Stop { grace_ms }) => {
                    self.stop(Signal::SIGTERM);
                    killed_at = Some(Instant::now() + Duration::from_millis(grace_ms));
                }
                Line::Value(GuardCommand::Signal { signal }) => {
                    if let (Ok(signal), true) = (Signal::try_from(signal), self.state().is_valid) {
                        let _ = kill(self.pid, signal);
                    }
                }
                Line::Value(GuardCommand::Beat) | Line::TimedOut => {}
                Line::Closed | Line::Value(GuardCommand::Start { .. }) => {
                    self.stop(Signal::SIGKILL);
                    return;
                }
            }
        }
    }

    /// Signals the group because the daemon wants it to end.
    fn stop(&self, signal: Signal) {
        let mut state = self.state();
        if state.is_valid {
            state.is_stopped = true;
            let _ = killpg(self.pid, signal);
            if signal == Signal::SIGTERM {
                // A stopped process would not notice.
                let _ = killpg(self.pid, Signal::SIGCONT);
            }
        }
    }

    /// Waits for the end of the program, then kills what it left.
    fn end(&self, mut child: Child) -> Exit {
        let (status, stopped) = loop {
            children::wait_for(self.pid);
            let mut state = self.state();
            if cfg!(target_os = "linux") {
                // The program has ended and was not waited for: no other group can have its number.
                let _ = killpg(self.pid, Signal::SIGKILL);
            }
            let status = child.try_wait();
            if !matches!(status, Ok(None)) {
                if !cfg!(target_os = "linux") {
                    let _ = killpg(self.pid, Signal::SIGKILL);
                }
                state.is_valid = false;
                break (status.ok().flatten(), state.is_stopped);
            }
        };
        children::kill_all();
        Exit {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            stopped,
            ..Exit::default()
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
