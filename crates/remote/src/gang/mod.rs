//! A gang: all PyTorch ranks of one trainer.
//!
//! A rank is `python -m rloom.worker`. It dials in, is told to open the model, and then answers one job at a time; all
//! ranks get the same job, each with its own micro-batches: number `i` belongs to rank `i mod ranks`. Among themselves
//! the ranks speak through `torch.distributed`.
//!
//! A rank holds nothing that journal and checkpoint do not. If one dies, or none reports progress for the step
//! deadline, the gang is killed whole: every call fails with [`TrainError::Lost`](rloom_engine::TrainError::Lost) from then
//! on, and a new gang continues from the checkpoint.

mod engine;
mod error;
mod exchange;
mod features;
mod launch;
mod line;
mod ranks;
mod rows;
mod sender;
mod settings;
mod teacher;

pub use engine::Gang;
pub use error::GangError;
pub use launch::{RankCommand, RankEnd, RankLauncher, RankProcess};
pub use settings::{GangLora, GangSettings, PolicyHeads, RankBackend, RankDevice, RankDtype};
