//! What the policy sees of earlier turns, for any environment.
//!
//! The prompts of new segments are made of tokens that the episode has: a turn and its observation are kept or left out as a
//! whole, so that nothing is rendered again and the result does not depend on the chat template.

mod summary;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::{History, RandomKey, Task};
use rloom_text::Tokenizer;

use crate::{BoxFuture, EnvError, Environment, Start};
use summary::Summary;
use window::Window;

/// An environment whose episodes have a limited history.
#[derive(Debug)]
pub(crate) struct Remembering {
    inner: Arc<dyn Environment>,
    history: History,
}

impl Remembering {
    /// The environment with a history; itself if that is full.
    pub(crate) fn wrap(inner: Arc<dyn Environment>, history: &History) -> Arc<dyn Environment> {
        if history.is_full() { inner } else { Arc::new(Self { inner, history: history.clone() }) }
    }
}

impl Environment for Remembering {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(async move {
            let start = self.inner.start(task, tokenizer, random).await?;
            Ok(match &self.history {
                History::Full => start,
                History::Window(turns) => Window::start(start, *turns as usize),
                History::Summary(settings) => Summary::start(start, settings, task, tokenizer),
            })
        })
    }

    fn records_responses(&self) -> bool {
        self.inner.records_responses()
    }

    fn activity(&self) -> Option<String> {
        self.inner.activity()
    }

    fn take_metrics(&self) -> BTreeMap<String, f64> {
        self.inner.take_metrics()
    }
}
