//! Turns of an episode: those of an earlier attempt, and those taken.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rloom_core::StopReason;
use rloom_engine::Generation;
use rloom_env::{AgentId, RecordedResponse, Turn};
use rloom_store::journal::PartialEpisode;

/// The turns that an earlier attempt at an episode has recorded.
pub(crate) struct RecordedTurns {
    by_agent: BTreeMap<AgentId, VecDeque<Turn>>,
    responses: Vec<RecordedResponse>,
}

impl RecordedTurns {
    pub(crate) fn new(from: Option<PartialEpisode>) -> Self {
        let PartialEpisode { turns, agents, responses } = from.unwrap_or_default();
        let mut by_agent: BTreeMap<AgentId, VecDeque<Turn>> = BTreeMap::new();
        for (place, turn) in turns.into_iter().enumerate() {
            let agent = agents.get(place).map_or(0, |&agent| agent as AgentId);
            by_agent.entry(agent).or_default().push_back(turn);
        }
        Self { by_agent, responses }
    }

    /// The next turn of an agent; an interrupted one is its last.
    pub(crate) fn next(&mut self, agent: AgentId) -> Option<Turn> {
        self.by_agent.get_mut(&agent)?.pop_front()
    }

    /// The response to the turn that is passed to the environment at a place in their order.
    pub(crate) fn response(&self, place: usize) -> Option<&RecordedResponse> {
        self.responses.get(place)
    }
}

/// The turns of an episode so far.
#[derive(Default)]
pub(crate) struct Turns {
    /// True if the episode has several agents.
    names_agents: bool,
    /// Those that were passed to the environment, in this order.
    taken: Vec<(AgentId, Turn)>,
    /// Those of the agents that were asked last.
    current: Mutex<BTreeMap<AgentId, Turn>>,
}

impl Turns {
    /// No turns of an episode with this number of agents.
    pub(crate) fn new(agents: usize) -> Self {
        Self { names_agents: agents > 1, ..Self::default() }
    }

    fn current(&self) -> MutexGuard<'_, BTreeMap<AgentId, Turn>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of turns that were passed to the environment.
    pub(crate) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Replaces the turn, finished or not, of an agent that was asked.
    pub(crate) fn set(&self, agent: AgentId, turn: Turn) {
        self.current().insert(agent, turn);
    }

    /// The turn of an agent that was asked, if it has begun.
    pub(crate) fn of(&self, agent: AgentId) -> Option<Turn> {
        self.current().get(&agent).cloned()
    }

    /// Returns the finished turns of the agents that were asked, in order, to be passed to the environment; `None` if one
    /// of them is not finished.
    pub(crate) fn finished(&self, asked: &[AgentId]) -> Option<Vec<(AgentId, Turn)>> {
        let current = self.current();
        let finished = |agent: &AgentId| {
            let turn = current.get(agent).filter(|turn| turn.stop != StopReason::Aborted)?;
            Some((*agent, turn.clone()))
        };
        asked.iter().map(finished).collect()
    }

    /// Records that a turn was passed to the environment.
    pub(crate) fn take(&mut self, agent: AgentId, turn: Turn) {
        self.current().remove(&agent);
        self.taken.push((agent, turn));
    }

    /// The turns as a resumed run continues them.
    pub(crate) fn partial(&self, responses: &[RecordedResponse]) -> PartialEpisode {
        let current = self.current();
        let current = current.iter().map(|(&agent, turn)| (agent, turn.clone()));
        let (agents, turns): (Vec<u32>, Vec<Turn>) =
            self.taken.iter().cloned().chain(current).map(|(agent, turn)| (agent as u32, turn)).unzip();
        let agents = if self.names_agents { agents } else { Vec::new() };
        PartialEpisode { turns, agents, responses: responses.to_vec() }
    }
}

pub(crate) fn into_turn(generation: Generation) -> Turn {
    let Generation { tokens, logprobs, temperature, versions, stop, .. } = generation;
    Turn { tokens, logprobs, temperature, versions, stop }
}

pub(crate) fn into_generation(turn: Turn) -> Generation {
    let Turn { tokens, logprobs, temperature, versions, stop } = turn;
    Generation { tokens, logprobs, temperature, versions, stop, replica: None }
}
