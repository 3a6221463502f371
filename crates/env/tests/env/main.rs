//! Environments, attempts and demonstrations.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod agents;
mod attempts;
mod conforming;
mod conversations;
mod demonstrations;
mod every_reply;
mod games;
mod guess;
mod history;
mod python;
mod reasoning;
mod rows;
mod segments;
mod settings;
mod support;
mod tool_reasoning;
mod tools;
mod unrendered;
mod worlds;
