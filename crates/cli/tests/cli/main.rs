//! The program as users run it, and the order of the workspace's crates.

mod bench;
mod cluster;
mod downloads;
mod engines;
mod export;
mod functions;
mod gangs;
mod hints;
mod messages;
mod node;
mod offline;
mod plan;
mod runs;
mod soak;
mod support;
mod tracking;
mod workspace;
