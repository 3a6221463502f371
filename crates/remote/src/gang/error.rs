use std::sync::Arc;

use miette::Diagnostic;
use rloom_cluster::ClusterError;
use rloom_wire::{FrameError, WireError};

use super::launch::RankEnd;

/// Failure of a gang. It has ended, unless [`is_answer`](Self::is_answer) is true.
#[derive(Debug, Clone, thiserror::Error, Diagnostic)]
#[non_exhaustive]
pub enum GangError {
    /// A rank could not be started.
    #[error("could not start rank {rank}: {source}")]
    Start {
        /// The rank.
        rank: usize,
        /// Error of the launcher.
        source: Arc<std::io::Error>,
    },
    /// The machine of rank 0 does not tell its address.
    #[error("the address of rank 0 is unknown: {source}")]
    Address {
        /// Error of the operating system.
        source: Arc<std::io::Error>,
    },
    /// A rank ended.
    #[error("rank {rank} ended ({}) {during}{}", end.status, quoted(stderr))]
    Died {
        /// The rank.
        rank: usize,
        /// Exit status or signal.
        end: RankEnd,
        /// Phase of the rank in its last beat.
        during: String,
        /// End of its error output.
        stderr: String,
    },
    /// No rank reported progress within the deadline.
    #[error("no rank reported progress for {seconds} s; {phases}{}", quoted(stderr))]
    Hangs {
        /// The deadline.
        seconds: u64,
        /// Ranks without an answer, each with the phase in its last beat.
        phases: String,
        /// End of the error output of all ranks, with their stacks.
        stderr: String,
    },
    /// A rank failed in a job.
    #[error("rank {rank} failed in phase `{phase}`: {message}{}", quoted(traceback))]
    Rank {
        /// The rank.
        rank: usize,
        /// Phase of the rank.
        phase: String,
        /// Kind of the error, as the rank names it.
        kind: String,
        /// Its message.
        message: String,
        /// Python's traceback.
        traceback: String,
        /// The rank's advice.
        #[help]
        hint: Option<String>,
    },
    /// An answer that does not have the expected form.
    #[error("rank {rank} gave an answer that cannot be read: {reason}")]
    Answer {
        /// The rank.
        rank: usize,
        /// Reason.
        reason: String,
    },
    /// The ranks disagree on a number that has to be the same on all of them.
    #[error("the ranks disagree on the {what}: {values}")]
    Disagreement {
        /// Name of the number.
        what: &'static str,
        /// Their values, by rank.
        values: String,
    },
    /// The trainer has ended.
    #[error("the trainer has ended")]
    ShutDown,
    /// A frame could not be built.
    #[error(transparent)]
    Frame(#[from] Arc<FrameError>),
    /// The connection to a rank failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Wire(#[from] WireError),
}

impl GangError {
    /// True if ranks were killed, their connections broke or their node was lost: others may succeed in their place. False for
    /// ranks that ended by themselves or refused the job, which they would do again.
    pub fn may_succeed_again(&self) -> bool {
        match self {
            Self::Died { end, .. } => end.was_killed,
            Self::Wire(WireError::Lease { .. } | WireError::Closed { .. } | WireError::Cut { .. }) => true,
            Self::Start { source, .. } | Self::Address { source } => is_loss_of_node(source),
            _ => false,
        }
    }

    /// True if the ranks are still in step: all of them gave up the same job.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Rank { kind, .. } if kind != "lost")
    }
}

/// True if a node was lost while it started a rank. Another daemon may take its place.
fn is_loss_of_node(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<ClusterError>());
    error.is_some_and(|error| matches!(error, ClusterError::NodeLost { .. } | ClusterError::NodeEnded { .. }))
}

fn quoted(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!("\n{text}") }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn ranks_may_start_again_on_a_node_that_takes_the_place_of_a_lost_one() {
        let start = |source: io::Error| GangError::Start { rank: 1, source: Arc::new(source) };
        let lost = || ClusterError::NodeLost { source: WireError::ClosedHere { peer: "node 1".to_owned() } };
        assert!(start(io::Error::other(lost())).may_succeed_again());
        assert!(GangError::Address { source: Arc::new(io::Error::other(lost())) }.may_succeed_again());
        let timeout = std::time::Duration::from_secs(1);
        let missing = ClusterError::NotReplaced { machine: 1, timeout };
        for error in [io::Error::other(missing), io::ErrorKind::NotFound.into()] {
            assert!(!start(error).may_succeed_again());
        }
    }
}
