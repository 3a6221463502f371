use rloom_core::{PolicyVersion, Ticket};
use serde::{Deserialize, Serialize};

use crate::ReusedGroup;

/// Final outcome of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Part of a batch that was trained and published.
    Trained,
    /// Replaced before training by a filter, for example because its rewards are all equal.
    Filtered,
    /// Too old for every batch still to be cut.
    Stale,
    /// Could not be generated or scored.
    Failed,
    /// Still open when the last batch of the stage was cut.
    Surplus,
}

/// Input of the scheduler. Group events may arrive at any time, including during training, evaluation and checkpointing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// The driver accepts commands. The first event of every attempt, except that a stop request may precede it; that
    /// request then takes effect here.
    Begin,
    /// A group was generated and scored.
    GroupReady {
        /// Ticket of the group.
        ticket: Ticket,
        /// The oldest version among its policy tokens; the current version when it has none.
        oldest: PolicyVersion,
    },
    /// A group was removed before training.
    GroupFiltered(Ticket),
    /// A group could not be generated or scored.
    GroupFailed(Ticket),
    /// The batch in flight was trained and its weights were published.
    BatchTrained,
    /// The requested evaluation finished.
    Evaluated,
    /// The requested checkpoint is durable.
    Checkpointed,
    /// Finish the current batch, save a checkpoint and end the stage.
    StopRequested,
    /// Cancels a stop request, even if the stage has already ended because of it. Used to replay the history of a run
    /// that was stopped and resumed as one sequence of events.
    StopWithdrawn,
}

/// Output of the scheduler, to be executed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchedulerCommand {
    /// Generate and score a group. Issued again for a group that was deferred, or that was running when the process
    /// died.
    StartGroup(Ticket),
    /// Cancel a running group and discard its episodes. It starts again later, with a newer version.
    Defer(Ticket),
    /// Train on these groups, publish the weights, then send [`SchedulerEvent::BatchTrained`].
    TrainBatch {
        /// Number of the batch, from 0: the version that training starts from.
        batch: u64,
        /// Its groups in training order.
        tickets: Vec<Ticket>,
        /// Groups of earlier batches that it also trains on, after the others; by ticket.
        reused: Vec<ReusedGroup>,
    },
    /// The ticket ended without being trained on: cancel it if it is running and discard its data.
    Drop(Ticket, End),
    /// Evaluate this version, then send [`SchedulerEvent::Evaluated`].
    Evaluate(PolicyVersion),
    /// Save this version together with the current [`Scheduler::state`](crate::Scheduler::state), then send
    /// [`SchedulerEvent::Checkpointed`].
    Checkpoint(PolicyVersion),
    /// The stage is over. Every ticket has ended, or a stop was requested and the checkpoint contains the open groups.
    Finish,
}
