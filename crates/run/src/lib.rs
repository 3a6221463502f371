//! The driver: stages, publication of weights, resume, lineage and replay.
//!
//! [`train`] starts a run and [`resume`] resumes one. Both connect data, rollout, reward and training by executing the
//! scheduler's commands. The state of a run is in its [directory](rloom_store::directory); progress is reported to the
//! [event stream](rloom_telemetry::Event), which the console, the report and TensorBoard read.

mod batch;
mod batch_metrics;
mod demonstrations;
mod episodes;
mod error;
mod evaluate;
#[cfg(test)]
mod failure_tests;
mod generated;
pub mod lineage;
mod outcome;
mod rebuild;
mod replay;
mod runtime;
mod setup;
mod stage;
mod step_report;
mod stop;
mod train;
mod trainer;
mod waits;

pub use error::RunError;
pub use evaluate::{EvaluationReport, evaluate};
pub use generated::FoundIn;
pub use rebuild::Origin;
pub use replay::{Difference, Replay, Verdict, replay};
pub use setup::{Policy, context};
pub use stop::StopFlag;
pub use train::{Summary, resume, train};
