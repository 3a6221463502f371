use std::fmt;
use std::path::PathBuf;

use rloom_sandbox::SandboxError;
use rloom_serve::{ServeError, SessionLimit};

/// Failure of an agent, or of what serves it.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum AgentError {
    /// The server or a session cannot start.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Serve(#[from] ServeError),
    /// The operating system refused a thread or a runtime.
    #[error("cannot start the server of the agents: {message}")]
    Server {
        /// Explanation of the operating system.
        message: String,
    },
    /// The file with the address for agents that lease cannot be written.
    #[error("cannot write {}: {message}", path.display())]
    LeaseFile {
        /// The file.
        path: PathBuf,
        /// Explanation of the operating system.
        message: String,
    },
    /// Agents that lease outside of a run have no file with the key.
    #[error(
        "agents that lease episodes outside of a run need their key in the environment variable {variable}"
    )]
    NoLeaseKey {
        /// The variable.
        variable: &'static str,
    },
    /// Several settings of agents that lease in one run.
    #[error("the stages and the evaluation of a run have different settings of agents that lease")]
    SeveralLeases,
    /// The program did not start.
    #[error("the agent `{program}` cannot be started: {reason}")]
    Start {
        /// The program.
        program: String,
        /// Explanation of the operating system.
        reason: String,
    },
    /// The sandbox failed.
    #[error("the agent's sandbox: {0}")]
    #[diagnostic(forward(0))]
    Sandbox(#[from] SandboxError),
    /// The server cannot be reached from the sandbox.
    #[error("cannot serve agents in the sandbox: {message}")]
    Relay {
        /// Explanation of the operating system.
        message: String,
    },
    /// A file of the sandbox that cannot be read.
    #[error("cannot read {} for the sandbox of the agents: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Explanation of the operating system.
        message: String,
    },
    /// The task does not fit into an environment variable.
    #[error("the task has {bytes} bytes in JSON, more than the {limit} of an environment variable")]
    TaskTooLarge {
        /// Its size.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },
    /// The program failed.
    #[error("the agent {status}{output}")]
    Exited {
        /// Its end as a verb phrase.
        status: String,
        /// Its output.
        output: Output,
    },
    /// The agent reported a failure.
    #[error("the agent's session failed: {message}{output}")]
    Reported {
        /// Explanation.
        message: String,
        /// Its output.
        output: Output,
    },
    /// A limit of the session was reached.
    #[error("the agent reached a limit: {limit}{output}")]
    Limit {
        /// The limit.
        limit: SessionLimit,
        /// Its output.
        output: Output,
    },
    /// The agent ended without a call of the policy.
    #[error("the agent ended without a call of the policy{output}")]
    NoCall {
        /// Its output.
        output: Output,
    },
    /// The agent ended without a reward, and the recipe's reward has the component `environment`.
    #[error("the agent ended without reporting a reward, which the component `environment` adds up{output}")]
    NoReward {
        /// Its output.
        output: Output,
    },
    /// The server of the agents has ended.
    #[error("the server of the agents has ended")]
    ServerEnded,
}

impl AgentError {
    /// True if another attempt may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Start { .. } | Self::TaskTooLarge { .. } | Self::ServerEnded)
    }

    /// The error with the output of the program, if it concerns one.
    pub(crate) fn with_output(mut self, quoted: Output) -> Self {
        match &mut self {
            Self::Exited { output, .. }
            | Self::Reported { output, .. }
            | Self::Limit { output, .. }
            | Self::NoCall { output }
            | Self::NoReward { output } => *output = quoted,
            _ => {}
        }
        self
    }
}

/// The end of a program's output, and its log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The last lines.
    pub lines: String,
    /// The log, if it is kept.
    pub log: Option<PathBuf>,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(log) = &self.log {
            write!(f, " (log: {})", log.display())?;
        }
        if !self.lines.is_empty() {
            write!(f, "; its output ends with:\n{}", self.lines)?;
        }
        Ok(())
    }
}
