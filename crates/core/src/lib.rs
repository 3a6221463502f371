//! The vocabulary of RLoom: the types that the crates of the workspace exchange.
//!
//! Tokens are the primary representation. A [`Trajectory`] contains token ids from the first prompt token to the last
//! observation; text exists only for input and display. Nothing here does I/O, starts a thread or computes on tensors.
//!
//! The [`glossary`] defines the terms of the workspace.

mod apportion;
mod base64_bytes;
mod episode;
mod error_text;
mod field_names;
pub mod glossary;
mod history;
pub mod metric;
mod preference;
mod program;
mod random;
mod schedule;
mod setting;
mod task;
mod trajectory;
mod verdict;

pub use apportion::Apportionment;
pub use episode::{Episode, Group, RewardComponent, Rewards, Role};
pub use error_text::{ErrorText, hints};
pub use field_names::field_names;
pub use history::{EarlierReasoning, History, SummarySettings};
pub use preference::{
    LabelledCompletion, LabelledStep, LabelledSteps, LossOn, MARGIN, PREFERENCE, Preference,
};
pub use program::Program;
pub use random::{Purpose, RandomKey, RandomStream};
pub use schedule::OnUpdate;
pub use setting::{SettingError, SettingProblem, ValueRange};
pub use task::{ChatMessage, Content, Demonstration, Draw, PromptSource, Task};
pub use trajectory::{
    Attachment, Author, PolicyId, PolicyVersion, SampleKey, Span, StepReward, StopReason, Ticket, Trajectory,
    TrajectoryError, VersionSpan,
};
pub use verdict::{Failure, FailureKind, Verdict};
