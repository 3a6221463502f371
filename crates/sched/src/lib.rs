//! The scheduler: when a group may start, when a batch is cut, when the policy is evaluated and saved.
//!
//! A pure state machine. Events go in, commands come out; it takes no clock, starts nothing and does no I/O, so the
//! driver runs it on the real world and tests run it by enumeration.
//!
//! # The rules
//!
//! `v` counts batches trained and published, `B` groups make a batch, `η` is the bound on staleness.
//!
//! - **SCHED-1 (admission)** A group is admitted while `trained + ready + running < (v + 1 + η)·B + oversample`, and
//!   never for a batch beyond the last. Synchronous training is this rule at `η = 0`.
//! - **SCHED-2 (freshness)** A group's age is `v −` the oldest version in any of its policy tokens, taken when its
//!   batch is cut. One older than `η` is never trained on.
//! - **SCHED-3 (replacement)** A group that is filtered, stale or failed leaves the sum, and its place is admitted
//!   anew under a new ticket.
//! - **SCHED-4 (order)** A batch is the `B` lowest tickets still alive, cut when all of them are ready; with
//!   [`CutOrder::Completion`] it is the first `B` that are ready.
//! - **SCHED-5 (one end)** Every ticket ends in exactly one [`End`].
//! - **SCHED-6 (pauses)** An evaluation and a checkpoint see one version: at `η = 0` without
//!   oversampling no group runs beside them.

mod scheduler;
mod settings;

pub use scheduler::{Command, End, Event, SchedError, Scheduler, SchedulerState};
pub use settings::{CutOrder, SchedulerSettings};
