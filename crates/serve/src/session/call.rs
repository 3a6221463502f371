//! A call of a session: its completion, which several requests may read, since clients repeat requests whose answers they lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::problem::Problem;
use crate::reply::Update;

/// A call and what has been answered so far.
#[derive(Debug)]
pub(crate) struct Call {
    /// Unique part of the answer's identifiers.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    progress: Mutex<Progress>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Progress {
    updates: Vec<Update>,
    failure: Option<Problem>,
    prompt_tokens: usize,
    sampled_tokens: usize,
    is_complete: bool,
    readers: usize,
    /// A client has received a part of the answer: it is completed, whether or not somebody reads it.
    is_delivered: bool,
    /// Cancels the completion.
    task: Option<AbortHandle>,
}

impl Progress {
    fn is_over(&self) -> bool {
        self.is_complete || self.failure.is_some()
    }

    fn is_abandoned(&self) -> bool {
        self.readers == 0 && !self.is_delivered && !self.is_over()
    }
}

impl Call {
    pub(super) fn new(id: String, created: u64) -> Arc<Self> {
        let (changed, _) = watch::channel(());
        Arc::new(Self { id, created, progress: Mutex::default(), changed })
    }

    /// A reader of the whole answer, from its beginning on.
    pub(super) fn reader(self: &Arc<Self>) -> CallReader {
        self.progress().readers += 1;
        CallReader { changed: self.changed.subscribe(), call: Arc::clone(self), at: 0 }
    }

    /// Notes the task that completes the call; false if no request waits for it any more.
    pub(super) fn started(&self, task: AbortHandle, prompt_tokens: usize) -> bool {
        let mut progress = self.progress();
        progress.prompt_tokens = prompt_tokens;
        let is_wanted = !progress.is_abandoned() && !progress.is_over();
        if is_wanted {
            progress.task = Some(task);
        } else {
            task.abort();
        }
        is_wanted
    }

    /// Adds to the answer.
    pub(super) fn publish(&self, update: Update, sampled_tokens: usize) {
        let mut progress = self.progress();
        progress.is_complete = update.end.is_some();
        progress.sampled_tokens = sampled_tokens;
        progress.updates.push(update);
        drop(progress);
        self.changed.send_replace(());
    }

    /// Ends the call with an error, unless it is over.
    pub(super) fn fail(&self, problem: Problem) {
        let mut progress = self.progress();
        if progress.is_over() {
            return;
        }
        progress.failure = Some(problem);
        let task = progress.task.take();
        drop(progress);
        self.changed.send_replace(());
        if let Some(task) = task {
            task.abort();
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the answer of a call. The completion is cancelled when its last reader is dropped, unless a client has received a
/// part of the answer.
#[derive(Debug)]
pub(crate) struct CallReader {
    pub(crate) call: Arc<Call>,
    changed: watch::Receiver<()>,
    /// Updates that were read.
    at: usize,
}

impl CallReader {
    /// Waits for more of the answer. Cancel-safe. Not called again after an update with an end, or an error.
    pub(crate) async fn next(&mut self) -> Result<Update, Problem> {
        loop {
            self.changed.mark_unchanged();
            {
                let progress = self.call.progress();
                if let Some(update) = progress.updates.get(self.at) {
                    self.at += 1;
                    return Ok(update.clone());
                }
                if let Some(problem) = &progress.failure {
                    return Err(problem.clone());
                }
            }
            // The sender lives as long as the call.
            let _ = self.changed.changed().await;
        }
    }

    /// Tokens of the prompt and sampled tokens.
    pub(crate) fn tokens(&self) -> (usize, usize) {
        let progress = self.call.progress();
        (progress.prompt_tokens, progress.sampled_tokens)
    }

    /// Notes that a client receives a part of the answer.
    pub(crate) fn delivered(&self) {
        self.call.progress().is_delivered = true;
    }
}

impl Drop for CallReader {
    fn drop(&mut self) {
        let mut progress = self.call.progress();
        progress.readers -= 1;
        let task = if progress.is_abandoned() { progress.task.take() } else { None };
        drop(progress);
        if let Some(task) = task {
            task.abort();
        }
    }
}
