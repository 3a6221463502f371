use rloom_core::Ticket;

/// Settings or a state that no run can have, or an event that cannot have happened: a defect of the driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchedError {
    /// The ticket is not running.
    #[error("the scheduler was told of group {ticket:?} ({what}), which is not running")]
    NotRunning {
        /// The ticket.
        ticket: Ticket,
        /// What was said of it.
        what: &'static str,
    },
    /// Nothing of the kind was asked for.
    #[error("the scheduler was told `{0}`, which it had not asked for")]
    NotAsked(&'static str),
    /// A stage begins once.
    #[error("the scheduler was told to begin, which it had done")]
    BegunTwice,
    /// A group was to be replaced, but each group is pinned to a version.
    #[error(
        "group {ticket:?} was {what}, and another in its place would not run under the version that it is pinned to\n\
         hint: leave versions unpinned, or let a failure stop the run and filter nothing"
    )]
    Pinned {
        /// The ticket.
        ticket: Ticket,
        /// What was said of it.
        what: &'static str,
    },
    /// A batch of no groups.
    #[error("a batch needs at least one group")]
    EmptyBatch,
    /// Versions cannot be pinned under the other settings.
    #[error(
        "pinning each group to a policy version needs {0}\nhint: leave versions unpinned, or change that setting"
    )]
    PinNeeds(&'static str),
    /// Groups cannot be put off under the other settings.
    #[error("putting stragglers off needs {0}\nhint: drop stragglers, or change that setting")]
    PutOffNeeds(&'static str),
    /// A saved state that contradicts itself or the settings.
    #[error(
        "the saved scheduler state cannot be: {0}\nhint: resume from another checkpoint, with the settings that it was saved under"
    )]
    ImpossibleState(&'static str),
}
