//! Training policies, value heads and critics.

mod groups;
mod inert;
mod policy;
mod sharing;
mod step_scope;
mod support;
mod value;
