//! The typed configuration: layered TOML, strict reading, overrides, cross-field checks.
//!
//! [`Config::load`] reads files and overrides into one [`Config`], or says everything that is wrong with them, with
//! file, line, column, the line itself and a hint. [`Config::to_toml`] writes what was resolved.
//!
//! ```text
//! defaults < a.toml < b.toml < --set stage.rl.steps=20
//!
//! [run]        name, directory, seed, threads, checkpoints
//! [model]      path = "folder or hub id", or [model.new] with [tokenizer]
//! [data]       [environment] [sampling] [reward] [trainer] [rollout]: shared by the stages, and by evaluation
//! [schedule]   how far rollouts run ahead of training, shared by the stages that sample
//! [eval]       every, tasks, samples; [eval.sampling] [eval.data] [eval.environment] …
//! [[stage]]    name, method, steps, batch, from …; [stage.algorithm], and its own [stage.data] …
//! ```
//!
//! Nothing is silent: an unknown key is an error, and so is a key that nothing would read. Each room owns the types of
//! its own settings and checks their ranges; here they are composed, and checked against each other.

mod check;
mod compose;
mod keys;
pub mod layered;
mod load;
mod problem;
mod render;
mod resolve;
mod secret;
mod section;
mod settings;

pub use problem::{Code, ConfigErrors, Label, Problem};
pub use rloom_sched::{OnFailure, Priority, ScheduleSettings};
pub use settings::{Config, EvalSettings, ModelSource, RunSettings, Stage, StageRollout, Start};
