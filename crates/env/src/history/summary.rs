//! Summaries by the policy in place of earlier turns.

use rloom_core::{Attachment, ChatMessage, PromptSource, StopReason, SummarySettings, Task};
use rloom_text::{RenderOptions, TextError, Tokenizer};

use crate::dialogue::after_reasoning;
use crate::environment::View;
use crate::{
    BoxFuture, EnvError, Interaction, NewSegment, Next, Observation, RecordedResponse, Response, Start, Turn,
};

/// A request for a summary that the policy has not answered yet.
#[derive(Debug)]
struct Asked {
    /// What the environment answered to the turn before.
    held: Observation,
    /// The token with which that turn ended: what the environment answered continues it.
    end: Option<u32>,
    /// The environment gives step rewards.
    has_rewards: bool,
}

/// An episode in which the policy is asked for a summary when a segment becomes long.
///
/// The segment ends with the summary. The next one consists of the prompt, the summary in the place of the first turn, and
/// what the environment answered to the last turn before it. Reasoning that precedes the summary is not part of it.
#[derive(Debug)]
pub(super) struct Summary {
    inner: Box<dyn Interaction>,
    tokenizer: Tokenizer,
    task: u64,
    /// Messages of the prompt; `None` if it is text.
    messages: Option<Vec<ChatMessage>>,
    limit: usize,
    request: String,
    prompt: Vec<u32>,
    attachments: Vec<Attachment>,
    /// Tokens of the present segment.
    tokens: usize,
    asked: Option<Asked>,
    /// The last turn was a summary.
    has_summarised: bool,
}

impl Summary {
    pub(super) fn start(
        start: Start,
        settings: &SummarySettings,
        task: &Task,
        tokenizer: &Tokenizer,
    ) -> Start {
        let Start { prompt, attachments, state, interaction } = start;
        let messages = match &task.prompt {
            PromptSource::Text(_) => None,
            PromptSource::Messages(messages) => Some(messages.clone()),
        };
        let summary = Self {
            inner: interaction,
            tokenizer: tokenizer.clone(),
            task: task.index,
            messages,
            limit: settings.limit as usize,
            request: settings.request.clone(),
            tokens: prompt.len(),
            prompt: prompt.clone(),
            attachments: attachments.clone(),
            asked: None,
            has_summarised: false,
        };
        Start { prompt, attachments, state, interaction: Box::new(summary) }
    }

    async fn respond(&mut self, turn: &Turn) -> Result<Response, EnvError> {
        if let Some(asked) = self.asked.take() {
            let reward = asked.has_rewards.then_some(0.0);
            return Ok(Response { next: self.summarised(turn, asked)?, reward });
        }
        self.has_summarised = false;
        let response = self.inner.step(turn).await?;
        self.follow(turn, response)
    }

    /// Responds to a turn of a demonstration with the results of its calls.
    async fn respond_with(
        &mut self,
        turn: &Turn,
        results: &[ChatMessage],
    ) -> Result<Option<Response>, EnvError> {
        if self.asked.is_some() {
            return Err(EnvError::NoSummary { task: self.task });
        }
        self.has_summarised = false;
        match self.inner.step_with_results(turn, results).await? {
            Some(response) => self.follow(turn, response).map(Some),
            None => Ok(None),
        }
    }

    /// Passes on what the environment itself responds, or asks for a summary first.
    fn follow(&mut self, turn: &Turn, response: Response) -> Result<Response, EnvError> {
        let Response { next, reward } = response;
        let next = match next {
            Next::Observation(observation) => self.observe(turn, observation, reward.is_some())?,
            Next::NewSegment(segment) => {
                self.begin(&segment);
                Next::NewSegment(segment)
            }
            Next::Done => Next::Done,
        };
        Ok(Response { next, reward })
    }

    /// Passes an observation on, or asks for a summary first.
    fn observe(
        &mut self,
        turn: &Turn,
        observation: Observation,
        has_rewards: bool,
    ) -> Result<Next, EnvError> {
        let tokens = self.tokens + turn.tokens.len() + observation.tokens.len();
        if tokens <= self.limit || turn.stop.is_truncated() {
            self.tokens = tokens;
            return Ok(Next::Observation(observation));
        }
        let request = self.rendered_request(turn).map_err(|source| self.text_error(source))?;
        // The policy has other information than in a turn of the environment.
        let state = observation.state.as_ref().map(|state| format!("{state} summary"));
        let end = turn.tokens.last().copied().filter(|_| turn.stop == StopReason::StopToken);
        self.asked = Some(Asked { held: observation, end, has_rewards });
        Ok(Next::Observation(Observation { tokens: request, state }))
    }

    fn rendered_request(&self, turn: &Turn) -> Result<Vec<u32>, TextError> {
        let Some(messages) = &self.messages else { return self.tokenizer.encode(&self.request, false) };
        let text = |id: u32| self.tokenizer.decode(&[id], false);
        let ends = self.tokenizer.eos_ids().iter().map(|&id| text(id)).collect::<Result<Vec<_>, _>>()?;
        let end = match (turn.stop, turn.tokens.last()) {
            (StopReason::StopToken, Some(&id)) => text(id)?,
            _ => String::new(),
        };
        let new = [ChatMessage::new("user", &self.request)];
        let template = self.tokenizer.require_chat_template()?;
        let text = template.after_turn(messages, None, &new, &end, &ends, &RenderOptions::default())?;
        self.tokenizer.encode(&text, false)
    }

    /// The segment that continues from a summary.
    fn summarised(&mut self, turn: &Turn, asked: Asked) -> Result<Next, EnvError> {
        self.has_summarised = true;
        let Asked { held, end, .. } = asked;
        let summary = self.written(turn).map_err(|source| self.text_error(source))?;
        let mut prompt = self.prompt.clone();
        prompt.extend(summary);
        prompt.extend(end);
        let observed = held.tokens.len();
        prompt.extend(held.tokens);
        self.tokens = prompt.len();
        let attachments = self.attachments.clone();
        Ok(Next::NewSegment(NewSegment { prompt, observed, attachments, state: held.state }))
    }

    /// Tokens of a summary without the token that ends it, and without reasoning, unless the prompt begins it.
    fn written(&self, turn: &Turn) -> Result<Vec<u32>, TextError> {
        let tokens = match turn.stop {
            StopReason::StopToken => turn.tokens.split_last().map_or(&[][..], |(_, rest)| rest),
            _ => &turn.tokens,
        };
        let text = self.tokenizer.decode(tokens, false)?;
        let summary = after_reasoning(&text);
        let prompt = self.tokenizer.decode(&self.prompt, false)?;
        if summary.len() == text.len() || prompt.trim_end().ends_with("<think>") {
            return Ok(tokens.to_vec());
        }
        self.tokenizer.encode(summary.trim_start(), false)
    }

    /// Continues from the prompt of a segment that the environment itself has begun.
    fn begin(&mut self, segment: &NewSegment) {
        self.prompt.clone_from(&segment.prompt);
        self.attachments.clone_from(&segment.attachments);
        self.tokens = segment.prompt.len();
    }

    /// Continues after a turn whose response is recorded.
    async fn recalled(&mut self, turn: &Turn, recorded: &RecordedResponse) -> Result<(), EnvError> {
        if let Some(asked) = self.asked.take() {
            self.summarised(turn, asked)?;
            return Ok(());
        }
        self.has_summarised = false;
        let mut own = recorded.clone();
        if let Some(held) = own.held.take() {
            own.observation = Some(held.tokens);
            own.state = held.state;
        }
        self.inner.recall(turn, &own).await?;
        let has_rewards = own.reward.is_some();
        match own.response().next {
            Next::Observation(observation) => self.observe(turn, observation, has_rewards).map(drop),
            Next::NewSegment(segment) => {
                self.begin(&segment);
                Ok(())
            }
            Next::Done => Ok(()),
        }
    }

    fn text_error(&self, source: TextError) -> EnvError {
        EnvError::Text { task: self.task, source }
    }
}

impl Interaction for Summary {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        Box::pin(self.respond(turn))
    }

    fn step_with_results<'a>(
        &'a mut self,
        turn: &'a Turn,
        results: &'a [ChatMessage],
    ) -> BoxFuture<'a, Result<Option<Response>, EnvError>> {
        Box::pin(self.respond_with(turn, results))
    }

    fn recall<'a>(
        &'a mut self,
        turn: &'a Turn,
        recorded: &'a RecordedResponse,
    ) -> BoxFuture<'a, Result<(), EnvError>> {
        Box::pin(self.recalled(turn, recorded))
    }

    fn held(&self) -> Option<&Observation> {
        self.asked.as_ref().map(|asked| &asked.held)
    }

    fn masks_turn(&self) -> bool {
        !self.has_summarised && self.inner.masks_turn()
    }

    /// A summary without a word: a suggestion has nothing to tell.
    fn suggest(&mut self) -> Option<String> {
        if self.asked.is_some() { Some(String::new()) } else { self.inner.suggest() }
    }

    fn view(&self) -> Option<View> {
        self.inner.view()
    }
}
