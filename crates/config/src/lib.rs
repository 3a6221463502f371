//! The typed configuration: strict parsing, overrides, cross-field checks.

pub mod layered;
mod problem;
mod render;

pub use problem::{Code, ConfigErrors, Label, Problem};
