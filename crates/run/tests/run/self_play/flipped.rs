//! Games in which the agents want to lose.

use rloom_core::{RandomKey, Task};
use rloom_env::{Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Outcome, Play, Turn, World};
use rloom_text::Tokenizer;
use std::sync::Arc;

/// A world whose agents get the opposite of their rewards.
#[derive(Debug)]
pub(crate) struct Flipped(pub(crate) Arc<dyn World>);

#[derive(Debug)]
struct FlippedPlay(Box<dyn Play>);

impl World for Flipped {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn agents(&self) -> &[AgentSpec] {
        self.0.agents()
    }

    fn begin<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        Box::pin(async move {
            let play = self.0.begin(task, tokenizer, random).await?;
            Ok(Box::new(FlippedPlay(play)) as Box<dyn Play>)
        })
    }
}

impl Play for FlippedPlay {
    fn ready(&mut self) -> Vec<Ask> {
        self.0.ready()
    }

    fn act<'a>(&'a mut self, agent: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        self.0.act(agent, turn)
    }

    fn end(&mut self) -> Outcome {
        let mut outcome = self.0.end();
        outcome.agents.values_mut().for_each(|reward| *reward = -*reward);
        outcome
    }
}
