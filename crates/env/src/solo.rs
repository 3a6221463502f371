use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::{RandomKey, Task};
use rloom_text::Tokenizer;

use crate::{
    Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Environment, Input, Interaction, NewSegment, Next,
    Outcome, Play, RecordedResponse, Response, Turn, World,
};

/// An environment as a world of one agent.
#[derive(Debug)]
pub struct Solo {
    environment: Arc<dyn Environment>,
    agents: [AgentSpec; 1],
}

impl Solo {
    /// The world in which the main policy acts in `environment`.
    pub fn new(environment: Arc<dyn Environment>) -> Self {
        Self { environment, agents: [AgentSpec::new("policy")] }
    }
}

impl World for Solo {
    fn name(&self) -> &str {
        self.environment.name()
    }

    fn agents(&self) -> &[AgentSpec] {
        &self.agents
    }

    fn begin<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        Box::pin(async move {
            let start = self.environment.start(task, tokenizer, random).await?;
            let prompt = NewSegment {
                prompt: start.prompt,
                observed: 0,
                attachments: start.attachments,
                state: start.state,
            };
            let next = Some(Input::Prompt(prompt));
            let records = self.environment.records_responses();
            Ok(Box::new(SoloPlay { interaction: start.interaction, records, next }) as Box<dyn Play>)
        })
    }

    fn records_responses(&self) -> bool {
        self.environment.records_responses()
    }

    fn activity(&self) -> Option<String> {
        self.environment.activity()
    }

    fn take_metrics(&self) -> BTreeMap<String, f64> {
        self.environment.take_metrics()
    }
}

#[derive(Debug)]
struct SoloPlay {
    interaction: Box<dyn Interaction>,
    records: bool,
    /// What the agent is told before its next turn; `None` at the end.
    next: Option<Input>,
}

impl SoloPlay {
    /// Keeps the continuation. A truncated turn ends the episode.
    fn continue_with(&mut self, response: Response, turn: &Turn) -> Option<f64> {
        let Response { next, reward } = response.unless_truncated(turn);
        self.next = match next {
            Next::Observation(observation) => Some(Input::Observation(observation)),
            Next::NewSegment(segment) => Some(Input::Prompt(segment)),
            Next::Done => None,
        };
        reward
    }
}

impl Play for SoloPlay {
    fn ready(&mut self) -> Vec<Ask> {
        self.next.take().map(|input| Ask { agent: 0, input }).into_iter().collect()
    }

    fn act<'a>(&'a mut self, _: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        Box::pin(async move {
            let response = self.interaction.step(turn).await?;
            let is_masked = self.interaction.masks_turn();
            let held = self.interaction.held();
            let recorded = self.records.then(|| RecordedResponse::of(&response, is_masked, held));
            let reward = self.continue_with(response, turn);
            Ok(Ack { reward, is_masked, recorded })
        })
    }

    fn recall<'a>(
        &'a mut self,
        _: AgentId,
        turn: &'a Turn,
        recorded: &'a RecordedResponse,
    ) -> BoxFuture<'a, Result<Ack, EnvError>> {
        Box::pin(async move {
            self.interaction.recall(turn, recorded).await?;
            let reward = self.continue_with(recorded.clone().response(), turn);
            Ok(Ack { reward, is_masked: recorded.is_masked, recorded: Some(recorded.clone()) })
        })
    }

    fn end(&mut self) -> Outcome {
        Outcome::default()
    }
}
