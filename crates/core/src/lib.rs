//! The vocabulary of RLoom: what the rooms of the workspace say to each other.
//!
//! Tokens are the only truth. A [`Trajectory`] is token ids from the first prompt token to the last observation;
//! text appears at the edges alone. Nothing here does I/O, starts a thread or computes on tensors.

mod episode;
pub mod metric;
mod random;
mod schedule;
mod task;
mod trajectory;

pub use episode::{Episode, Group, RewardComponent, Rewards, Role};
pub use random::{Purpose, RandomKey, RandomStream};
pub use schedule::OnUpdate;
pub use task::{ChatMessage, PromptSource, Task, WorkedExample};
pub use trajectory::{
    Author, PolicyVersion, SampleKey, Span, Step, StopReason, Ticket, Trajectory, TrajectoryError,
    VersionSpan,
};
