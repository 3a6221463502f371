//! Training policies, value heads and critics.

mod groups;
mod inert;
#[path = "../../../tests/embedded/train/model.rs"]
mod model;
mod noise;
mod policy;
mod sharing;
mod step_scope;
mod support;
mod value;
