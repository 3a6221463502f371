//! A lane: one thread with its own batch and its own key-value cache.
//!
//! The thread alone accesses its decoder. If a step takes long, fails, panics or hangs, the other lanes continue, and the
//! dispatcher has the last status of the lane. A failed lane restarts with a new decoder and an empty batch, up to a
//! configured number of times; requests of the old batch return a retryable error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rloom_core::{ErrorText, OnUpdate};
use rloom_engine::{
    Health, InvalidReason, PolicyLabel, RequestName, RolloutError, WorkerActivity, WorkerFailure,
};
use tokio::sync::oneshot;

use super::batch::Batch;
use super::decoder::{DecodeError, Decoder};
use super::dispatch::{Command, Dispatcher, Shared};
use super::sequence::Sequence;
use super::status::lane_name;
use super::weights::LoadedWeights;

#[cfg(test)]
mod harness;
#[cfg(test)]
mod interleaving_tests;
#[cfg(test)]
mod migration_tests;
#[cfg(test)]
mod restart_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod update_tests;

/// A load or release that waits for sequences with the current weights to end.
#[derive(Debug)]
struct PendingLoad {
    weights: Option<LoadedWeights>,
    on_update: OnUpdate,
    /// Callers that wait for it; several if a newer load has superseded an older one.
    done: Vec<oneshot::Sender<()>>,
}

/// Next action of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Compute,
    LoadWeights,
    Sleep,
    End,
}

/// State owned by a lane's thread.
#[derive(Debug)]
pub(crate) struct Lane<D> {
    index: usize,
    shared: Arc<Shared>,
    decoder: D,
    batch: Batch,
    weights: Option<LoadedWeights>,
    pending: Option<PendingLoad>,
    /// Remaining restarts.
    restarts: u32,
}

impl<D: Decoder> Lane<D> {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, decoder: D, batch: Batch, restarts: u32) -> Self {
        Self { index, shared, decoder, batch, weights: None, pending: None, restarts }
    }

    /// Works until the engine ends. A panic or an error of the model restarts the lane, or ends the engine with an answer
    /// to every request of the lane.
    pub(crate) fn run(mut self) {
        let mut failure: Option<WorkerFailure> = None;
        let end = loop {
            // State that a panic left inconsistent is dropped by the restart.
            let worked = catch_unwind(AssertUnwindSafe(|| {
                if let Some(cause) = failure.take() {
                    self.restart(&cause);
                }
                self.work()
            }));
            let cause = match worked {
                Ok(Ok(())) => break RolloutError::ShutDown,
                Ok(Err(error)) => WorkerFailure::Failed(ErrorText::of(&error)),
                Err(panic) => WorkerFailure::Panicked { message: message(panic.as_ref()).to_owned() },
            };
            if self.restarts == 0 {
                break RolloutError::EngineFailed { worker: lane_name(self.index), cause };
            }
            self.restarts -= 1;
            failure = Some(cause);
        };
        let Self { index, shared, decoder, batch, weights, pending, .. } = self;
        // Callers of dropped requests look up the reason, so it is set first.
        shared.end(end);
        drop(catch_unwind(AssertUnwindSafe(move || drop((decoder, batch, weights, pending)))));
        shared.dispatcher().lanes[index].status.begin(WorkerActivity::Ended);
        shared.wake_lanes();
    }

    /// Continues with a new decoder and the same weights, after the requests of the batch have been answered with the
    /// failure. Commands are kept; a pending load no longer has sequences to wait for.
    fn restart(&mut self, cause: &WorkerFailure) {
        let mut dispatcher = self.shared.dispatcher();
        dispatcher.batch_lost(self.index);
        let status = &mut dispatcher.lanes[self.index].status;
        status.restarts += 1;
        status.failure = Some(cause.clone());
        status.begin(WorkerActivity::Restart);
        drop(dispatcher);
        for sequence in self.batch.reset() {
            sequence
                .fail(RolloutError::WorkerRestarted { worker: lane_name(self.index), cause: cause.clone() });
        }
        self.decoder = self.decoder.fresh();
        self.decoder.load(self.weights.as_ref());
    }

    /// Computes steps until the engine ends.
    fn work(&mut self) -> Result<(), DecodeError> {
        while self.wait_for_work() {
            self.compute()?;
        }
        Ok(())
    }

    /// Computes one step. While a load is pending, no sequence is started.
    fn compute(&mut self) -> Result<(), DecodeError> {
        let Some(label) = self.loaded() else { return Ok(()) };
        let reported = (self.batch.running(), self.batch.waiting());
        self.batch.admit_ready(&mut self.decoder, self.pending.is_some());
        if reported != (self.batch.running(), self.batch.waiting()) {
            let shared = Arc::clone(&self.shared);
            self.report(&mut shared.dispatcher());
        }
        self.batch.step(&mut self.decoder, label)
    }

    /// Label of the loaded weights.
    fn loaded(&self) -> Option<PolicyLabel> {
        self.weights.as_ref().map(|weights| weights.label)
    }

    /// Handles commands and sleeps until there is a step to compute. Returns false when the engine ends.
    fn wait_for_work(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut dispatcher = shared.dispatcher();
        loop {
            match self.poll(&mut dispatcher) {
                Next::Compute => return true,
                Next::End => return false,
                Next::Sleep => dispatcher = shared.sleep(dispatcher),
                Next::LoadWeights => {
                    drop(dispatcher);
                    self.load_weights();
                    dispatcher = shared.dispatcher();
                }
            }
        }
    }

    /// Updates the lane's status, handles its commands and takes its requests.
    fn poll(&mut self, dispatcher: &mut Dispatcher) -> Next {
        self.report(dispatcher);
        if dispatcher.end.is_some() {
            return Next::End;
        }
        for sequence in dispatcher.take_migrated(self.index) {
            self.batch.insert(sequence);
        }
        while let Some(command) = dispatcher.lanes[self.index].commands.pop_front() {
            if matches!(command, Command::Load(..)) {
                dispatcher.lanes[self.index].prompts.clear();
            }
            let queued = dispatcher.lanes[self.index].queue.len();
            self.handle_command(command, queued);
        }
        let next = if self.can_load() {
            Next::LoadWeights
        } else {
            self.take_requests(dispatcher);
            self.share_work(dispatcher);
            let started = self.batch.has_started();
            let can_compute = started || (self.pending.is_none() && !self.batch.is_empty());
            if self.weights.is_some() && can_compute { Next::Compute } else { Next::Sleep }
        };
        // Commands may have ended sequences: the accounting is updated before anything that may take long.
        self.report(dispatcher);
        dispatcher.lanes[self.index].status.begin(match next {
            Next::Compute => WorkerActivity::Step,
            Next::LoadWeights => WorkerActivity::LoadWeights,
            Next::Sleep | Next::End => WorkerActivity::Idle,
        });
        next
    }

    /// Updates accounting and status in the dispatcher.
    fn report(&mut self, dispatcher: &mut Dispatcher) {
        dispatcher.answered(self.index, self.batch.take_departed());
        let status = &mut dispatcher.lanes[self.index].status;
        status.loaded = self.loaded();
        status.running = self.batch.running();
        status.waiting = self.batch.waiting();
        status.statistics = self.batch.statistics();
    }

    /// Handles a command; `queued` requests have not been taken yet.
    fn handle_command(&mut self, command: Command, queued: usize) {
        match command {
            Command::Load(weights, on_update, done) => {
                let mut waiting = self.pending.take().map(|superseded| superseded.done).unwrap_or_default();
                waiting.push(done);
                self.pending = Some(PendingLoad { weights, on_update, done: waiting });
            }
            Command::Abort(which, done) => {
                self.batch.abort(which);
                // The caller may have stopped waiting.
                let _ = done.send(());
            }
            Command::Report(answer) => {
                let _ = answer.send(self.health(queued));
            }
        }
    }

    /// True if weights are pending and no sequence needs the current ones.
    fn can_load(&self) -> bool {
        let Some(pending) = &self.pending else { return false };
        self.update_of(pending) != OnUpdate::Finish || !self.batch.has_started()
    }

    /// Treatment of running sequences by a pending load. Sequences cannot continue with the weights of another policy:
    /// they are finished first.
    fn update_of(&self, pending: &PendingLoad) -> OnUpdate {
        let is_other = match (self.loaded(), &pending.weights) {
            (Some(loaded), Some(new)) => loaded.policy != new.label.policy,
            _ => false,
        };
        match pending.on_update {
            OnUpdate::Recompute | OnUpdate::Keep if is_other => OnUpdate::Finish,
            on_update => on_update,
        }
    }

    /// Loads the pending weights. The dispatcher is not locked: dropping the old weights may take long.
    fn load_weights(&mut self) {
        let Some(pending) = &self.pending else { return };
        self.batch.drop_carried_caches();
        match self.update_of(pending) {
            OnUpdate::Finish => {}
            OnUpdate::Keep => self.batch.requeue_without_tokens(),
            OnUpdate::Recompute => self.batch.requeue_all(),
            OnUpdate::Abort => self.batch.abort_started(),
        }
        self.batch.forget_prefixes();
        if let Some(new) = &pending.weights {
            let policy = new.label.policy;
            self.batch.refuse(|s| (s.policy != policy).then(|| other_policy(s, new.label)));
        }
        // If the decoder fails here, the lane restarts with the new weights and repeats this.
        self.weights.clone_from(&pending.weights);
        self.decoder.load(self.weights.as_ref());
        if let Some(PendingLoad { weights, done, .. }) = self.pending.take() {
            // The owner may write to the old weights as soon as it is notified: no handle may be left then.
            drop(weights);
            let shared = Arc::clone(&self.shared);
            self.report(&mut shared.dispatcher());
            for done in done {
                let _ = done.send(());
            }
        }
    }

    fn take_requests(&mut self, dispatcher: &mut Dispatcher) {
        if self.weights.is_none() || self.pending.is_some() {
            return;
        }
        loop {
            if dispatcher.first(self.index).is_none() && self.batch.has_room() {
                dispatcher.steal(self.index);
            }
            let Some(rank) = dispatcher.first(self.index) else { return };
            if !self.batch.has_place(rank) {
                return;
            }
            if let Some(sequence) = dispatcher.take(self.index) {
                self.batch.insert(sequence);
            }
        }
    }

    /// Moves part of the batch to an idle lane if nothing is queued that it could take instead.
    fn share_work(&mut self, dispatcher: &mut Dispatcher) {
        let Some(label) = self.loaded() else { return };
        if self.pending.is_some() || dispatcher.first(self.index).is_some() {
            return;
        }
        let Some(idle) = dispatcher.idle_lane(label) else { return };
        // Answered requests must be accounted for before the others move.
        self.report(dispatcher);
        let sequences = self.batch.split_off_half(&self.decoder, label);
        if !sequences.is_empty() {
            dispatcher.migrate(self.index, idle, sequences);
            self.shared.wake_lanes();
        }
    }

    fn health(&self, queued: usize) -> Health {
        Health {
            loaded: self.loaded().into_iter().collect(),
            running: self.batch.running(),
            waiting: self.batch.waiting() + queued,
            used_blocks: self.batch.used_blocks(),
            blocks: self.batch.blocks(),
        }
    }
}

/// Error of a request for another policy than the loaded one.
pub(crate) fn other_policy(sequence: &Sequence, loaded: PolicyLabel) -> RolloutError {
    RolloutError::InvalidRequest {
        request: RequestName(sequence.key),
        reason: InvalidReason::UnknownPolicy { policy: sequence.policy, loaded: vec![loaded.policy] },
    }
}

/// Message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
