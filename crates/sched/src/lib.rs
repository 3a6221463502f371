//! The scheduler: decides when a group may start, when a batch is cut, and when the policy is evaluated and saved.
//!
//! A pure state machine: events in, commands out. It takes no clock, spawns nothing and does no I/O, so the driver runs it
//! in real time, the simulator in virtual time, and tests by enumeration.
//!
//! The driver executes training, evaluation and checkpointing concurrently with running groups, one of the three at a
//! time. Group events may arrive at any moment.
//!
//! # Rules
//!
//! `v` counts batches trained and published, `B` is the number of groups per batch, `η` is the bound on staleness. A group
//! *holds a slot* while it is running or ready.
//!
//! - **SCHED-1 (admission)** A group is admitted while `trained + ready + running < (v + 1 + η)·B + oversample`, where
//!   `trained` includes the batch being trained, and never for a batch beyond the last one. Synchronous training is this
//!   rule at `η = 0`. Admission continues during training, evaluation and checkpointing unless a group started then
//!   would be too old for the next batch: at `η = 0`, with or without over-sampling, nothing starts during them.
//! - **SCHED-2 (freshness)** A group's age is `v −` the oldest version in any of its policy tokens, measured when its
//!   batch is cut. A group older than `η` is never trained on.
//! - **SCHED-3 (replacement)** A group that is filtered, stale or failed releases its slot, and a replacement is admitted
//!   under a new ticket.
//! - **SCHED-4 (order)** A batch is the `B` lowest tickets that hold a slot, cut when all of them are ready; with
//!   [`CutOrder::Completion`] it is the first `B` groups to become ready. In ticket order without over-sampling no group
//!   ever becomes stale, because at most `(1 + η)·B` groups, including itself, precede it.
//! - **SCHED-5 (one end)** Every ticket ends in exactly one [`End`].
//! - **SCHED-6 (pauses)** An evaluation and a checkpoint see one version: no batch is cut during them. At `η = 0` no group
//!   runs during them either.
//! - **SCHED-7 (no wasted work)** When a batch is cut, a group too old for the next batch ends immediately as
//!   [`End::Stale`]; a running group counts as old as the version it started with. After the last batch is cut, all
//!   remaining groups end as [`End::Surplus`]. At `η = 0` this is the early cut of an over-sampled batch.
//!
//!   With [`Stragglers::Defer`] a running group is deferred instead: it is cancelled and keeps its ticket. Once `B`
//!   tickets are deferred, the next round is a *deferred round*: the `B` lowest of them start, nothing else does, and the
//!   cut waits for all of them. One that is filtered or fails is replaced by another deferred group, or by a new ticket
//!   when none is left. So long groups are trained on as often as short ones, and only deferred rounds wait for them.
//!   With [`Stragglers::Wait`] no group is dropped for its age: batches are cut in order of completion, but groups that
//!   would become too old otherwise come first, and a batch waits for those of them that still run.
//! - **SCHED-8 (pinning)** With [`SchedulerSettings::pin_version`] group `t` starts with version `max(0, ⌊t/B⌋ − η)`.
//!   This follows from SCHED-1 as long as tickets and slots coincide, so over-sampling, filtering and replacement are not
//!   allowed.
//!
//! - **SCHED-9 (quotas)** With quotas every ticket has a domain. Slot `n` of the stage belongs to the domain that the
//!   shares give it (exactly over time, [`Apportionment`](rloom_core::Apportionment)), batch `k` is made of slots `k·B` to
//!   `(k + 1)·B − 1`, and SCHED-1 and SCHED-4 hold in each domain alone: a ticket is issued for the first slot that has no
//!   group, so the replacement of a group is of its domain, and a batch takes from each domain the groups that come first
//!   there. Without quotas a slot is a ticket. Deferring stragglers and waiting for them is not possible
//!   with quotas.
//!
//! - **SCHED-10 (reuse)** With [`SchedulerSettings::reuse`] batch `k` also contains groups of earlier batches: as many as
//!   the rule allows, drawn without replacement by the random stream of `k` from the trained groups whose age at `k` is at
//!   most [`ReuseRule::max_age`] and that were reused fewer than [`ReuseRule::max_uses`] times. The `n`-th reuse of a ticket
//!   is the pair (ticket, `n`); a pair occurs in one batch. A reuse holds no slot and is no end: without the reused groups
//!   the commands are those of a scheduler without reuse, and SCHED-2 bounds the age of new groups only. At most
//!   `max_age · B` groups are kept between batches.
//!
//! # Stopping and resuming
//!
//! A stop request finishes the batch being trained or generated, saves a checkpoint and ends the stage; groups still open
//! remain in the [`SchedulerState`]. The state is complete except for that request: a scheduler
//! [resumed](Scheduler::resume) from it receives [`SchedulerEvent::Begin`], reissues the commands in flight (a start for
//! each running group, the training, evaluation or checkpoint), and from then on returns the same commands for the same
//! events. So the events recorded after a checkpoint can be replayed from any point of the run.
//!
//! The events between a stop request and its checkpoint may be replayed without the request: the same batches are cut. To
//! continue past that checkpoint, into the events recorded by the next attempt, the request must be replayed too, and
//! [withdrawn](SchedulerEvent::StopWithdrawn) where that attempt ended.

mod admission;
mod ages;
mod curriculum;
mod cut;
mod error;
mod groups;
mod message;
mod order;
mod quota;
mod reuse;
mod schedule;
mod scheduler;
mod settings;
mod state;
mod table;
mod wait;

pub use curriculum::{Attempts, CurriculumSettings, SuccessRates};
pub use error::{GroupEvent, Requirement, SchedError, StateDefect, WorkKind};
pub use message::{End, SchedulerCommand, SchedulerEvent};
pub use quota::QuotaState;
pub use reuse::{ReusableGroup, ReuseRule, ReuseSettings, ReuseState, ReusedGroup};
pub use schedule::{Priority, ScheduleSettings};
pub use scheduler::{Counts, Scheduler};
pub use settings::{CutOrder, SchedulerSettings, Stragglers};
pub use state::{GroupStatus, InFlightWork, OpenGroup, SchedulerState};
