//! The program as users run it, and the order of the workspace's crates.

mod bench;
mod downloads;
mod functions;
mod hints;
mod messages;
mod offline;
mod plan;
mod runs;
mod soak;
mod support;
mod workspace;
