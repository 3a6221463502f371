//! The typed configuration: layered TOML, strict parsing, overrides, cross-field checks, schema.
//!
//! [`Config::load`] reads files and overrides into one [`Config`], or reports every error with file, line, column, the
//! line itself and a hint. [`Config::to_toml`] writes the resolved configuration. [`schema`] is the JSON schema of a
//! recipe file, and [`mod@reference`] its documentation.
//!
//! ```text
//! defaults < a.toml < b.toml < --set stage.rl.steps=20
//!
//! [run]        name, directory, seed, threads, checkpoints
//! [model]      path = "folder or hub id", or [model.new] with [tokenizer]
//! [data]       [environment] [sampling] [reward] [trainer] [rollout]: shared by all stages and by evaluation
//! [schedule]   staleness and order of batches, shared by all stages that sample
//! [validation] loss on held-out rows, shared by all stages that learn from rows
//! [domains]    quotas, filters and curriculum by domain, shared by all stages that sample
//! [eval]       every, tasks, samples; [eval.sampling] [eval.data] [eval.environment] …; [[eval.sets]]
//! [[stage]]    name, method, steps, groups_per_batch, from …; [stage.algorithm]; overrides such as [stage.data]
//! ```
//!
//! An unknown key is an error, and so is a key that has no effect. Each crate owns the types of its settings and checks
//! their ranges; this crate composes them and checks them against each other.

mod check;
mod compose;
mod domains;
mod keep_rollouts;
mod keys;
pub mod layered;
mod load;
mod policies;
mod problem;
pub mod reference;
mod renamed;
mod render;
mod resolve;
mod resume;
mod schema;
mod secret;
mod section;
mod settings;
mod teacher;
mod validation;
mod warnings;

pub use domains::DomainSettings;
pub use keep_rollouts::KeepRollouts;
pub use policies::{LeagueSettings, MAIN_POLICY, NEW_MODEL, OpponentDraw, PolicySettings, PolicyTrainer};
pub use problem::{Code, ConfigErrors, Label, Problem};
pub use resume::{ChangeEffect, SettingChange, setting_changes};
pub use rloom_sched::{Priority, ScheduleSettings};
pub use schema::schema;
pub use settings::{
    Config, EvalSet, EvalSettings, ModelSource, Resume, RunSettings, Stage, StageRollout, Start,
};
pub use teacher::TeacherSettings;
pub use validation::ValidationSettings;
pub use warnings::Warning;
