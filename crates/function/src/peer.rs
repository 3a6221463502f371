use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::HostedCommand;

/// Environment variable with the path of the Unix socket on which a caller serves its functions.
pub const CALLER_VARIABLE: &str = "RLOOM_CALLER";

/// Shortest time that a worker has to get ready: imports of large libraries take long.
pub(crate) const START: Duration = Duration::from_mins(1);

/// Use of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Judges completions.
    Reward {
        /// One call judges all completions of a group.
        group: bool,
    },
    /// Plays episodes.
    Environment,
    /// Computes the advantages of a batch.
    Advantage,
    /// Decides if a group is trained on.
    Filter,
    /// Computes the loss of a micro-batch and its derivatives.
    Loss,
    /// Serves tools that a policy calls.
    Tools,
}

/// The other side of a pool's connections.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Name in messages.
    pub(crate) name: String,
    /// Name that the worker loads.
    pub(crate) function: String,
    pub(crate) role: Role,
    /// Shortest time that a worker has to get ready.
    pub(crate) start: Duration,
    pub(crate) transport: Transport,
}

/// The way to reach a worker.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    /// A child process that reads requests from stdin and writes answers to stdout.
    Process {
        program: OsString,
        arguments: Vec<OsString>,
        /// Line that precedes the first request.
        prelude: Option<String>,
    },
    /// A connection to a process that serves functions on a Unix socket.
    Socket(PathBuf),
}

impl Peer {
    /// A program that speaks the protocol over stdin and stdout; `command` is the program and its arguments.
    pub fn command(command: &[String], role: Role) -> Self {
        let (program, arguments) =
            command.split_first().map_or((OsString::new(), Vec::new()), |(first, rest)| {
                (first.into(), rest.iter().map(OsString::from).collect())
            });
        let name = format!("`{}`", command.join(" "));
        let transport = Transport::Process { program, arguments, prelude: None };
        Self { function: String::new(), name, role, start: START, transport }
    }

    /// The program of a worker on another machine, and the line that precedes its first request; `None` for functions of the
    /// caller's process.
    pub(crate) fn hosted(&self, worker: usize) -> Option<(HostedCommand, Option<&str>)> {
        let Transport::Process { program, arguments, prelude } = &self.transport else { return None };
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        // Files of a program that are given by relative paths.
        let is_here = |argument: &OsString| Path::new(argument).is_relative() && Path::new(argument).exists();
        let needs_directory = prelude.is_none() && arguments.iter().any(is_here);
        let command = HostedCommand {
            program: text(program),
            arguments: arguments.iter().map(text).collect(),
            directory: needs_directory.then(|| std::env::current_dir().ok()).flatten(),
            worker,
        };
        Some((command, prelude.as_deref()))
    }

    /// A function that a process serves on a Unix socket.
    pub fn socket(function: &str, socket: PathBuf, role: Role) -> Self {
        let name = format!("the caller's function `{function}`");
        let transport = Transport::Socket(socket);
        Self { function: function.to_owned(), name, role, start: START, transport }
    }
}
