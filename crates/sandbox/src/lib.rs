//! Runs untrusted programs without root, Docker or programs of the system.
//!
//! A [`Sandbox`] runs one [`Execution`] at a time per call and returns its [`Outcome`]: how the program ended, and its
//! output. Errors are failures of the machine ([`SandboxError`]), never of the program.
//!
//! Two tiers protect the machine ([`Tier`]). The first one that works is used:
//!
//! | tier | what the program sees |
//! | --- | --- |
//! | `namespaces` | its own file system in memory with the system's programs, read-only; its own processes; no network |
//! | `landlock` | the system's programs, read-only, and its own folder; other processes and the network cannot be reached |
//!
//! A [`Service`] is the one exception from the missing network: a server of the machine. In namespaces it alone can be reached. With
//! Landlock, TCP connections to its port can be made, of this machine or any other.
//!
//! Both use Landlock, a list of permitted system calls (seccomp) and resource limits, and control groups where they are
//! delegated. A hidden command of the binary
//! prepares the process: it calls [`run_helper`]. A [`Server`] runs programs elsewhere; an [`Executor`] is either.

pub mod code;
mod error;
mod execution;
mod executor;
mod limits;
mod message;
mod nonce;
mod outcome;
mod sandbox;
mod server;
mod stopper;
mod tier;

#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod helper;

pub use error::{SandboxError, Unavailable};
pub use execution::{Execution, InputFile, Service};
pub use executor::Executor;
pub use limits::Limits;
pub use outcome::{Ending, Outcome};
pub use sandbox::{COMMAND, Sandbox, run_helper};
pub use server::Server;
pub use stopper::Stopper;
pub use tier::{Choice, Tier};
