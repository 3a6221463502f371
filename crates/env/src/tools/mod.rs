//! Episodes in which the policy calls tools.
//!
//! A turn without calls is the policy's answer and ends the episode. The calls of a turn run at the same time, and their
//! results follow in the order of the calls, as the chat template renders them or, after a plain prompt, as text.

mod counters;
mod dialogue;
mod earlier;
mod episode;
mod recorded;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{EarlierReasoning, PromptSource, RandomKey, Task};
use rloom_text::calls::CallFormat;
use rloom_text::{RenderOptions, Tokenizer};
use rloom_tools::{ToolError, Toolbox};
use serde_json::Value;

pub use settings::{OnMalformed, OnResume, ToolsEnvironment};

use crate::{BoxFuture, EnvError, Environment, Start};
use counters::Counters;
use dialogue::ToolDialogue;
use earlier::WithoutReasoning;
use episode::ToolEpisode;

const NAME: &str = "tools";

/// An environment that runs the tools which the policy calls.
#[derive(Debug)]
pub struct Tools {
    toolbox: Toolbox,
    /// The tools as chat templates receive them.
    declared: Arc<[Value]>,
    settings: Arc<ToolsEnvironment>,
    counters: Arc<Counters>,
}

/// A tokenizer without a known format of calls.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error("the chat template has no format of tool calls that is known")]
#[diagnostic(help("name the format of the model's calls in `format`"))]
struct NoFormat;

impl Tools {
    /// Creates the tools: reads their files, starts their processes.
    pub fn new(settings: &ToolsEnvironment) -> Result<Self, ToolError> {
        let timeout = Duration::from_secs_f64(settings.timeout_seconds);
        Ok(Self::of_toolbox(Toolbox::new(&settings.tools, timeout)?, settings))
    }

    /// An environment with the given tools in place of the configured ones.
    pub fn of_toolbox(toolbox: Toolbox, settings: &ToolsEnvironment) -> Self {
        let declared = toolbox.tools().iter().map(rloom_text::calls::ToolDeclaration::for_template).collect();
        let (settings, counters) = (Arc::new(settings.clone()), Arc::default());
        Self { toolbox, declared, settings, counters }
    }

    fn begin(&self, task: &Task, tokenizer: &Tokenizer) -> Result<Start, EnvError> {
        let format = self.settings.format.or_else(|| CallFormat::detect(tokenizer));
        let format = format.ok_or_else(|| failed(task.index, NoFormat))?;
        let dialogue = ToolDialogue::new(&task.prompt, tokenizer, format, Arc::clone(&self.declared));
        let text_error = |source| EnvError::Text { task: task.index, source };
        let prompt = match &task.prompt {
            PromptSource::Text(text) => tokenizer.encode(text, true).map_err(text_error)?,
            PromptSource::Messages(messages) => {
                let options = RenderOptions { tools: Some(&self.declared), ..RenderOptions::prompt() };
                let template = tokenizer.require_chat_template().map_err(text_error)?;
                let text = template.render(messages, &options).map_err(text_error)?;
                tokenizer.encode(&text, false).map_err(text_error)?
            }
        };
        let reasons = dialogue::opens_reasoning(&tokenizer.decode(&prompt, false).map_err(text_error)?);
        let drops = self.settings.earlier_reasoning == EarlierReasoning::NewSegment;
        let episode = ToolEpisode::new(
            task.index,
            self.toolbox.clone(),
            dialogue,
            Arc::clone(&self.settings),
            Arc::clone(&self.counters),
            reasons,
            drops.then(|| WithoutReasoning::new(tokenizer, &prompt)),
        );
        Ok(Start { prompt, attachments: Vec::new(), state: None, interaction: Box::new(episode) })
    }
}

fn failed(task: u64, source: impl miette::Diagnostic + Send + Sync + 'static) -> EnvError {
    EnvError::Failed { name: NAME.to_owned(), task, source: Box::new(source) }
}

impl Environment for Tools {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        _random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(std::future::ready(self.begin(task, tokenizer)))
    }

    fn records_responses(&self) -> bool {
        self.settings.on_resume == OnResume::Recorded
    }

    fn activity(&self) -> Option<String> {
        let (tool, time) = self.toolbox.longest()?;
        Some(format!("tool `{tool}` has run for {:.1} s", time.as_secs_f64()))
    }

    fn take_metrics(&self) -> std::collections::BTreeMap<String, f64> {
        self.counters.take()
    }
}
