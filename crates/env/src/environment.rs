use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;

use rloom_core::{Attachment, ChatMessage, RandomKey, Task};
use rloom_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::{EnvError, RecordedResponse, Turn};

/// A future that can be sent between threads and dropped at any await point, which cancels an environment that hangs.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An environment. One value serves any number of concurrent episodes.
pub trait Environment: Debug + Send + Sync {
    /// Name in configuration and messages.
    fn name(&self) -> &str;

    /// Starts an episode.
    ///
    /// The prompt must not be empty and must be the same for every episode of a task: the episodes of a group share it,
    /// and engines compute it once for all of them. Chance within the episode, such as the moves of an opponent, comes from
    /// `random` alone, so that an episode can be played again.
    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>>;

    /// True if the responses to turns are recorded, so that an episode which a resumed run continues does not ask for them
    /// again ([`Interaction::recall`]). By default environments are deterministic: they respond again as before.
    fn records_responses(&self) -> bool {
        false
    }

    /// What the environment is doing, for a report of what a run waits for.
    fn activity(&self) -> Option<String> {
        None
    }

    /// Numbers since the last call, for the metrics of a batch.
    fn take_metrics(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }
}

/// A started episode.
#[derive(Debug)]
pub struct Start {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Data that belongs to the prompt beyond its tokens, such as images.
    pub attachments: Vec<Attachment>,
    /// State key of the first turn, if the environment names states.
    pub state: Option<String>,
    /// The environment's side of the episode.
    pub interaction: Box<dyn Interaction>,
}

/// The environment's side of one episode.
///
/// Dropping it ends the episode and releases its resources (processes, connections).
pub trait Interaction: Debug + Send {
    /// Responds to the policy's turn.
    ///
    /// It is not called again after [`Next::Done`]. It is also called for a truncated turn
    /// ([`StopReason::is_truncated`]), so that the environment can reward it, but the observation is then ignored: a
    /// truncated turn ends the episode.
    ///
    /// [`StopReason::is_truncated`]: rloom_core::StopReason::is_truncated
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>>;

    /// Continues after a turn whose response is recorded, without any effect outside of the episode. Only called if the
    /// environment [records responses](Environment::records_responses).
    fn recall<'a>(
        &'a mut self,
        turn: &'a Turn,
        _recorded: &'a RecordedResponse,
    ) -> BoxFuture<'a, Result<(), EnvError>> {
        Box::pin(async move { self.step(turn).await.map(drop) })
    }

    /// An observation that the last step held back for the next segment, so that it is recorded with the response.
    fn held(&self) -> Option<&Observation> {
        None
    }

    /// Responds to a turn of a demonstration with given results of its calls, in their order, without running a tool; `None` if
    /// the environment has no tools.
    fn step_with_results<'a>(
        &'a mut self,
        _turn: &'a Turn,
        _results: &'a [ChatMessage],
    ) -> BoxFuture<'a, Result<Option<Response>, EnvError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// True if the turn of the last step carries no loss. That of an episode's last turn is not read: it always does.
    fn masks_turn(&self) -> bool {
        false
    }

    /// A next turn that follows the rules without a strategy, for demonstrations of tasks that have none.
    fn suggest(&mut self) -> Option<String> {
        None
    }

    /// What a person sees before a turn.
    fn view(&self) -> Option<View> {
        None
    }
}

/// An episode as a person sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The position, in one or more lines.
    pub board: String,
    /// Turns that are possible.
    pub moves: Vec<String>,
}

/// Response of the environment to a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// Continuation of the episode.
    pub next: Next,
    /// Step reward of the turn; `None` if the environment gives none. Either all turns of an episode have one or none has.
    /// An environment that detects success gives at least 1 to the successful turn and less to all others.
    pub reward: Option<f64>,
}

impl From<Next> for Response {
    fn from(next: Next) -> Self {
        Self { next, reward: None }
    }
}

/// Continuation of an episode after a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// An observation; the policy takes another turn.
    Observation(Observation),
    /// The policy takes another turn in a new segment of the episode, with another prompt.
    NewSegment(NewSegment),
    /// The episode is over.
    Done,
}

/// The prompt of a new segment. What the policy wrote before is part of it only as context: each sampled token carries loss
/// in the segment in which it was sampled, and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSegment {
    /// All tokens before the next turn; at least one.
    pub prompt: Vec<u32>,
    /// Number of tokens at its end that are an observation which no earlier segment contains.
    pub observed: usize,
    /// Data that belongs to the prompt beyond its tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// State key of the next turn, as in [`Observation`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// An observation of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Tokens of the observation; at least one.
    pub tokens: Vec<u32>,
    /// State key of the next turn, if the environment names states: turns of a task have equal keys if and only if the
    /// policy has the same information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl From<Vec<u32>> for Observation {
    fn from(tokens: Vec<u32>) -> Self {
        Self { tokens, state: None }
    }
}
