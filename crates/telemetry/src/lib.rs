//! Best-effort output of a run: the event stream and its readers (report, trace, TensorBoard), and rollout logs.
//!
//! Nothing here can stop a run: what cannot be written is counted and reported.

mod error;
mod event;
mod event_file;
mod extent;
mod history;
mod leftovers;
pub mod report;
pub mod rollout_log;
mod rollout_writer;
mod state;
mod step_files;
mod stream;
mod survivors;
pub mod synthetic;
mod tensorboard;
pub mod trace;
mod tracker;
mod tracking;

pub use error::TelemetryError;
pub use event::{
    Activity, CalibrationBin, Event, EventLine, GroupEnd, Lane, Metrics, Phase, PromptSummary, RequestTimes,
    RowSummary, Sample, StageOutline,
};
pub use event_file::{EventFile, SkippedLines, read_events};
pub use history::surviving;
pub use rollout_log::{LoggedAdvantages, LoggedTrajectory};
pub use rollout_writer::RolloutWriter;
pub use state::{RunState, StateReader};
pub use step_files::StepFiles;
pub use stream::{EventStream, Observer};
pub use tracker::Tracker;
pub use tracking::{DEFAULT_PROJECT, DEFAULT_PYTHON, Follow, Tracking, TrackingError, follow};
