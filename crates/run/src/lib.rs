//! The driver: run directory, event stream, journal, checkpoints, resume, publication of weights, trackers.

mod batch_metrics;
pub mod checkpoint;
pub mod directory;
mod error;
mod events;
mod journal;
pub mod report;
mod stop;
mod tensorboard;

pub use error::RunError;
pub use events::{Event, EventLine, Metrics, Observer, Phase, Sample, StageOutline, read_events, surviving};
pub use stop::StopFlag;
