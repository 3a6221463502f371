//! A lane: one thread with its own batch and its own key-value cache.
//!
//! The thread owns its decoder, and nobody else touches it: whatever a step does (take long, fail, panic, hang), the
//! others go on, and what the lane last said of itself is on the board. A failed lane starts again with a new decoder
//! and an empty batch, as often as it may; what was in the old batch is answered with an error that may be retried.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rloom_core::PolicyVersion;
use rloom_model::Weights;
use tokio::sync::oneshot;

use crate::Doing;
use crate::rollout::batch::Batch;
use crate::rollout::decoder::Decoder;
use crate::rollout::dispatch::{Board, Command, Shared};
use rloom_engine::{Health, InFlight, RolloutError};

#[cfg(test)]
mod bench;
#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod interleaving_tests;
#[cfg(test)]
mod restart_tests;
#[cfg(test)]
mod sharing_tests;
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

/// What a lane is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Compute,
    ChangeOver,
    Sleep,
    End,
}

/// What a lane's thread owns.
#[derive(Debug)]
pub(crate) struct Lane<D> {
    index: usize,
    shared: Arc<Shared>,
    decoder: D,
    batch: Batch,
    weights: Option<Weights>,
    switch: Option<Switch>,
    /// How often it may still be started again.
    restarts: u32,
}

impl<D: Decoder> Lane<D> {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, decoder: D, batch: Batch, restarts: u32) -> Self {
        Self { index, shared, decoder, batch, weights: None, switch: None, restarts }
    }

    /// Works until the engine ends. A panic or an error below restarts the lane, or ends the engine with every request
    /// of this lane answered.
    pub(crate) fn run(mut self) {
        let mut failure: Option<String> = None;
        let end = loop {
            // What a panic left half-done is dropped, not used.
            let worked = catch_unwind(AssertUnwindSafe(|| {
                if let Some(cause) = failure.take() {
                    self.start_again(&cause);
                }
                self.work()
            }));
            let cause = match worked {
                Ok(Ok(())) => break RolloutError::ShutDown,
                Ok(Err(cause)) => cause,
                Err(panic) => format!("panicked: {}", message(panic.as_ref())),
            };
            if self.restarts == 0 {
                break RolloutError::EngineDied { lane: self.index, cause };
            }
            self.restarts -= 1;
            failure = Some(cause);
        };
        let Self { index, shared, decoder, batch, weights, switch, .. } = self;
        // Callers whose request is dropped look at why the engine ended, so this comes first.
        shared.end(end);
        drop(catch_unwind(AssertUnwindSafe(move || drop((decoder, batch, weights, switch)))));
        shared.board().desks[index].notes.turn_to(Doing::Ended);
        shared.ring();
    }

    /// Goes on with a new decoder and the weights of the old one, after the batch's requests have been answered with the
    /// failure. Commands stay: a change of weights that waited for sequences to end waits no longer.
    fn start_again(&mut self, cause: &str) {
        let mut board = self.shared.board();
        board.lost(self.index);
        let notes = &mut board.desks[self.index].notes;
        notes.restarts += 1;
        notes.failure = Some(cause.to_owned());
        notes.turn_to(Doing::Restart);
        drop(board);
        for sequence in self.batch.start_anew() {
            sequence.fail(RolloutError::LaneRestarted { lane: self.index, cause: cause.to_owned() });
        }
        self.decoder = self.decoder.fresh();
        self.decoder.load(self.weights.as_ref());
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
        let Some(version) = self.version() else { return Ok(()) };
        let reported = (self.batch.running(), self.batch.waiting());
        self.batch.muster(&mut self.decoder, self.switch.is_some());
        if reported != (self.batch.running(), self.batch.waiting()) {
            let shared = Arc::clone(&self.shared);
            self.report(&mut shared.board());
        }
        self.batch.step(&mut self.decoder, version)
    }

    fn version(&self) -> Option<PolicyVersion> {
        self.weights.as_ref().map(|weights| weights.version)
    }

    /// Does what the board says, and sleeps while there is nothing to compute. `false` when the engine ends.
    fn prepare(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut board = shared.board();
        loop {
            match self.attend(&mut board) {
                Next::Compute => return true,
                Next::End => return false,
                Next::Sleep => board = shared.sleep(board),
                Next::ChangeOver => {
                    drop(board);
                    self.change_over();
                    board = shared.board();
                }
            }
        }
    }

    /// Brings the board up to date, obeys its commands and takes its requests.
    fn attend(&mut self, board: &mut Board) -> Next {
        self.report(board);
        if board.end.is_some() {
            return Next::End;
        }
        for sequence in board.take_handed(self.index) {
            self.batch.insert(sequence);
        }
        while let Some(command) = board.desks[self.index].commands.pop_front() {
            let queued = board.desks[self.index].queue.len();
            self.obey(command, queued);
        }
        let next = if self.may_change_over() {
            Next::ChangeOver
        } else {
            self.take_requests(board);
            self.share_out(board);
            let started = self.batch.has_started();
            let may_compute = started || (self.switch.is_none() && !self.batch.is_empty());
            if self.weights.is_some() && may_compute { Next::Compute } else { Next::Sleep }
        };
        // Commands may have ended sequences: the books come before whatever may take long.
        self.report(board);
        board.desks[self.index].notes.turn_to(match next {
            Next::Compute => Doing::Step,
            Next::ChangeOver => Doing::ChangeOver,
            Next::Sleep | Next::End => Doing::Nothing,
        });
        next
    }

    /// Says what there is, on the board.
    fn report(&mut self, board: &mut Board) {
        board.answered(self.index, self.batch.take_left());
        let notes = &mut board.desks[self.index].notes;
        notes.version = self.version();
        notes.running = self.batch.running();
        notes.waiting = self.batch.waiting();
        notes.statistics = self.batch.statistics();
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
            Command::Fail => std::panic::resume_unwind(Box::new("it was told to")),
        }
    }

    /// Whether new weights are there and no sequence keeps the old ones.
    fn may_change_over(&self) -> bool {
        self.switch.as_ref().is_some_and(|s| s.in_flight != InFlight::Finish || !self.batch.has_started())
    }

    /// Takes the new weights. The board is not locked: letting go of the old ones may take long.
    fn change_over(&mut self) {
        let Some(switch) = &self.switch else { return };
        self.batch.forget_carried();
        match switch.in_flight {
            // A prompt computed by the old weights is not for sequences that start with the new ones.
            InFlight::Finish => self.batch.forget_prompts(),
            InFlight::Keep => self.batch.put_back_unbegun(),
            InFlight::Recompute => self.batch.put_back_all(),
            InFlight::Abort => {
                self.batch.abort_started();
                self.batch.forget_prompts();
            }
        }
        // Should the decoder fail here, the lane starts again with the new weights and comes back.
        self.weights.clone_from(&switch.weights);
        self.decoder.load(self.weights.as_ref());
        if let Some(Switch { weights, done, .. }) = self.switch.take() {
            // The owner may take them for writing as soon as it is told: nothing here may hold them then.
            drop(weights);
            let shared = Arc::clone(&self.shared);
            self.report(&mut shared.board());
            for done in done {
                let _ = done.send(());
            }
        }
    }

    fn take_requests(&mut self, board: &mut Board) {
        if self.weights.is_none() || self.switch.is_some() {
            return;
        }
        loop {
            if board.first(self.index).is_none() && self.batch.has_room() {
                board.take_over(self.index);
            }
            let Some(rank) = board.first(self.index) else { return };
            if !self.batch.has_place(rank) {
                return;
            }
            if let Some(sequence) = board.take(self.index) {
                self.batch.insert(sequence);
            }
        }
    }

    /// Hands part of the batch to a lane that has run dry, when nothing is queued that it could take instead.
    fn share_out(&mut self, board: &mut Board) {
        let Some(version) = self.version() else { return };
        if self.switch.is_some() || board.first(self.index).is_some() {
            return;
        }
        let Some(idle) = board.idle_lane(version) else { return };
        // What is answered must be off the books before the rest changes hands.
        self.report(board);
        let sequences = self.batch.part_with_half(&self.decoder, version);
        if !sequences.is_empty() {
            board.hand_over(self.index, idle, sequences);
            self.shared.ring();
        }
    }

    fn health(&self, queued: usize) -> Health {
        Health {
            version: self.version(),
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
