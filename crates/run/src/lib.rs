//! Orchestration of a run: the order of its stages, resume, lineage, replay.
//!
//! [`train`] starts a run, or continues it with `run.resume = "auto"`; [`resume`] continues one; `rloom-stage` drives each stage. Everything is generic over the
//! engines; [`assembly`] is the one place that names the embedded ones.

mod absolute_paths;
pub mod assembly;
mod auto_resume;
mod calibrate;
mod control;
mod data_record;
mod error;
mod evaluate;
mod functions;
mod initial;
pub mod lineage;
mod numeric_path;
mod pin;
mod policies;
mod policy;
mod prompts;
mod rebuild;
mod recorded;
mod reference;
mod replay;
mod restarts;
mod resume;
pub mod reward_test;
mod runtime;
mod stage_setup;
mod start;
mod teacher;
mod train;
mod win_rate;

pub use calibrate::calibrate_judge;
pub use control::{ControlCommand, ControlReply, Processes, control, processes_of};
pub use error::{NotRepeatable, RunError};
pub use evaluate::evaluate;
pub use policy::Policy;
pub use prompts::measure_prompts_of;
pub use rebuild::Origin;
pub use recorded::FoundIn;
pub use replay::{Difference, Replay, Verdict, replay, replay_on};
pub use resume::{ResumeOptions, fork, resume};
pub use rloom_stage::{StageError, StopFlag};
pub use stage_setup::{EpisodeHook, RunInputs};
pub use teacher::StageTeacher;
pub use train::{Summary, train, train_on};
pub use win_rate::WinRate;

use rloom_ops::Ctx;

/// Creates the compute context of a run; 0 threads stand for one per available core.
pub fn context(threads: usize) -> Result<Ctx, RunError> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Ctx::new(if threads == 0 { available } else { threads })?)
}
