use std::collections::BTreeMap;
use std::fmt::Debug;

use rloom_core::{RandomKey, Task};
use rloom_text::Tokenizer;

use crate::{BoxFuture, EnvError, NewSegment, Observation, RecordedResponse, Turn};

/// An environment of one agent or several. One value serves any number of concurrent episodes.
///
/// An [`Environment`](crate::Environment) is a world of one agent: [`Solo`](crate::Solo).
pub trait World: Debug + Send + Sync {
    /// Name in configuration and messages.
    fn name(&self) -> &str;

    /// The agents, at least one. Their order is that of their asks, acts and segments.
    fn agents(&self) -> &[AgentSpec];

    /// Begins an episode.
    ///
    /// The prompts of the first asks must be the same for every episode of a task, as those of an environment. Chance within
    /// the episode comes from `random` alone.
    fn begin<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>>;

    /// What the agents answer together if these are their texts, in their order; `None` unless each agent takes a single turn
    /// that depends on no other, so that turns of different episodes can be combined.
    fn combined(&self, _texts: &[String]) -> Option<String> {
        None
    }

    /// True if the responses to turns are recorded, so that an episode which a resumed run continues does not ask for them
    /// again ([`Play::recall`]). By default worlds are deterministic: they respond again as before.
    fn records_responses(&self) -> bool {
        false
    }

    /// What the world is doing, for a report of what a run waits for.
    fn activity(&self) -> Option<String> {
        None
    }

    /// Numbers since the last call, for the metrics of a batch.
    fn take_metrics(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }
}

/// Index of an agent in [`World::agents`].
pub type AgentId = usize;

/// An agent of a world: a role with a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSpec {
    /// Name of the role, in trajectories, rewards and metrics.
    pub name: String,
    /// Name of the policy that plays it.
    pub policy: String,
}

/// Name of the policy that a run trains unless it names another.
pub const MAIN_POLICY: &str = "main";

impl AgentSpec {
    /// An agent that the main policy plays.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), policy: MAIN_POLICY.to_owned() }
    }
}

/// The world's side of one episode. It advances in rounds: [`ready`](Self::ready) returns the agents whose turns can be taken
/// now, independently of each other, and [`act`](Self::act) receives these turns in the order of the agents. Nothing
/// depends on which of them was generated first.
///
/// Dropping it ends the episode and releases its resources.
pub trait Play: Debug + Send {
    /// The asks of the next round, one per agent at most; none at the end of the episode. Called again when all of them are
    /// answered.
    fn ready(&mut self) -> Vec<Ask>;

    /// Receives the turn of an agent that was asked. A turn can be truncated
    /// ([`StopReason::is_truncated`](rloom_core::StopReason::is_truncated)).
    fn act<'a>(&'a mut self, agent: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>>;

    /// Continues after a turn whose response is recorded, without any effect outside of the episode. Only called if the
    /// world [records responses](World::records_responses).
    fn recall<'a>(
        &'a mut self,
        agent: AgentId,
        turn: &'a Turn,
        _recorded: &'a RecordedResponse,
    ) -> BoxFuture<'a, Result<Ack, EnvError>> {
        self.act(agent, turn)
    }

    /// The outcome of the episode, which is over: no agent is ready, or one had no room for what it would be told.
    fn end(&mut self) -> Outcome;
}

/// What an agent is told before its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The agent.
    pub agent: AgentId,
    /// What it is told.
    pub input: Input,
}

/// What an agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A prompt: its first one, or that of a new segment.
    Prompt(NewSegment),
    /// An observation that follows its last turn.
    Observation(Observation),
}

/// Response to a turn, before anybody is asked again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ack {
    /// Step reward of the turn; `None` if the world gives none. Either all turns of an agent have one or none has.
    pub reward: Option<f64>,
    /// The turn carries no loss. That of an agent's last turn is not read: it always does.
    pub is_masked: bool,
    /// The record of the response, if the world [records responses](World::records_responses).
    pub recorded: Option<RecordedResponse>,
}

/// Outcome of an episode.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Reward of each agent by name; empty if the agents share the reward of the episode.
    pub agents: BTreeMap<String, f64>,
    /// What the agents answer together, which rewards judge; `None` for the text that the policy wrote.
    pub answer: Option<String>,
    /// Further numbers, for metrics.
    pub metrics: BTreeMap<String, f64>,
    /// Turns that rewards judge one by one, in their order. Turns without tokens are left out.
    pub judged: Vec<JudgedTurn>,
}

/// The text of a turn that rewards judge by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedTurn {
    /// The agent.
    pub agent: AgentId,
    /// Its text.
    pub text: String,
}
