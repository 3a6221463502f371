use rloom_core::{Attachment, Author, SampleKey, Span, StepReward, StopReason, Trajectory, VersionSpan};

use crate::{EnvError, NewSegment, Next, Observation, Progress, Response, Turn, TurnProblem};

/// The segments of one agent in a running episode.
#[derive(Debug)]
pub struct AgentSegments {
    context: usize,
    /// Number of agents of the episode: the indices of an agent's segments are that far apart.
    stride: u32,
    turns: usize,
    /// Round of the episode in which the next turn was taken.
    round: Option<u32>,
    over: bool,
    /// State key of the next turn.
    state: Option<String>,
    /// Segments that are over.
    closed: Vec<Trajectory>,
    /// The segment of the next turn.
    trajectory: Trajectory,
}

/// The place of an agent in its episode.
#[derive(Debug, Clone)]
pub(crate) struct AgentPlace {
    /// Name; `None` if it is the only agent.
    pub(crate) name: Option<String>,
    /// Index of its first segment.
    pub(crate) first_segment: u32,
    /// Number of agents.
    pub(crate) agents: u32,
}

impl AgentPlace {
    /// The only agent of an episode whose first segment has this index.
    pub(crate) fn alone(first_segment: u32) -> Self {
        Self { name: None, first_segment, agents: 1 }
    }
}

impl AgentSegments {
    /// Starts the first segment with a prompt. `context` is the maximum number of tokens of a segment.
    pub(crate) fn start(
        prompt: Vec<u32>,
        attachments: Vec<Attachment>,
        state: Option<String>,
        context: usize,
        episode: SampleKey,
        place: AgentPlace,
    ) -> Self {
        let span = Span::new(Author::Prompt, 0..prompt.len());
        Self {
            context,
            stride: place.agents,
            turns: 0,
            round: None,
            over: false,
            state,
            closed: Vec::new(),
            trajectory: Trajectory {
                key: SampleKey { segment: place.first_segment, ..episode },
                agent: place.name,
                tokens: prompt,
                spans: vec![span],
                logprobs: Vec::new(),
                versions: Vec::new(),
                stop: StopReason::Aborted,
                attachments,
            },
        }
    }

    /// Key of the segment of the next turn.
    pub fn key(&self) -> SampleKey {
        self.trajectory.key
    }

    /// All tokens of the segment so far, which are the prefix of the next turn.
    pub fn tokens(&self) -> &[u32] {
        &self.trajectory.tokens
    }

    /// Data that belongs to the sequence beyond its tokens.
    pub fn attachments(&self) -> &[Attachment] {
        &self.trajectory.attachments
    }

    /// Maximum number of tokens of the next turn; at least one until the agent's part is over.
    pub fn room(&self) -> usize {
        self.context - self.trajectory.tokens.len()
    }

    /// True if the agent takes no further turn.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Step rewards of the turns so far; empty if the environment gives none.
    pub(crate) fn step_rewards(&self) -> impl Iterator<Item = f64> {
        self.closed.iter().chain([&self.trajectory]).flat_map(Trajectory::steps).map(|step| step.reward)
    }

    /// True if the agent's part is over because an observation left no room for another turn.
    pub(crate) fn is_out_of_room(&self) -> bool {
        self.over && self.trajectory.stop == StopReason::Length
    }

    /// Sets the round of the episode in which the next turn was taken.
    pub(crate) fn set_round(&mut self, round: Option<u32>) {
        self.round = round;
    }

    /// Appends a turn and the response to it.
    pub(crate) fn respond(
        &mut self,
        turn: &Turn,
        response: Response,
        is_masked: bool,
    ) -> Result<Progress, EnvError> {
        let Response { next, reward } = response;
        if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
            return Err(self.refused(TurnProblem::Reward { reward }));
        }
        let next = self.continued(next, turn);
        let room = self.room() - turn.tokens.len();
        let ends = match &next {
            Next::Observation(Observation { tokens, .. }) => tokens.len() >= room,
            Next::NewSegment(segment) => segment.prompt.len() >= self.context,
            Next::Done => true,
        };
        // An episode needs a turn that carries loss.
        self.append(turn, reward, is_masked && !ends);
        self.trajectory.stop = turn.stop;
        self.turns += 1;
        match next {
            Next::Observation(Observation { tokens, .. }) if tokens.is_empty() => {
                return Err(self.refused(TurnProblem::EmptyObservation));
            }
            Next::Observation(Observation { tokens, .. }) if tokens.len() >= self.room() => {
                self.trajectory.stop = StopReason::Length;
                self.over = true;
            }
            Next::Observation(Observation { tokens, state }) => {
                let from = self.trajectory.tokens.len();
                self.trajectory.tokens.extend(tokens);
                let range = from..self.trajectory.tokens.len();
                self.trajectory.spans.push(Span::new(Author::Environment, range));
                self.state = state;
            }
            Next::NewSegment(segment) => self.open(segment)?,
            Next::Done => self.over = true,
        }
        Ok(if self.over { Progress::Done } else { Progress::Continue })
    }

    /// A new segment that only adds tokens to the present one and the turn is an observation.
    fn continued(&self, next: Next, turn: &Turn) -> Next {
        let Next::NewSegment(segment) = next else { return next };
        let tokens = &self.trajectory.tokens;
        let rest = segment.prompt.strip_prefix(&tokens[..]);
        match rest.and_then(|rest| rest.strip_prefix(&turn.tokens[..])) {
            Some(added) if !added.is_empty() && segment.attachments == self.trajectory.attachments => {
                Next::Observation(Observation { tokens: added.to_vec(), state: segment.state })
            }
            _ => Next::NewSegment(segment),
        }
    }

    /// Continues in a new segment, if there is room for a turn.
    fn open(&mut self, segment: NewSegment) -> Result<(), EnvError> {
        let NewSegment { prompt, observed, attachments, state } = segment;
        if prompt.is_empty() || observed > prompt.len() {
            return Err(self.refused(TurnProblem::SegmentPrompt { prompt: prompt.len(), observed }));
        }
        if prompt.len() >= self.context {
            self.trajectory.stop = StopReason::Length;
            self.over = true;
            return Ok(());
        }
        let known = prompt.len() - observed;
        let spans =
            [Span::new(Author::Prompt, 0..known), Span::new(Author::Environment, known..prompt.len())];
        let key = self.trajectory.key;
        let next = Trajectory {
            key: SampleKey { segment: key.segment + self.stride, ..key },
            agent: self.trajectory.agent.clone(),
            spans: spans.into_iter().filter(|span| !span.range.is_empty()).collect(),
            tokens: prompt,
            logprobs: Vec::new(),
            versions: Vec::new(),
            stop: StopReason::Aborted,
            attachments,
        };
        self.closed.push(std::mem::replace(&mut self.trajectory, next));
        self.state = state;
        Ok(())
    }

    /// Number of turns taken.
    pub(crate) fn turns(&self) -> usize {
        self.turns
    }

    /// Ends the agent's part before its pending turn.
    pub(crate) fn truncate(&mut self) {
        self.trajectory.stop = StopReason::Length;
        self.over = true;
    }

    /// The validated segments, at least one. A part that is not over counts as aborted; it must have a turn.
    ///
    /// Segments without a token that carries loss are left out, unless there are no others: there is nothing to train in
    /// them.
    pub(crate) fn finish(self) -> Result<Vec<Trajectory>, EnvError> {
        let Self { mut closed, trajectory: mut last, .. } = self;
        if self.turns == 0 {
            return Err(EnvError::NoTurn { key: last.key });
        }
        if !self.over {
            last.stop = StopReason::Aborted;
        }
        closed.retain(|segment| segment.policy_tokens() > 0);
        match closed.last_mut() {
            // The episode ends as its last turn did.
            Some(before) if last.policy_tokens() == 0 => before.stop = last.stop,
            _ => closed.push(last),
        }
        closed.iter().try_for_each(Trajectory::validate)?;
        Ok(closed)
    }

    /// Appends a turn. A turn without tokens (aborted before the first one) adds nothing: it cannot receive credit. A masked
    /// turn is part of what the environment wrote: only the policy's tokens carry loss.
    fn append(&mut self, turn: &Turn, reward: Option<f64>, is_masked: bool) {
        let from = self.trajectory.tokens.len();
        let state = self.state.take();
        if turn.tokens.is_empty() {
            return;
        }
        let step = (reward.is_some() || state.is_some())
            .then(|| StepReward { reward: reward.unwrap_or(0.0), state });
        self.trajectory.tokens.extend_from_slice(&turn.tokens);
        let range = from..self.trajectory.tokens.len();
        if is_masked {
            self.trajectory.spans.push(Span::new(Author::Environment, range));
            return;
        }
        self.trajectory.spans.push(Span {
            step,
            round: self.round,
            ..Span::new(Author::Policy, range).with_temperature(turn.temperature)
        });
        self.trajectory.logprobs.extend_from_slice(&turn.logprobs);
        self.trajectory.versions.extend(
            turn.versions
                .iter()
                .map(|v| VersionSpan { range: v.range.start + from..v.range.end + from, ..v.clone() }),
        );
    }

    /// Checks a turn, since inconsistent data would be trained on unnoticed.
    pub(crate) fn check(&self, turn: &Turn) -> Result<(), EnvError> {
        if self.over {
            return Err(EnvError::Over { key: self.trajectory.key });
        }
        let (tokens, room) = (turn.tokens.len(), self.room());
        if tokens > room {
            return Err(self.refused(TurnProblem::TooLong { tokens, room }));
        }
        if turn.logprobs.len() != tokens {
            let logprobs = turn.logprobs.len();
            return Err(self.refused(TurnProblem::LogprobCount { logprobs, tokens }));
        }
        // Rounding can raise the log-probability of a near-certain token slightly above zero.
        let is_valid = |p: f32| p.is_finite() && p < 1e-3;
        if let Some(position) = turn.logprobs.iter().position(|&p| !is_valid(p)) {
            let logprob = turn.logprobs[position];
            return Err(self.refused(TurnProblem::Logprob { position, logprob }));
        }
        if !(turn.temperature.is_finite() && turn.temperature > 0.0) {
            return Err(self.refused(TurnProblem::Temperature { temperature: turn.temperature }));
        }
        let mut end = 0;
        let in_order = turn.versions.iter().all(|span| {
            let follows = span.range.start == end && span.range.end > end;
            end = span.range.end;
            follows
        });
        if !in_order || end != tokens {
            return Err(self.refused(TurnProblem::Versions { tokens }));
        }
        Ok(())
    }

    fn refused(&self, problem: TurnProblem) -> EnvError {
        EnvError::Turn { key: self.trajectory.key, turn: self.turns, problem }
    }
}
