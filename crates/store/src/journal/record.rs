//! What a journal holds.

use rloom_core::{Episode, PolicyVersion, Task, Ticket};
use rloom_env::Turn;
use serde::{Deserialize, Serialize};

/// One thing that must not be lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// An episode is generated and scored.
    Episode {
        /// Its group.
        ticket: Ticket,
        /// Its place in the group.
        sample: u32,
        /// The episode.
        episode: Episode,
    },
    /// An episode was cut off in the middle. It takes the place of an earlier such record of the same sample.
    Partial {
        /// Its group.
        ticket: Ticket,
        /// Its place in the group.
        sample: u32,
        /// What there is of it.
        partial: Partial,
    },
    /// A group is complete: all its episodes have records before this one.
    Ready {
        /// The group.
        ticket: Ticket,
        /// What was attempted.
        task: Task,
        /// The oldest policy version among its tokens.
        oldest: PolicyVersion,
    },
    /// A complete group was replaced, because nothing can be learned from it.
    Filtered {
        /// The group.
        ticket: Ticket,
    },
    /// A group could not be generated or scored, and was replaced.
    Failed {
        /// The group.
        ticket: Ticket,
        /// Why.
        reason: String,
    },
    /// A batch was cut: these groups are trained on next.
    Cut {
        /// The batch's number in its stage.
        batch: u64,
        /// Its groups, in training order.
        tickets: Vec<Ticket>,
    },
    /// A batch is trained.
    Trained {
        /// The batch's number in its stage.
        batch: u64,
        /// CRC-32C of the policy's parameters after it.
        weights: u32,
    },
    /// The held-out evaluation of a version is done.
    Evaluated {
        /// The version.
        version: PolicyVersion,
    },
    /// The checkpoint of a version is durable.
    Checkpointed {
        /// The version.
        version: PolicyVersion,
    },
    /// The run was asked to finish its batch, save and end.
    StopRequested,
    /// It died before it had done so, and was resumed.
    StopWithdrawn,
    /// Ends the copies that a segment begins with.
    Head,
}

impl Record {
    /// Whether it must be on the disk before anything follows from it. Training changes the weights by what a cut
    /// says; other records that a power failure takes are made again.
    pub(super) fn is_synced(&self) -> bool {
        matches!(self, Self::Cut { .. })
    }
}

/// An episode that was cut off: what was chosen of it so far.
///
/// The conversation is replayed from the turns; what the environment said is not needed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Partial {
    /// Finished turns, then the unfinished one, whose stop reason is
    /// [`Aborted`](rloom_core::StopReason::Aborted).
    pub turns: Vec<Turn>,
}
