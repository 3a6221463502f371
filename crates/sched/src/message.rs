use rloom_core::{PolicyVersion, Ticket};
use serde::{Deserialize, Serialize};

/// How a ticket ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// In a batch that was trained and published.
    Trained,
    /// Taken out before training, its rewards carry nothing.
    Filtered,
    /// Too old for any batch that is still to be cut.
    Stale,
    /// Could not be generated or scored.
    Failed,
    /// Alive when the last batch of the stage was cut.
    Surplus,
}

/// What happened in the world. Groups may be reported at any time, also beside training, evaluation and saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The driver is ready for commands: first of all events, also after a resume. A request to stop that comes before
    /// it is heeded then.
    Begin,
    /// A group is generated and scored.
    GroupReady {
        /// Which.
        ticket: Ticket,
        /// The oldest version among its policy tokens; the current one when it has none.
        oldest: PolicyVersion,
    },
    /// A group was taken out before training.
    GroupFiltered(Ticket),
    /// A group could not be generated or scored.
    GroupFailed(Ticket),
    /// The batch that was cut is trained and its weights are published.
    BatchTrained,
    /// The evaluation that was asked for is done.
    Evaluated,
    /// The checkpoint that was asked for is durable.
    Checkpointed,
    /// Finish the batch under way, save, and end.
    StopRequested,
    /// Go on after all, also when the stage has ended on request: the history of a run that was stopped and resumed is
    /// told as one.
    StopWithdrawn,
}

/// What the driver is to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Generate and score a group; again for one that was put off, or that was running when the process died.
    StartGroup(Ticket),
    /// Cancel a running group and forget what it has: it will be started again, under a later version.
    PutOff(Ticket),
    /// Train on these groups, publish, then report [`Event::BatchTrained`].
    TrainBatch {
        /// The batch's number, from 0: the version that it starts from.
        batch: u64,
        /// Its groups in training order.
        tickets: Vec<Ticket>,
    },
    /// A ticket ended without being trained: it is cancelled if it runs, and what is kept of it can go.
    Drop(Ticket, End),
    /// Evaluate this version, then report [`Event::Evaluated`].
    Evaluate(PolicyVersion),
    /// Save this version with [`Scheduler::state`](crate::Scheduler::state) as it is now, then report
    /// [`Event::Checkpointed`].
    Checkpoint(PolicyVersion),
    /// The stage is over. Every ticket has ended, or the stage was asked to stop and the checkpoint has the others.
    Finish,
}
