//! The last turns of an episode.

use std::collections::VecDeque;

use rloom_core::{Attachment, ChatMessage};

use crate::environment::View;
use crate::{
    BoxFuture, EnvError, Interaction, NewSegment, Next, Observation, RecordedResponse, Response, Start, Turn,
};

/// A turn and its observation.
#[derive(Debug)]
struct Exchange {
    turn: Vec<u32>,
    observation: Vec<u32>,
}

/// An episode of which the policy sees the prompt and the last turns.
#[derive(Debug)]
pub(super) struct Window {
    inner: Box<dyn Interaction>,
    turns: usize,
    prompt: Vec<u32>,
    attachments: Vec<Attachment>,
    seen: VecDeque<Exchange>,
}

impl Window {
    pub(super) fn start(start: Start, turns: usize) -> Start {
        let Start { prompt, attachments, state, interaction } = start;
        let window = Self {
            inner: interaction,
            turns,
            prompt: prompt.clone(),
            attachments: attachments.clone(),
            seen: VecDeque::new(),
        };
        Start { prompt, attachments, state, interaction: Box::new(window) }
    }

    /// Notes a turn with its observation. Returns the prompt of a new segment if another turn is left out for it.
    fn see(&mut self, turn: &Turn, observation: Observation) -> Next {
        let Observation { tokens, state } = observation;
        self.seen.push_back(Exchange { turn: turn.tokens.clone(), observation: tokens.clone() });
        if self.seen.len() <= self.turns {
            return Next::Observation(Observation { tokens, state });
        }
        self.seen.pop_front();
        let mut prompt = self.prompt.clone();
        for exchange in &self.seen {
            prompt.extend_from_slice(&exchange.turn);
            prompt.extend_from_slice(&exchange.observation);
        }
        let attachments = self.attachments.clone();
        Next::NewSegment(NewSegment { prompt, observed: tokens.len(), attachments, state })
    }

    /// Continues from the prompt of a segment that the environment itself has begun.
    fn begin(&mut self, segment: &NewSegment) {
        self.prompt.clone_from(&segment.prompt);
        self.attachments.clone_from(&segment.attachments);
        self.seen.clear();
    }

    fn follow(&mut self, turn: &Turn, next: Next) -> Next {
        match next {
            Next::Observation(observation) => self.see(turn, observation),
            Next::NewSegment(segment) => {
                self.begin(&segment);
                Next::NewSegment(segment)
            }
            Next::Done => Next::Done,
        }
    }

    /// What the environment itself has answered, from the record of what became of it.
    fn answered(&self, recorded: &RecordedResponse) -> RecordedResponse {
        let mut own = recorded.clone();
        if self.seen.len() == self.turns
            && let Some(segment) = own.segment.take()
        {
            let start = segment.prompt.len().saturating_sub(segment.observed);
            own.observation = Some(segment.prompt[start..].to_vec());
            own.state = segment.state;
        }
        own
    }
}

impl Interaction for Window {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        Box::pin(async move {
            let Response { next, reward } = self.inner.step(turn).await?;
            Ok(Response { next: self.follow(turn, next), reward })
        })
    }

    fn step_with_results<'a>(
        &'a mut self,
        turn: &'a Turn,
        results: &'a [ChatMessage],
    ) -> BoxFuture<'a, Result<Option<Response>, EnvError>> {
        Box::pin(async move {
            let response = self.inner.step_with_results(turn, results).await?;
            Ok(response.map(|Response { next, reward }| Response { next: self.follow(turn, next), reward }))
        })
    }

    fn recall<'a>(
        &'a mut self,
        turn: &'a Turn,
        recorded: &'a RecordedResponse,
    ) -> BoxFuture<'a, Result<(), EnvError>> {
        Box::pin(async move {
            let own = self.answered(recorded);
            self.inner.recall(turn, &own).await?;
            self.follow(turn, own.response().next);
            Ok(())
        })
    }

    fn held(&self) -> Option<&Observation> {
        self.inner.held()
    }

    fn masks_turn(&self) -> bool {
        self.inner.masks_turn()
    }

    fn suggest(&mut self) -> Option<String> {
        self.inner.suggest()
    }

    fn view(&self) -> Option<View> {
        self.inner.view()
    }
}
