use std::fmt;

use rloom_core::Ticket;

/// Invalid settings, an invalid saved state, or an event that contradicts the state (a bug in the driver).
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum SchedError {
    /// The group is not running.
    #[error("unexpected event for group {} ({event}): the group is not running", .ticket.0)]
    NotRunning {
        /// Ticket of the group.
        ticket: Ticket,
        /// Event received for it.
        event: GroupEvent,
    },
    /// Work was reported as complete that was not requested.
    #[error("unexpected completion event: no {0} is in flight")]
    NotInFlight(WorkKind),
    /// A second [`SchedulerEvent::Begin`](crate::SchedulerEvent::Begin).
    #[error("unexpected event: the stage has already begun")]
    AlreadyBegun,
    /// A group needs a replacement, but versions are pinned.
    #[error("group {} {event}, and a replacement would not run with its pinned policy version", .ticket.0)]
    #[diagnostic(help(
        "set `pin_version = false`, or stop on failures and use no filter that replaces groups"
    ))]
    Pinned {
        /// Ticket of the group.
        ticket: Ticket,
        /// Event received for it.
        event: GroupEvent,
    },
    /// A batch without groups.
    #[error("a batch needs at least one group")]
    EmptyBatch,
    /// Pinned versions conflict with another setting.
    #[error("pinning groups to policy versions requires {0}")]
    #[diagnostic(help("set `pin_version = false`, or change that setting"))]
    PinRequires(Requirement),
    /// Deferring stragglers conflicts with another setting.
    #[error("deferring stragglers requires {0}")]
    #[diagnostic(help("set `stragglers = \"drop\"`, or change that setting"))]
    DeferRequires(Requirement),
    /// Waiting for stragglers conflicts with another setting.
    #[error("waiting for stragglers requires {0}")]
    WaitRequires(Requirement),
    /// Weights of quotas that are not usable.
    #[error("the quotas need finite weights that are not negative, and one above 0")]
    Quotas,
    /// A saved state that contradicts itself or the settings.
    #[error("invalid scheduler state: {0}")]
    #[diagnostic(help("resume from another checkpoint, with the settings it was saved with"))]
    InvalidState(#[from] StateDefect),
}

/// Events that end the generation of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupEvent {
    /// Generated and scored.
    Ready,
    /// Filtered out before training.
    Filtered,
    /// Could not be generated or scored.
    Failed,
}

impl fmt::Display for GroupEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Filtered => "was filtered",
            Self::Failed => "failed",
        })
    }
}

/// Work that the scheduler requests one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// Training and publishing a batch.
    Training,
    /// Evaluating a version.
    Evaluation,
    /// Saving a version.
    Checkpoint,
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint",
        })
    }
}

/// Settings that another setting depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// [`CutOrder::Ticket`](crate::CutOrder::Ticket).
    TicketOrder,
    /// [`CutOrder::Completion`](crate::CutOrder::Completion).
    CompletionOrder,
    /// `oversample` of 0.
    NoOversampling,
    /// `oversample` above 0.
    Oversampling,
    /// `max_staleness` of 0.
    NoStaleness,
    /// `max_staleness` above 0.
    Staleness,
    /// No quotas of domains.
    NoQuotas,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TicketOrder => "`cut_order = \"ticket\"`",
            Self::CompletionOrder => "`cut_order = \"completion\"`",
            Self::NoOversampling => "`oversample = 0`",
            Self::Oversampling => "`oversample` above 0",
            Self::NoStaleness => "`max_staleness = 0`",
            Self::Staleness => "`max_staleness` above 0",
            Self::NoQuotas => "that there are no `domains.quotas`",
        })
    }
}

/// Contradictions in a saved [`SchedulerState`](crate::SchedulerState).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateDefect {
    /// Open groups are not in ascending ticket order.
    #[error("tickets are not in ascending order")]
    TicketOrder,
    /// A ticket at or above `next_ticket`.
    #[error("group {} has a ticket that was not issued", .0.0)]
    TicketNotIssued(Ticket),
    /// A group that started with a later version than the state's.
    #[error("group {} started with an unknown policy version", .0.0)]
    UnknownVersion(Ticket),
    /// Completion indices that repeat or exceed the number of completions.
    #[error("the completion order of ready groups is inconsistent")]
    CompletionOrder,
    /// A deferred group, but the settings defer none.
    #[error("group {} is deferred, but `stragglers` is not `\"defer\"`", .0.0)]
    Deferred(Ticket),
    /// The batch in flight has another size than the settings.
    #[error("the batch in flight has {found} groups instead of {expected}")]
    BatchSize {
        /// Groups in the batch.
        found: u64,
        /// Groups per batch in the settings.
        expected: u64,
    },
    /// Quotas that contradict themselves, the settings or the open groups.
    #[error("the quotas of the domains are inconsistent")]
    Quota,
    /// Reusable or reused groups that contradict the version, the batch in flight or the open groups.
    #[error("the groups that batches reuse are inconsistent")]
    Reuse,
    /// A ticket in the batch in flight that repeats, was not issued, or belongs to an open group.
    #[error("the batch in flight contains invalid ticket {}", .0.0)]
    BatchTicket(Ticket),
}
