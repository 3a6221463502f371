//! The driver: run directory, event stream, journal, checkpoints, resume, publication of weights, trackers.
//!
//! [`train`] starts a run and [`resume`] goes on with one; both weave data, rollout, reward and training together as
//! the scheduler says, in turns or side by side. Everything that a run knows lies in its directory ([`directory`]); what happens is told to the
//! event stream ([`Event`]), of which console, report and TensorBoard are readers.

mod batch;
mod batch_metrics;
pub mod checkpoint;
mod demonstrations;
pub mod directory;
mod disk;
mod episodes;
mod error;
mod evaluate;
mod events;
#[cfg(test)]
mod failure_tests;
#[doc(hidden)]
pub mod faults;
mod generated;
mod history;
mod journal;
pub mod lineage;
mod outcome;
mod rebuild;
mod replay;
pub mod report;
mod rollout_log;
mod runtime;
mod setup;
mod stage;
mod state;
mod step_files;
mod step_report;
mod stop;
#[cfg(test)]
mod synthetic;
mod tensorboard;
pub mod trace;
mod train;
mod trainer;
mod waits;

pub use error::RunError;
pub use evaluate::{EvaluationReport, evaluate};
pub use events::{Activity, Event, EventLine, Lane, Metrics, Observer, Phase, Sample, StageOutline};
pub use generated::FoundIn;
pub use history::{read_events, surviving};
pub use rebuild::Origin;
pub use replay::{Difference, Replay, Verdict, replay};
pub use rollout_log::LoggedTrajectory;
pub use setup::{Policy, context};
pub use state::Best;
pub use stop::StopFlag;
pub use train::{Summary, resume, train};
