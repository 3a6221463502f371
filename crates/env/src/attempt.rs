use rloom_core::{
    Attachment, ChatMessage, PolicyId, PolicyVersion, RandomKey, SampleKey, StopReason, Task, Ticket,
    Trajectory, VersionSpan,
};
use rloom_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::agent_segments::{AgentPlace, AgentSegments};
use crate::{EnvError, Environment, Interaction, NewSegment, Next, Observation, Response, View};

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
    pub(crate) fn of(response: &Response, is_masked: bool, held: Option<&Observation>) -> Self {
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

/// A running episode of one agent: the tokens of its segments and the environment's side.
#[derive(Debug)]
pub struct Attempt {
    interaction: Box<dyn Interaction>,
    /// Responses to the turns, if the environment records them.
    responses: Option<Vec<RecordedResponse>>,
    segments: AgentSegments,
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
        let start = environment.start(task, tokenizer, random).await?;
        check_prompt(task, start.prompt.len(), context)?;
        let place = AgentPlace::alone(random.segment);
        let (prompt, attachments, state) = (start.prompt, start.attachments, start.state);
        Ok(Self {
            interaction: start.interaction,
            responses: environment.records_responses().then(Vec::new),
            segments: AgentSegments::start(prompt, attachments, state, context, key_of(random), place),
        })
    }

    /// Key of the segment of the next turn.
    pub fn key(&self) -> SampleKey {
        self.segments.key()
    }

    /// All tokens of the segment so far, which are the prefix of the next turn.
    pub fn tokens(&self) -> &[u32] {
        self.segments.tokens()
    }

    /// Data that belongs to the sequence beyond its tokens.
    pub fn attachments(&self) -> &[Attachment] {
        self.segments.attachments()
    }

    /// Maximum number of tokens of the next turn; at least one until the episode is over.
    pub fn room(&self) -> usize {
        self.segments.room()
    }

    /// True if the episode is over.
    pub fn is_over(&self) -> bool {
        self.segments.is_over()
    }

    /// Step rewards of the turns so far; empty if the environment gives none.
    pub fn step_rewards(&self) -> impl Iterator<Item = f64> {
        self.segments.step_rewards()
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
        self.segments.is_out_of_room()
    }

    /// Passes the policy's turn to the environment and appends it with the response.
    ///
    /// The span of the turn records the step reward and the state key. An observation that leaves no room for another turn
    /// is not appended: the episode ends as truncated ([`StopReason::Length`]). So it does if the prompt of a new segment
    /// leaves none. A new segment whose prompt continues the present one is no other segment. A truncated turn ends the
    /// episode.
    pub async fn turn(&mut self, turn: Turn) -> Result<Progress, EnvError> {
        self.segments.check(&turn)?;
        let response = self.interaction.step(&turn).await?;
        let is_masked = self.interaction.masks_turn();
        if let Some(responses) = &mut self.responses {
            responses.push(RecordedResponse::of(&response, is_masked, self.interaction.held()));
        }
        self.segments.respond(&turn, response.unless_truncated(&turn), is_masked)
    }

    /// Passes a turn of a demonstration to the environment, with the results of its calls; `None` if the environment has no tools.
    pub(crate) async fn turn_with_results(
        &mut self,
        turn: Turn,
        results: &[ChatMessage],
    ) -> Result<Option<Progress>, EnvError> {
        self.segments.check(&turn)?;
        match self.interaction.step_with_results(&turn, results).await? {
            Some(response) => self.segments.respond(&turn, response.unless_truncated(&turn), false).map(Some),
            None => Ok(None),
        }
    }

    /// Continues after a turn whose response was recorded: the environment does not respond again.
    pub async fn recall(&mut self, turn: &Turn, recorded: &RecordedResponse) -> Result<Progress, EnvError> {
        self.segments.check(turn)?;
        self.interaction.recall(turn, recorded).await?;
        if let Some(responses) = &mut self.responses {
            responses.push(recorded.clone());
        }
        let response = recorded.clone().response().unless_truncated(turn);
        self.segments.respond(turn, response, recorded.is_masked)
    }

    /// The responses to all turns; empty if the environment does not record them.
    pub fn responses(&self) -> &[RecordedResponse] {
        self.responses.as_deref().unwrap_or_default()
    }

    /// The validated segments, at least one. An episode that is not over counts as aborted; it must have a turn.
    ///
    /// Segments without a token that carries loss are left out, unless there are no others: there is nothing to train in
    /// them.
    pub fn finish(self) -> Result<Vec<Trajectory>, EnvError> {
        self.segments.finish()
    }
}

/// The key in a random key.
pub(crate) fn key_of(random: RandomKey) -> SampleKey {
    let RandomKey { ticket, sample, segment, .. } = random;
    SampleKey { ticket: Ticket(ticket), sample, segment }
}

/// Checks that a prompt has tokens and leaves room for a completion.
pub(crate) fn check_prompt(task: &Task, prompt: usize, context: usize) -> Result<(), EnvError> {
    match prompt {
        0 => Err(EnvError::EmptyPrompt { task: task.index }),
        _ if prompt >= context => Err(EnvError::PromptTooLong { task: task.index, prompt, context }),
        _ => Ok(()),
    }
}

impl Response {
    /// The response to a turn of an only agent, whose episode ends if the turn was truncated.
    pub(crate) fn unless_truncated(self, turn: &Turn) -> Self {
        if turn.stop.is_truncated() { Self { next: Next::Done, ..self } } else { self }
    }
}
