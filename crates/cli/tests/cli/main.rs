//! The program as users run it, and the order of the workspace's crates.

#[cfg(target_os = "linux")]
mod agents;
mod bench;
mod cluster;
mod downloads;
mod engines;
mod export;
mod functions;
mod gangs;
mod hints;
mod machines;
mod manifests;
mod messages;
mod node;
mod offline;
mod placed;
mod plan;
mod plan_servers;
mod play;
mod reward_calibrate;
mod reward_test;
mod runs;
mod scale;
mod serve;
mod soak;
#[expect(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests of crate remote, which use more of it and fail by panicking"
)]
#[path = "../../../remote/tests/remote/stand_in/mod.rs"]
mod stand_in;
mod support;
mod tools;
mod tracking;
mod workspace;
