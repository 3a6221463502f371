use std::fmt::Debug;
use std::pin::Pin;

use rloom_core::Task;
use rloom_text::Tokenizer;

use crate::{EnvError, Turn};

/// A future that may be sent between threads and can be dropped at any await: this is how an environment that
/// hangs is cancelled.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something that a policy can act in. One value serves any number of episodes at the same time.
pub trait Environment: Debug + Send + Sync {
    /// Its name in configuration and messages.
    fn name(&self) -> &str;

    /// Begins an episode.
    ///
    /// The prompt must not be empty and must be the same whenever the same task is begun: the samples of a
    /// group share it, and an engine computes it once for all of them.
    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
    ) -> BoxFuture<'a, Result<Start, EnvError>>;
}

/// An episode that has begun.
#[derive(Debug)]
pub struct Start {
    /// What the policy sees first.
    pub prompt: Vec<u32>,
    /// The state key of the first turn, where the environment names states.
    pub state: Option<String>,
    /// Who answers it.
    pub interaction: Box<dyn Interaction>,
}

/// The environment's side of one episode.
///
/// Dropping it ends the episode: whatever it holds (a process, a connection) is released then.
pub trait Interaction: Debug + Send {
    /// Takes the policy's turn and says what comes of it.
    ///
    /// It is not called again after [`Next::Done`]. It is called for a turn that was cut off
    /// ([`StopReason::is_truncated`]) too, so that it can judge what is there, but its observation is then
    /// not used: an unfinished turn ends the episode.
    ///
    /// [`StopReason::is_truncated`]: rloom_core::StopReason::is_truncated
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Answer, EnvError>>;
}

/// What comes of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What follows it.
    pub next: Next,
    /// What the turn earned of itself; `None` where the environment rewards no steps. Either all turns of an episode
    /// have one or none has. An environment that can tell success gives the turn that succeeds 1, and no other turn
    /// as much.
    pub reward: Option<f64>,
}

impl From<Next> for Answer {
    fn from(next: Next) -> Self {
        Self { next, reward: None }
    }
}

/// What follows a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The policy sees this and has another turn.
    Observation(Observation),
    /// The episode is over.
    Done,
}

/// What the policy is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Its tokens: never none.
    pub tokens: Vec<u32>,
    /// The state key of the turn that follows, where the environment names states: the same for turns of a task's
    /// attempts exactly if the policy knows the same there.
    pub state: Option<String>,
}

impl From<Vec<u32>> for Observation {
    fn from(tokens: Vec<u32>) -> Self {
        Self { tokens, state: None }
    }
}
