use std::fmt;
use std::time::Duration;

use crate::Tier;

/// A failure of the machine, not of the program.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum SandboxError {
    /// A machine that cannot protect itself from programs.
    #[error("this machine has no sandbox for programs: {}", list(reasons))]
    #[diagnostic(help(
        "allow user namespaces, or use Linux 5.13 or later with Landlock; on a disposable machine, `sandbox = \"none\"` \
         runs programs without protection"
    ))]
    Unavailable {
        /// Reason for each tier that was tried.
        reasons: Vec<Unavailable>,
    },
    /// A name of a file that is not in the working folder.
    #[error("`{name}` is not the name of a file in the working folder")]
    FileName {
        /// The name.
        name: String,
    },
    /// A program that the sandbox cannot start.
    #[error("cannot start {program:?} in the sandbox: {reason}")]
    #[diagnostic(help("install the program below /usr, or name its folder in `readable` next to `sandbox`"))]
    NotStarted {
        /// The program.
        program: String,
        /// The reason.
        reason: String,
    },
    /// A helper process that failed.
    #[error("the sandbox failed: {reason}")]
    Failed {
        /// The reason.
        reason: String,
    },
    /// A server that did not run a program.
    #[error("the sandbox server at {url} failed: {problem}")]
    Server {
        /// The address.
        url: String,
        /// What happened.
        problem: String,
        /// True if another attempt may succeed.
        may_pass: bool,
    },
    /// A program that was stopped.
    #[error("the program was stopped")]
    Stopped,
    /// A helper process or a server that did not answer in time.
    #[error("the sandbox did not answer within {} s", timeout.as_secs_f64())]
    TimedOut {
        /// The timeout.
        timeout: Duration,
    },
}

impl SandboxError {
    /// True if another attempt may succeed. One that used up its time is not repeated.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Server { may_pass: true, .. })
    }
}

/// A tier that a machine does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// The tier.
    pub tier: Tier,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.tier, self.reason)
    }
}

fn list(reasons: &[Unavailable]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
