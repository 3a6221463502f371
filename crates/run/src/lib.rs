//! The driver: run directory, event stream, journal, checkpoints, resume, publication of weights, trackers.
//!
//! [`train`] starts a run and [`resume`] goes on with one; both weave data, rollout, reward and training together as
//! the scheduler says. Everything that a run knows lies in its directory ([`directory`]); what happens is told to the
//! event stream ([`Event`]), of which console, report and TensorBoard are readers.

mod batch;
mod batch_metrics;
pub mod checkpoint;
pub mod directory;
mod episodes;
mod error;
mod evaluate;
mod events;
mod journal;
mod outcome;
pub mod report;
mod rollout_log;
mod setup;
mod stage;
mod state;
mod step_report;
mod stop;
mod tensorboard;
mod train;

pub use error::RunError;
pub use evaluate::{EvaluationReport, evaluate};
pub use events::{Event, EventLine, Metrics, Observer, Phase, Sample, StageOutline, read_events, surviving};
pub use setup::{Policy, context};
pub use state::Best;
pub use stop::StopFlag;
pub use train::{Summary, resume, train};
