//! Engines in other processes: inference servers behind one [`RolloutEngine`](rloom_engine::RolloutEngine), and PyTorch
//! ranks behind one [`TrainEngine`](rloom_engine::TrainEngine).
//!
//! [`ReplicaPool`] routes requests, replaces weights and survives servers that fail; [`Server`] speaks the protocol of one
//! server. The servers are not trusted: every answer has a deadline and a limit of its length, and is checked.
//!
//! [`Gang`] starts the ranks of a trainer, gives all of them the same job, and ends with the first that dies or hangs.
//!
//! [`PythonEnvironment`]s have the packages that servers and ranks need.

mod environment;
mod error;
mod gang;
mod http;
mod launch;
mod pool;
mod process;
mod server;
mod sglang;
mod teacher;
mod vllm;

pub use environment::{
    DescribeError, Description, EnvironmentKind, InstallError, InstallOptions, Outcome, PythonEnvironment,
    TestedVersions, describe, install, interpreter, reach,
};
pub use error::ServerError;
pub use gang::{
    Gang, GangError, GangLora, GangSettings, PolicyHeads, RankBackend, RankCommand, RankDevice, RankDtype,
    RankEnd, RankLauncher, RankProcess,
};
pub use http::{HttpError, Phase};
pub use launch::{AdapterSlots, ServerCommand, Slot, max_lora_rank};
pub use pool::{Localized, ModelLimits, PoolTimings, ReplicaPool, Restart};
pub use process::{CommandOfPort, ServerHost, ServerMirrors, ServerProcess};
pub use rloom_cluster::gpus;
pub use server::Server;
pub use teacher::{EndpointTeacher, TeacherError};
