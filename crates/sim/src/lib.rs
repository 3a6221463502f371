//! The simulator: the scheduler in virtual time, against a model of the hardware.
//!
//! [`simulate`] runs the same [`Scheduler`](rloom_sched::Scheduler) as the driver does, event for event; there is no second set of rules. What is
//! modelled is the world around it ([`Scenario`]): replicas that share their speed among the sequences that they decode
//! (the faster each, the fewer they are), prompts that must be read, environments that think, a trainer, the
//! publication of weights, and things that break.
//!
//! It is a discrete-event simulation, deterministic to the last bit: every draw is a function of the seed and of the
//! ticket, sample and turn that it is for, so two policies are compared on the same work. Tokens are the unit of work, and
//! no event costs more than the logarithm of what is alive.
//!
//! What is not modelled: memory for keys and values (only a bound on concurrency), attention that grows with the context,
//! networks that are shared, and evaluation that takes rollout hardware.

mod account;
mod agenda;
mod calibrate;
mod distribution;
mod fleet;
mod frontier;
mod hardware;
mod luck;
mod population;
mod profile;
mod replica;
mod report;
mod scenario;
mod world;
#[cfg(test)]
mod world_examples;

use rloom_core::Ticket;
use rloom_sched::SchedError;

pub use account::Ends;
pub use calibrate::{Calibration, Observed, ObservedStep, calibrate, group_correlation};
pub use distribution::Distribution;
pub use frontier::{Choice, Recommendation, Why, frontier, recommend};
pub use hardware::{DecodeRate, Hardware, RolloutHardware, TrainHardware};
pub use profile::{Demand, Measured, ModelShape, Profile, Roofline, Speeds, Split, WorkloadShape};
pub use report::{Queue, Queues, Report, RolloutShares, Staleness, TrainShares};
pub use scenario::{Failures, Scenario, Workload};

/// Why a scenario was not simulated to its end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimError {
    /// No world is like this.
    #[error("{what} cannot be simulated: {why}")]
    Scenario {
        /// What of it.
        what: String,
        /// Why.
        why: String,
    },
    /// A hardware profile that cannot be read.
    #[error("the hardware profile cannot be used: {0}")]
    Profile(String),
    /// The scheduler refused its settings, or what it was told.
    #[error(transparent)]
    Scheduler(#[from] SchedError),
    /// Nothing is going to happen any more, and the stage is not over: a defect of the scheduler.
    #[error("nothing happens after {seconds:.1} simulated seconds, in version {version}")]
    Stuck {
        /// When.
        seconds: f64,
        /// The version then.
        version: u64,
    },
    /// [`Scenario::most_events`] are over.
    #[error(
        "after {events} events only {version} batches are trained\n\
         hint: filters, failures or the bound on staleness leave too little to train on"
    )]
    Endless {
        /// How many.
        events: u64,
        /// Batches trained by then.
        version: u64,
    },
    /// A ticket was started that is alive: a defect of the scheduler.
    #[error("{0:?} was started twice")]
    Twice(Ticket),
    /// A ticket was trained, dropped or put off that is not alive: a defect of the scheduler.
    #[error("{0:?} is not alive")]
    Unknown(Ticket),
}

/// Simulates a stage from its first command to its last.
pub fn simulate(scenario: &Scenario) -> Result<Report, SimError> {
    world::World::new(scenario)?.run()
}
