use std::future::ready;

use rloom_core::Task;
use rloom_text::Tokenizer;

use crate::{BoxFuture, EnvError, Environment, Interaction, Next, Response, Start, Turn, render_prompt};

/// One completion per prompt, without observations.
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
            .map(|prompt| Start { attachments: Vec::new(), prompt, state: None, interaction: Box::new(Once) })
            .map_err(|source| EnvError::Text { task: task.index, source });
        Box::pin(ready(start))
    }
}

#[derive(Debug)]
struct Once;

impl Interaction for Once {
    fn step<'a>(&'a mut self, _: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        Box::pin(ready(Ok(Next::Done.into())))
    }
}
