//! A lane: one thread with its own batch and its own key-value cache.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rloom_core::PolicyVersion;
use rloom_model::Weights;
use tokio::sync::oneshot;

use crate::batch::Batch;
use crate::decoder::Decoder;
use crate::dispatch::{Board, Command, Shared};
use crate::{Health, InFlight, RolloutError};

#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod tests;

/// New weights, until the sequences that keep the old ones have ended.
#[derive(Debug)]
struct Switch {
    weights: Option<Weights>,
    in_flight: InFlight,
    /// Who waits for it; more than one when a newer load has overtaken an older one.
    done: Vec<oneshot::Sender<()>>,
}

/// What a lane's thread owns.
#[derive(Debug)]
pub(crate) struct Lane<D> {
    index: usize,
    shared: Arc<Shared>,
    decoder: D,
    batch: Batch,
    version: Option<PolicyVersion>,
    switch: Option<Switch>,
}

impl<D: Decoder> Lane<D> {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, decoder: D, batch: Batch) -> Self {
        Self { index, shared, decoder, batch, version: None, switch: None }
    }

    /// Works until the engine ends. A panic below ends the engine, with every request of this lane answered.
    pub(crate) fn run(mut self) {
        // What a panic left half-done is dropped, not used: callers whose request is gone look at why the engine ended.
        let error = match catch_unwind(AssertUnwindSafe(|| self.work())) {
            Ok(Ok(())) => RolloutError::ShutDown,
            Ok(Err(cause)) => RolloutError::EngineDied { lane: self.index, cause },
            Err(panic) => {
                let cause = format!("panicked: {}", message(panic.as_ref()));
                RolloutError::EngineDied { lane: self.index, cause }
            }
        };
        self.shared.end(error);
    }

    /// Steps until the engine ends; the error is the model's.
    fn work(&mut self) -> Result<(), String> {
        while self.prepare() {
            self.compute()?;
        }
        Ok(())
    }

    /// One step. While a change of weights waits for sequences to end, none is started.
    fn compute(&mut self) -> Result<(), String> {
        match self.version {
            Some(version) => self.batch.step(&mut self.decoder, version, self.switch.is_some()),
            None => Ok(()),
        }
    }

    /// Does what the board says, and sleeps while there is nothing to compute. `false` when the engine ends.
    fn prepare(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut board = shared.board();
        loop {
            board.answered(self.index, self.batch.take_left());
            board.desks[self.index].statistics = self.batch.statistics();
            if board.end.is_some() {
                return false;
            }
            while let Some(command) = board.desks[self.index].commands.pop_front() {
                let queued = board.desks[self.index].queue.len();
                self.obey(command, queued);
            }
            self.try_switch();
            self.take_requests(&mut board);
            let started = self.batch.has_started();
            if self.version.is_some() && (started || (self.switch.is_none() && !self.batch.is_empty())) {
                return true;
            }
            // Commands may have ended sequences: the books come before sleep.
            board.answered(self.index, self.batch.take_left());
            board = shared.sleep(board);
        }
    }

    /// Does as it is told; `queued` requests have not been taken yet.
    fn obey(&mut self, command: Command, queued: usize) {
        match command {
            Command::Load(weights, in_flight, done) => {
                let mut waiting = self.switch.take().map(|overtaken| overtaken.done).unwrap_or_default();
                waiting.push(done);
                self.switch = Some(Switch { weights, in_flight, done: waiting });
            }
            Command::Abort(which, done) => {
                self.batch.abort(which);
                // Whoever asked may have stopped waiting.
                let _ = done.send(());
            }
            Command::Report(answer) => {
                let _ = answer.send(self.health(queued));
            }
        }
    }

    /// Takes the new weights as soon as no sequence keeps the old ones.
    fn try_switch(&mut self) {
        let Some(switch) = &self.switch else { return };
        match switch.in_flight {
            InFlight::Finish if self.batch.has_started() => return,
            // A prompt computed by the old weights is not for sequences that start with the new ones.
            InFlight::Finish | InFlight::Keep => self.batch.forget_prompts(),
            InFlight::Recompute => self.batch.put_back_all(),
            InFlight::Abort => {
                self.batch.abort_started();
                self.batch.forget_prompts();
            }
        }
        if let Some(switch) = self.switch.take() {
            self.version = switch.weights.as_ref().map(|weights| weights.version);
            self.decoder.load(switch.weights.as_ref());
            // The owner may take them for writing as soon as it is told: nothing here may hold them then.
            drop(switch.weights);
            for done in switch.done {
                let _ = done.send(());
            }
        }
    }

    fn take_requests(&mut self, board: &mut Board) {
        if self.version.is_none() || self.switch.is_some() {
            return;
        }
        while self.batch.room() > 0
            && let Some(sequence) = board.take(self.index)
        {
            self.batch.insert(sequence);
        }
    }

    fn health(&self, queued: usize) -> Health {
        Health {
            version: self.version,
            running: self.batch.running(),
            waiting: self.batch.waiting() + queued,
            used_blocks: self.batch.used_blocks(),
            blocks: self.batch.blocks(),
        }
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
