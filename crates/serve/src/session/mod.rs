//! Sessions: the calls of an agent become one episode with the exact tokens of each call.
//!
//! ```text
//! request ──► canonical messages ──► trie: longest known conversation ──► its tokens + rendering of what is new ──► sampler
//!                                      ▲                                                                             │
//!                                      └────────────────────── the completion, before its answer ────────────────────┘
//! ```
//!
//! Nothing that was sampled is tokenised again. What does not continue a known conversation begins a segment of its own.

mod call;
mod canonical;
mod open;
mod prompt;
mod registry;
mod settings;
mod state;
mod trie;

pub(crate) use call::CallReader;
pub(crate) use canonical::{choice_digest, request_digest};
pub use open::{OpenSession, SessionEnd, SessionLimit, SessionReward, SessionSpec, SessionStatus};
pub use registry::Sessions;
pub use settings::SessionSettings;
pub(crate) use state::{Entered, Session};
