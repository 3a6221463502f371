//! Best-effort output of a run: the event stream and its readers (report, trace, TensorBoard), and rollout logs.
//!
//! Nothing here can stop a run: what cannot be written is counted and reported.

mod error;
mod event;
mod history;
pub mod report;
pub mod rollout_log;
mod step_files;
mod stream;
#[cfg(any(test, feature = "synthetic"))]
pub mod synthetic;
mod tensorboard;
pub mod trace;

pub use error::TelemetryError;
pub use event::{Activity, Event, EventLine, Lane, Metrics, Phase, Sample, StageOutline};
pub use history::{read_events, surviving};
pub use rollout_log::LoggedTrajectory;
pub use step_files::StepFiles;
pub use stream::{EventStream, Observer};
