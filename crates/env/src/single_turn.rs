use std::future::ready;

use rloom_core::Task;
use rloom_text::Tokenizer;

use crate::{Answer, BoxFuture, EnvError, Environment, Interaction, Next, Start, Turn, render_prompt};

/// A prompt, a completion, and that is all.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleTurn;

impl Environment for SingleTurn {
    fn name(&self) -> &'static str {
        "single_turn"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        let start = render_prompt(tokenizer, &task.prompt)
            .map(|prompt| Start { prompt, state: None, interaction: Box::new(Once) })
            .map_err(|source| EnvError::Text { task: task.index, source });
        Box::pin(ready(start))
    }
}

#[derive(Debug)]
struct Once;

impl Interaction for Once {
    fn step<'a>(&'a mut self, _: &'a Turn) -> BoxFuture<'a, Result<Answer, EnvError>> {
        Box::pin(ready(Ok(Next::Done.into())))
    }
}
