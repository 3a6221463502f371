//! Orchestration of a run: stages, publication, resume, lineage, replay.
//!
//! [`train`] starts a run and [`resume`] continues one. A stage is driven by one task: workers (groups, the training
//! thread, the rollout engine, an evaluation) send events, the scheduler answers with commands. The driver is generic over
//! its engines; [`assembly`] is the one place that names the embedded ones.

pub mod assembly;
mod error;
mod evaluate;
pub mod lineage;
mod policy;
mod rebuild;
mod recorded;
mod replay;
mod runtime;
mod stage;
mod stage_setup;
mod stop;
mod train;
mod trainer;

pub use error::{Contradiction, NotRepeatable, RunError, WorkerError};
pub use evaluate::evaluate;
pub use policy::Policy;
pub use rebuild::Origin;
pub use recorded::FoundIn;
pub use replay::{Difference, Replay, Verdict, replay, replay_on};
pub use stage_setup::{EpisodeHook, RunInputs};
pub use stop::StopFlag;
pub use train::{Summary, resume, train, train_on};

use rloom_ops::Ctx;

/// Creates the compute context of a run; 0 threads stand for one per available core.
pub fn context(threads: usize) -> Result<Ctx, RunError> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Ctx::new(if threads == 0 { available } else { threads })?)
}
