//! The simulator: runs the scheduler in virtual time against a model of the hardware.
//!
//! [`simulate`] drives the same [`Scheduler`](rloom_sched::Scheduler) as a real run, event by event; the scheduling rules are
//! not implemented twice. Only its environment ([`Scenario`]) is modelled: replicas whose sequences share the decoding
//! speed, prefill, environment latency, a trainer, weight publication and failures.
//!
//! It is a deterministic discrete-event simulation. Every random draw is a function of the seed and of the ticket, sample
//! and turn it belongs to, so policies are compared on identical work. Tokens are the unit of work, and each event costs
//! O(log n) in the number of active samples.
//!
//! Not modelled: memory for keys and values (only a concurrency limit), attention cost that grows with the context,
//! contention on shared networks, and evaluation on rollout hardware.

mod active_workload;
mod calibrate;
mod distribution;
mod error;
mod event_queue;
#[cfg(test)]
mod example_scenarios;
mod fleet;
mod frontier;
mod hardware;
mod load_buckets;
mod profile;
mod random_draws;
mod replica;
mod replica_queue;
mod report;
mod scenario;
mod service;
mod simulation;
mod totals;
mod trainer;
mod version_history;

pub use calibrate::{Calibration, ObservedRun, ObservedStep, calibrate, group_correlation};
pub use distribution::Distribution;
pub use error::{DistributionError, ProfileError, ScenarioError, SimError};
pub use frontier::{Candidate, Reason, Recommendation, frontier, recommend};
pub use hardware::{DecodeRate, Hardware, RolloutHardware, TrainHardware};
pub use profile::{Demand, Measured, ModelShape, Profile, Roofline, Speeds, Split, WorkloadShape};
pub use report::{Queue, Queues, Report, RolloutShares, Staleness, TrainShares};
pub use scenario::{Failures, Scenario, Workload};
pub use service::{LengthRange, ObservedRequest, ServiceTimes};
pub use totals::Ends;

/// Simulates a stage from its first command to its last.
pub fn simulate(scenario: &Scenario) -> Result<Report, SimError> {
    simulation::Simulation::new(scenario)?.run()
}
