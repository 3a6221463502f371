//! An inference server: the APIs of OpenAI (chat completions, completions, responses) and Anthropic (messages) over one
//! [`RolloutEngine`](rloom_engine::RolloutEngine).
//!
//! ```text
//! JSON ──► wire: Ask (conversation, sampling) ──► prompt: exact tokens ──► engine
//!                                                                            │ tokens, as they are sampled
//! JSON or server-sent events ◄── wire ◄── reply: reasoning, text, calls ◄────┘
//! ```
//!
//! In a session ([`Sessions`]) the calls of an agent become one episode: the prompt of a call is the tokens of the calls before it,
//! and the rendering of what is new.
//!
//! Each API is one file of `wire`. It reads its requests strictly: what cannot be honoured is an error that names the field.
//! A complete answer is the sum of the parts that a stream sends, so both have the same content. Dropping an answer, because
//! its client disconnected, cancels the completion.

mod ask;
mod conversation;
mod error;
mod fields;
mod http;
mod model;
mod problem;
mod prompt;
mod reply;
mod running;
mod sampler;
mod session;
mod settings;
mod wire;

pub use error::ServeError;
pub use http::{
    ApiKey, Exchange, Extension, ExtensionAnswer, ExtensionFuture, ExtensionRequest, ExtensionRoute, Server,
    Stopper, listen,
};
pub use model::ServedModel;
pub use sampler::{Check, Completion, Sampler};
pub use session::{
    OpenSession, SessionEnd, SessionLimit, SessionReward, SessionSettings, SessionSpec, SessionStatus,
    Sessions,
};
pub use settings::ServeSettings;
