//! The local launcher: a daemon as a child process.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Options, TOKEN_VARIABLE, Token, WireError};

use crate::daemon::ROLE;
use crate::error::ClusterError;
use crate::exit::Exit;
use crate::listener::NodeListener;
use crate::relay::Arrivals;
use crate::tail::Tail;
use rloom_core::Program;

/// Interval at which a starting or ending daemon is looked at.
const INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for a daemon to end by itself; it waits up to 10 s for its processes.
const ENDING: Duration = Duration::from_secs(15);
/// Wait for the exit of a daemon whose connection has ended.
const EXITING: Duration = Duration::from_secs(1);

/// Settings of the daemon of this machine.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The binary with the command `node`.
    pub program: Program,
    /// Limits of the connection.
    pub wire: Options,
    /// Longest start of the daemon.
    pub timeout: Duration,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { program: Program::current(), wire: Options::default(), timeout: Duration::from_mins(1) }
    }
}

/// A daemon that this process started.
#[derive(Debug)]
pub(crate) struct LocalDaemon {
    child: Mutex<Child>,
    output: Tail,
    /// Accepts the connections of its relays.
    listener: NodeListener,
}

impl LocalDaemon {
    /// Starts a daemon with a new token and waits for its connection.
    pub(crate) fn launch(options: &LocalOptions) -> Result<(Connection, Self), ClusterError> {
        let token = Token::random()?;
        let listener = NodeListener::bind("127.0.0.1:0", token.clone(), options.wire)?;
        let mut command = options.program.command(ROLE);
        command.arg("--controller").arg(listener.address().to_string());
        // The index of a scheduler is that of another daemon. Without this controller, there is nothing to wait for.
        command.args(["--index", "0", "--wait", "0"]);
        command.env(TOKEN_VARIABLE, token.reveal());
        // A group of its own: Ctrl-C is for the controller to act on.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let launched = |source| ClusterError::Launch { source };
        let mut child = command.spawn().map_err(launched)?;
        let output = match child.stderr.take().map(|pipe| Tail::follow(pipe, None)) {
            Some(Ok(output)) => output,
            failed => {
                let _ = child.kill().and_then(|()| child.wait());
                let lost = std::io::ErrorKind::BrokenPipe.into();
                return Err(launched(failed.and_then(Result::err).unwrap_or(lost)));
            }
        };
        let mut daemon = Self { child: Mutex::new(child), output, listener };
        match daemon.accept(options.timeout) {
            Ok(connection) => Ok((connection, daemon)),
            Err(error) => {
                daemon.kill();
                Err(error)
            }
        }
    }

    /// The connections of its relays.
    pub(crate) fn arrivals(&self) -> Arc<Arrivals> {
        self.listener.arrivals()
    }

    fn accept(&self, timeout: Duration) -> Result<Connection, ClusterError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.listener.connection(Instant::now() + INTERVAL) {
                Ok(connection) => return Ok(connection),
                Err(WireError::NobodyConnected { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(status) = self.status() {
                return Err(ClusterError::DaemonEnded { exit: self.exit(status) });
            }
            if Instant::now() >= deadline {
                return Err(ClusterError::DaemonSilent { timeout });
            }
        }
    }

    /// The end of a daemon whose connection has ended; `None` if it still runs.
    pub(crate) fn ended(&self) -> Option<Exit> {
        self.wait(EXITING).map(|status| self.exit(status))
    }

    /// Waits for the daemon to end its processes and itself; kills it if that takes too long.
    pub(crate) fn end(&mut self) {
        if self.wait(ENDING).is_none() {
            self.kill();
        }
    }

    fn kill(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill().and_then(|()| child.wait());
    }

    fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.status() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn status(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait().ok().flatten()
    }

    fn exit(&self, status: ExitStatus) -> Exit {
        let output = self.output.last_text(EXITING);
        Exit { code: status.code(), signal: status.signal(), output, ..Exit::default() }
    }
}
