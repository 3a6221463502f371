//! Episodes of agents that run outside of this program: started commands and leases.
//!
//! An [`AgentServer`] serves the policy to unmodified clients of OpenAI's and Anthropic's APIs, one session per episode. An
//! [`AgentRunner`] is the [`AgentHost`](rloom_collect::AgentHost) of a stage or an evaluation: for each episode it opens a
//! session and starts a program with the session's address in its environment, or offers the episode to agents that lease.
//!
//! ```text
//! EpisodeRunner ──► AgentRunner ──► session ◄── HTTP ── agent (started, or with a lease)
//!                        ▲            │  ▲
//!                        └─ segments ─┘  └─► HostedSampler ──► engine
//! ```
//!
//! A failure of an agent is never a reward of 0: the episode is attempted again, and then its group fails.

mod counters;
mod endpoint;
mod error;
mod jail;
mod lease;
mod log;
mod process;
mod redact;
mod relay;
mod reward;
mod runner;
mod server;
mod task;
mod watch;

pub use error::{AgentError, Output};
pub use runner::AgentRunner;
pub use server::{AgentServer, LEASE_KEY};
