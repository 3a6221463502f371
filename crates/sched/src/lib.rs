//! The scheduler: when a group may start, when a batch is cut, when the policy is evaluated and saved.
//!
//! A pure state machine. Events go in, commands come out; it takes no clock, starts nothing and does no I/O, so the
//! driver runs it on the real world, the simulator in virtual time, and tests by enumeration.
//!
//! Training, evaluation and saving are carried out beside the groups that run, one of them at a time; any group may be
//! reported meanwhile.
//!
//! # The rules
//!
//! `v` counts batches trained and published, `B` groups make a batch, `η` is the bound on staleness. A group *holds a
//! place* while it runs or is ready.
//!
//! - **SCHED-1 (admission)** A group is admitted while `trained + ready + running < (v + 1 + η)·B + oversample`, where
//!   `trained` counts the batch under way, and never for a batch beyond the last. Synchronous training is this rule at
//!   `η = 0`. Admission goes on beside training, evaluation and saving, unless what starts then would be too old for
//!   the next batch: at `η = 0`, over-sampled or not, nothing starts beside them.
//! - **SCHED-2 (freshness)** A group's age is `v −` the oldest version in any of its policy tokens, taken when its
//!   batch is cut. One older than `η` is never trained on.
//! - **SCHED-3 (replacement)** A group that is filtered, stale or failed leaves the sum, and its place is admitted
//!   anew under a new ticket.
//! - **SCHED-4 (order)** A batch is the `B` lowest tickets that hold a place, cut when all of them are ready; with
//!   [`CutOrder::Completion`] it is the first `B` that became ready. In ticket order without over-sampling no group
//!   ever becomes stale, since no more than `(1 + η)·B` are ahead of it in the line, itself counted.
//! - **SCHED-5 (one end)** Every ticket ends in exactly one [`End`].
//! - **SCHED-6 (pauses)** An evaluation and a checkpoint see one version: no batch is cut beside them. At `η = 0` no
//!   group runs beside them either.
//! - **SCHED-7 (no work for nothing)** When a batch is cut, a group that is too old for the next one is ended at once,
//!   as [`End::Stale`]: a running group counts as old as the version under which it started. After the cut of the last
//!   batch all that is left ends as [`End::Surplus`]. At `η = 0` this is the early cut of an over-sampled batch.
//!
//!   With [`Stragglers::PutOff`] a group that runs is put off instead: it is cancelled and keeps its ticket. As soon as
//!   `B` tickets are put off, the next round is theirs: the `B` lowest of them start, nothing beside them, and the cut
//!   waits for all. One that is filtered or fails is replaced by another that was put off, and by a new ticket when
//!   there is none. So long groups are trained as often as short ones, and only the rounds of their own wait for them.
//! - **SCHED-8 (pinning)** With [`SchedulerSettings::pin_version`] group `t` starts under version `max(0, ⌊t/B⌋ − η)`.
//!   This is SCHED-1 itself as long as tickets and places are one and the same, so nothing may be over-sampled, filtered
//!   or replaced.
//!
//! # Stopping and resuming
//!
//! A request to stop finishes the batch that is trained or generated, saves, and ends; the groups that are alive then
//! stay in the [`SchedulerState`]. A state is complete but for that request: a scheduler that
//! [resumes](Scheduler::resume) from it is told [`Event::Begin`], says again what is under way (a start for each group
//! that runs, the training, the evaluation, the checkpoint), and from there on gives the same commands for the same
//! events. So the events that were recorded after a checkpoint can be told again, at any instant of the run.
//!
//! Those between a request to stop and the checkpoint that it leads to may be told without the request: the same batches
//! are cut. To lead beyond that checkpoint, to what the next attempt recorded, the request must be told too, and
//! [withdrawn](Event::StopWithdrawn) at the end that it leads to.

mod admission;
mod ages;
mod cut;
mod error;
mod groups;
mod message;
mod order;
mod scheduler;
mod settings;
mod state;
mod table;

pub use error::SchedError;
pub use message::{Command, End, Event};
pub use scheduler::{Counts, Scheduler};
pub use settings::{CutOrder, SchedulerSettings, Stragglers};
pub use state::{AliveGroup, Progress, SchedulerState, UnderWay};
