use rloom_core::{
    Attachment, Author, ChatMessage, PolicyId, PolicyVersion, RandomKey, SampleKey, Span, StepReward,
    StopReason, Task, Ticket, Trajectory, VersionSpan,
};
use rloom_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::{EnvError, Environment, Interaction, NewSegment, Next, Observation, Response, TurnProblem, View};

/// One turn of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Tokens of the turn; a sampled stop token is the last one.
    pub tokens: Vec<u32>,
    /// Log-probability of each token (nats).
    pub logprobs: Vec<f32>,
    /// Temperature of the log-probabilities.
    pub temperature: f32,
    /// Policy versions that sampled the tokens; ranges start at the turn's first token.
    pub versions: Vec<VersionSpan>,
    /// Reason for the end of generation.
    pub stop: StopReason,
}

/// The environment's response to a turn, as an episode records it that a resumed run continues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedResponse {
    /// Tokens of the observation; `None` at the end of the episode or of the segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<Vec<u32>>,
    /// The segment in which the episode continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<NewSegment>,
    /// An observation that the environment holds back for the next segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Observation>,
    /// State key of the next turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Step reward of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// The turn carries no loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_masked: bool,
}

impl RecordedResponse {
    /// The record of a response.
    fn of(response: &Response, is_masked: bool, held: Option<&Observation>) -> Self {
        let mut recorded = Self {
            observation: None,
            segment: None,
            held: held.cloned(),
            state: None,
            reward: response.reward,
            is_masked,
        };
        match &response.next {
            Next::Observation(Observation { tokens, state }) => {
                recorded.observation = Some(tokens.clone());
                recorded.state.clone_from(state);
            }
            Next::NewSegment(segment) => recorded.segment = Some(segment.clone()),
            Next::Done => {}
        }
        recorded
    }

    /// The response.
    pub(crate) fn response(self) -> Response {
        let next = match (self.observation, self.segment) {
            (Some(tokens), _) => Next::Observation(Observation { tokens, state: self.state }),
            (None, Some(segment)) => Next::NewSegment(segment),
            (None, None) => Next::Done,
        };
        Response { next, reward: self.reward }
    }
}

impl Turn {
    /// A turn that no policy has sampled, such as a demonstration's; it ends with its stop token.
    pub fn unsampled(tokens: Vec<u32>) -> Self {
        Self {
            logprobs: vec![0.0; tokens.len()],
            versions: vec![VersionSpan {
                policy: PolicyId::MAIN,
                version: PolicyVersion(0),
                range: 0..tokens.len(),
            }],
            tokens,
            temperature: 1.0,
            stop: StopReason::StopToken,
        }
    }
}

/// State of an episode after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The policy takes another turn, with [`Attempt::tokens`] as its prefix.
    Continue,
    /// The episode is over.
    Done,
}

/// A running episode: the tokens of its segments and the environment's side.
#[derive(Debug)]
pub struct Attempt {
    interaction: Box<dyn Interaction>,
    context: usize,
    turns: usize,
    over: bool,
    /// State key of the next turn.
    state: Option<String>,
    /// Responses to the turns, if the environment records them.
    responses: Option<Vec<RecordedResponse>>,
    /// Segments that are over.
    closed: Vec<Trajectory>,
    /// The segment of the next turn.
    trajectory: Trajectory,
}

impl Attempt {
    /// Starts an episode. `context` is the maximum number of tokens of a segment; `random` contains the key of the first.
    pub async fn start(
        environment: &dyn Environment,
        task: &Task,
        tokenizer: &Tokenizer,
        context: usize,
        random: RandomKey,
    ) -> Result<Self, EnvError> {
        let RandomKey { ticket, sample, segment, .. } = random;
        let key = SampleKey { ticket: Ticket(ticket), sample, segment };
        let start = environment.start(task, tokenizer, random).await?;
        let prompt = start.prompt.len();
        if prompt == 0 {
            return Err(EnvError::EmptyPrompt { task: task.index });
        }
        if prompt >= context {
            return Err(EnvError::PromptTooLong { task: task.index, prompt, context });
        }
        let span = Span::new(Author::Prompt, 0..prompt);
        Ok(Self {
            interaction: start.interaction,
            context,
            turns: 0,
            over: false,
            state: start.state,
            responses: environment.records_responses().then(Vec::new),
            closed: Vec::new(),
            trajectory: Trajectory {
                key,
                tokens: start.prompt,
                spans: vec![span],
                logprobs: Vec::new(),
                versions: Vec::new(),
                stop: StopReason::Aborted,
                attachments: start.attachments,
            },
        })
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

    /// Maximum number of tokens of the next turn; at least one until the episode is over.
    pub fn room(&self) -> usize {
        self.context - self.trajectory.tokens.len()
    }

    /// True if the episode is over.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Step rewards of the turns so far; empty if the environment gives none.
    pub fn step_rewards(&self) -> impl Iterator<Item = f64> {
        self.closed.iter().chain([&self.trajectory]).flat_map(Trajectory::steps).map(|step| step.reward)
    }

    /// What a person sees before the next turn, if the environment shows it.
    pub fn view(&self) -> Option<View> {
        self.interaction.view()
    }

    /// A next turn without a strategy, if the environment has one.
    pub(crate) fn suggest(&mut self) -> Option<String> {
        self.interaction.suggest()
    }

    /// True if the episode is over because an observation left no room for another turn.
    pub(crate) fn is_out_of_room(&self) -> bool {
        self.over && self.trajectory.stop == StopReason::Length
    }

    /// Passes the policy's turn to the environment and appends it with the response.
    ///
    /// The span of the turn records the step reward and the state key. An observation that leaves no room for another turn
    /// is not appended: the episode ends as truncated ([`StopReason::Length`]). So it does if the prompt of a new segment
    /// leaves none. A new segment whose prompt continues the present one is no other segment.
    pub async fn turn(&mut self, turn: Turn) -> Result<Progress, EnvError> {
        if self.over {
            return Err(EnvError::Over { key: self.trajectory.key });
        }
        self.check(&turn)?;
        let response = self.interaction.step(&turn).await?;
        let is_masked = self.interaction.masks_turn();
        if let Some(responses) = &mut self.responses {
            responses.push(RecordedResponse::of(&response, is_masked, self.interaction.held()));
        }
        self.respond(&turn, response, is_masked)
    }

    /// Passes a turn of a demonstration to the environment, with the results of its calls; `None` if the environment has no tools.
    pub(crate) async fn turn_with_results(
        &mut self,
        turn: Turn,
        results: &[ChatMessage],
    ) -> Result<Option<Progress>, EnvError> {
        self.check(&turn)?;
        match self.interaction.step_with_results(&turn, results).await? {
            Some(response) => self.respond(&turn, response, false).map(Some),
            None => Ok(None),
        }
    }

    /// Continues after a turn whose response was recorded: the environment does not respond again.
    pub async fn recall(&mut self, turn: &Turn, recorded: &RecordedResponse) -> Result<Progress, EnvError> {
        if self.over {
            return Err(EnvError::Over { key: self.trajectory.key });
        }
        self.check(turn)?;
        self.interaction.recall(turn, recorded).await?;
        if let Some(responses) = &mut self.responses {
            responses.push(recorded.clone());
        }
        self.respond(turn, recorded.clone().response(), recorded.is_masked)
    }

    /// The responses to all turns; empty if the environment does not record them.
    pub fn responses(&self) -> &[RecordedResponse] {
        self.responses.as_deref().unwrap_or_default()
    }

    /// Appends a turn and the response to it.
    fn respond(&mut self, turn: &Turn, response: Response, is_masked: bool) -> Result<Progress, EnvError> {
        let Response { next, reward } = response;
        if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
            return Err(self.refused(TurnProblem::Reward { reward }));
        }
        let next = self.continued(next, turn);
        let room = self.room() - turn.tokens.len();
        let is_truncated = turn.stop.is_truncated();
        let ends = match &next {
            Next::Observation(Observation { tokens, .. }) => is_truncated || tokens.len() >= room,
            Next::NewSegment(segment) => is_truncated || segment.prompt.len() >= self.context,
            Next::Done => true,
        };
        // An episode needs a turn that carries loss.
        self.append(turn, reward, is_masked && !ends);
        self.trajectory.stop = turn.stop;
        self.turns += 1;
        match next {
            Next::Observation(_) | Next::NewSegment(_) if is_truncated => self.over = true,
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
        let key = SampleKey { segment: self.trajectory.key.segment + 1, ..self.trajectory.key };
        let next = Trajectory {
            key,
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

    /// The validated segments, at least one. An episode that is not over counts as aborted; it must have a turn.
    ///
    /// Segments without a token that carries loss are left out, unless there are no others: there is nothing to train in
    /// them.
    pub fn finish(self) -> Result<Vec<Trajectory>, EnvError> {
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
        self.trajectory
            .spans
            .push(Span { step, ..Span::new(Author::Policy, range).with_temperature(turn.temperature) });
        self.trajectory.logprobs.extend_from_slice(&turn.logprobs);
        self.trajectory.versions.extend(
            turn.versions
                .iter()
                .map(|v| VersionSpan { range: v.range.start + from..v.range.end + from, ..v.clone() }),
        );
    }

    /// Checks a turn, since inconsistent data would be trained on unnoticed.
    fn check(&self, turn: &Turn) -> Result<(), EnvError> {
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
