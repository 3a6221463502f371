use rloom_core::{RandomKey, SampleKey, Task, Trajectory};
use rloom_text::Tokenizer;

use crate::agent_segments::{AgentPlace, AgentSegments};
use crate::attempt::{check_prompt, key_of};
use crate::{
    Ack, AgentId, AgentSpec, EnvError, Input, NewSegment, Next, Outcome, Play, Progress, RecordedResponse,
    Response, Turn, World,
};

/// A running episode of a world: its play and the segments of its agents.
///
/// ```text
/// begin ──► ready() ──┬─ agents: their turns are sampled from segments(agent) ──► act(agent, turn) for each ──► ready()
///                     └─ none: finish() ──► segments and outcome
/// ```
#[derive(Debug)]
pub struct Playthrough {
    play: Box<dyn Play>,
    task: Task,
    key: SampleKey,
    context: usize,
    agents: Vec<AgentState>,
    /// Number of rounds so far.
    rounds: u32,
    /// Responses to the turns, if the world records them.
    responses: Vec<RecordedResponse>,
    /// True if an agent had no room for what it would be told.
    is_cut: bool,
    /// The outcome of an episode that is over.
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct AgentState {
    place: AgentPlace,
    /// `None` before its first turn.
    segments: Option<AgentSegments>,
    /// Its last turn, until it is known whether another one follows.
    last: Option<LastTurn>,
}

#[derive(Debug)]
struct LastTurn {
    turn: Turn,
    /// Its round, in an episode of several agents.
    round: Option<u32>,
    reward: Option<f64>,
    is_masked: bool,
}

/// A finished episode.
#[derive(Debug)]
pub struct FinishedEpisode {
    /// The segments of all agents, agent by agent.
    pub segments: Vec<Trajectory>,
    /// The outcome.
    pub outcome: Outcome,
}

impl Playthrough {
    /// Begins an episode. `context` is the maximum number of tokens of a segment; `random` contains the key of the first.
    ///
    /// The segments of the agents have indices that depend on neither timing nor turns: with n agents, segment k of agent a
    /// has the index k·n + a.
    pub async fn begin(
        world: &dyn World,
        task: &Task,
        tokenizer: &Tokenizer,
        context: usize,
        random: RandomKey,
    ) -> Result<Self, EnvError> {
        let play = world.begin(task, tokenizer, random).await?;
        let (key, count) = (key_of(random), world.agents().len());
        let agent = |(index, agent): (usize, &AgentSpec)| AgentState {
            place: AgentPlace {
                name: (count > 1).then(|| agent.name.clone()),
                first_segment: key.segment + index as u32,
                agents: count as u32,
            },
            segments: None,
            last: None,
        };
        Ok(Self {
            play,
            task: task.clone(),
            key,
            context,
            agents: world.agents().iter().enumerate().map(agent).collect(),
            rounds: 0,
            responses: Vec::new(),
            is_cut: false,
            outcome: None,
        })
    }

    /// The agents whose turns can be taken now, in order; none at the end of the episode. Called when the turns of the last
    /// round have been taken.
    ///
    /// An observation or a prompt that leaves no room for a turn ends the episode as truncated
    /// ([`StopReason::Length`](rloom_core::StopReason::Length)).
    pub fn ready(&mut self) -> Result<Vec<AgentId>, EnvError> {
        let mut asks = if self.is_cut { Vec::new() } else { self.play.ready() };
        asks.sort_by_key(|ask| ask.agent);
        let mut ready = Vec::new();
        for ask in asks {
            self.tell(ask.agent, ask.input)?;
            ready.push(ask.agent);
        }
        if self.is_cut {
            ready.clear();
        }
        if ready.is_empty() {
            self.end()?;
        }
        self.rounds += 1;
        Ok(ready)
    }

    /// Ends the episode. The step rewards of an agent with a reward of its own add up to it: what is missing is added to the
    /// last one.
    fn end(&mut self) -> Result<(), EnvError> {
        let outcome = self.outcome.insert(self.play.end());
        for agent in &mut self.agents {
            let reward = agent.place.name.as_ref().and_then(|name| outcome.agents.get(name));
            if let (Some(reward), Some(segments), Some(last)) = (reward, &agent.segments, &mut agent.last)
                && last.reward.is_some()
            {
                last.reward = Some(reward - segments.step_rewards().sum::<f64>());
            }
            agent.respond(Next::Done)?;
            if let Some(segments) = agent.segments.as_mut().filter(|segments| !segments.is_over()) {
                segments.truncate();
            }
        }
        Ok(())
    }

    fn tell(&mut self, agent: AgentId, input: Input) -> Result<(), EnvError> {
        let is_first = self.agents.iter().all(|agent| agent.segments.is_none() || agent.turns() == 0);
        let (task, context, key) = (&self.task, self.context, self.key);
        let unknown = || EnvError::UnknownAgent { key, agent };
        let state = self.agents.get_mut(agent).ok_or_else(unknown)?;
        if state.last.is_some() {
            let next = match input {
                Input::Prompt(segment) => Next::NewSegment(segment),
                Input::Observation(observation) => Next::Observation(observation),
            };
            self.is_cut |= state.respond(next)? == Progress::Done;
            return Ok(());
        }
        let Input::Prompt(NewSegment { prompt, attachments, state: name, .. }) = input else {
            return Err(unknown());
        };
        if state.segments.is_some() {
            return Err(unknown());
        }
        match check_prompt(task, prompt.len(), context) {
            Err(EnvError::PromptTooLong { .. }) if !is_first => self.is_cut = true,
            checked => {
                checked?;
                let place = state.place.clone();
                let started = AgentSegments::start(prompt, attachments, name, context, key, place);
                state.segments = Some(started);
            }
        }
        Ok(())
    }

    /// The segments of an agent that has been asked.
    pub fn segments(&self, agent: AgentId) -> Result<&AgentSegments, EnvError> {
        let segments = self.agents.get(agent).and_then(|agent| agent.segments.as_ref());
        segments.ok_or(EnvError::UnknownAgent { key: self.key, agent })
    }

    /// Passes the turn of an agent to the world.
    pub async fn act(&mut self, agent: AgentId, turn: Turn) -> Result<(), EnvError> {
        self.segments(agent)?.check(&turn)?;
        let ack = self.play.act(agent, &turn).await?;
        self.take(agent, turn, ack)
    }

    /// Continues after a turn whose response was recorded: the world does not respond again.
    pub async fn recall(
        &mut self,
        agent: AgentId,
        turn: Turn,
        recorded: &RecordedResponse,
    ) -> Result<(), EnvError> {
        self.segments(agent)?.check(&turn)?;
        let ack = self.play.recall(agent, &turn, recorded).await?;
        self.take(agent, turn, ack)
    }

    fn take(&mut self, agent: AgentId, turn: Turn, ack: Ack) -> Result<(), EnvError> {
        let Ack { reward, is_masked, recorded } = ack;
        self.responses.extend(recorded);
        let unknown = EnvError::UnknownAgent { key: self.key, agent };
        let state = self.agents.get_mut(agent).ok_or(unknown)?;
        let round = state.place.name.is_some().then(|| self.rounds.saturating_sub(1));
        state.last = Some(LastTurn { turn, round, reward, is_masked });
        Ok(())
    }

    /// The responses to all turns; empty if the world does not record them.
    pub fn responses(&self) -> &[RecordedResponse] {
        &self.responses
    }

    /// The validated segments, at least one, and the outcome.
    ///
    /// Agents that took no turn have no segments. Segments without a token that carries loss are left out, unless their
    /// agent has no others.
    pub fn finish(mut self) -> Result<FinishedEpisode, EnvError> {
        let outcome = self.outcome.take().unwrap_or_else(|| self.play.end());
        let mut segments = Vec::new();
        for agent in self.agents {
            let Some(own) = agent.segments.filter(|own| own.turns() > 0) else { continue };
            segments.extend(own.finish()?);
        }
        if segments.is_empty() {
            return Err(EnvError::NoTurn { key: self.key });
        }
        Ok(FinishedEpisode { segments, outcome })
    }
}

impl AgentState {
    fn turns(&self) -> usize {
        self.segments.as_ref().map_or(0, AgentSegments::turns) + usize::from(self.last.is_some())
    }

    /// Appends the last turn with what follows it.
    fn respond(&mut self, next: Next) -> Result<Progress, EnvError> {
        match (&mut self.segments, self.last.take()) {
            (Some(segments), Some(LastTurn { turn, round, reward, is_masked })) => {
                segments.set_round(round);
                segments.respond(&turn, Response { next, reward }, is_masked)
            }
            _ => Ok(Progress::Continue),
        }
    }
}
