use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{RandomKey, SettingError, Task};
use rloom_function::Host;
use rloom_text::Tokenizer;
use serde::Deserialize;

use crate::settings::Kind;
use crate::{
    BoxFuture, EnvError, Environment, EnvironmentUnusable, Interaction, Next, Response, Start, Turn,
    render_prompt,
};

/// One completion per prompt, without observations.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleTurn;

/// The settings, of which there are none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoKeys {}

impl Kind for NoKeys {
    fn validate(&self) -> Result<(), SettingError> {
        Ok(())
    }

    fn max_turns(&self) -> usize {
        1
    }

    fn has_steps(&self) -> bool {
        false
    }

    fn reads_answer(&self) -> bool {
        false
    }

    fn is_game(&self) -> bool {
        false
    }

    fn alphabet(&self) -> String {
        String::new()
    }

    fn environment(
        &self,
        _: Duration,
        _: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        Ok(Arc::new(SingleTurn))
    }
}

impl Environment for SingleTurn {
    fn name(&self) -> &'static str {
        "single_turn"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        _: RandomKey,
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
