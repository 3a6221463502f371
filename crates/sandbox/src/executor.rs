use std::time::Instant;

use crate::{Execution, Outcome, Sandbox, SandboxError, Server};

/// Where programs run.
#[derive(Debug, Clone)]
pub enum Executor {
    /// A sandbox of this machine.
    Machine(Sandbox),
    /// A server, which has its own protection.
    Server(Server),
}

impl Executor {
    /// Protection of the machine: that of a sandbox, or `server`.
    pub fn protection(&self) -> &'static str {
        match self {
            Self::Machine(sandbox) => sandbox.protection(),
            Self::Server(_) => "server",
        }
    }

    /// Runs a program to its end. The answer of a server is awaited until the deadline at most.
    pub fn run(&self, execution: &Execution, deadline: Instant) -> Result<Outcome, SandboxError> {
        match self {
            Self::Machine(sandbox) => sandbox.run(execution),
            Self::Server(server) => server.run(execution, deadline),
        }
    }
}

impl From<Sandbox> for Executor {
    fn from(sandbox: Sandbox) -> Self {
        Self::Machine(sandbox)
    }
}

impl From<Server> for Executor {
    fn from(server: Server) -> Self {
        Self::Server(server)
    }
}
