//! Lanes without threads: tests decide who does what when.

use std::sync::Arc;

use rloom_core::StopReason;
use rloom_model::{Family, ModelConfig, NewModel, Weights};
use tokio::sync::oneshot;

use super::{Lane, Next};
use crate::rollout::batch::{Batch, Limits};
use crate::rollout::decoder::Decoder;
use crate::rollout::dispatch::{Command, Shared};
use crate::rollout::sequence::Sequence;
use rloom_engine::{Abort, GenerateRequest, Generation, InFlight, RolloutError};

pub(super) type Answer = oneshot::Receiver<Result<Generation, RolloutError>>;

/// The smallest model there is.
pub(super) fn config(vocabulary: usize, max_positions: usize) -> ModelConfig {
    let new = NewModel {
        family: Family::Llama,
        layers: 1,
        hidden_size: 4,
        heads: 1,
        kv_heads: None,
        head_dim: None,
        intermediate_size: 4,
        max_positions,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.1,
    };
    new.config(vocabulary).unwrap()
}

pub(super) struct Bench<D> {
    pub(super) shared: Arc<Shared>,
    pub(super) lanes: Vec<Lane<D>>,
}

impl<D: Decoder> Bench<D> {
    pub(super) fn new(decoders: Vec<D>, limits: Limits) -> Self {
        let shared = Arc::new(Shared::new(decoders.len()));
        let lane = |(index, decoder)| {
            Lane::new(index, Arc::clone(&shared), decoder, Batch::new(index, limits, 1), 0)
        };
        Self { lanes: decoders.into_iter().enumerate().map(lane).collect(), shared: Arc::clone(&shared) }
    }

    pub(super) fn submit(&self, request: GenerateRequest) -> Answer {
        let (reply, answer) = oneshot::channel();
        let mut sequence = Sequence::new(request, None, reply);
        match sequence.review_prefix().unwrap() {
            Some(stop) => sequence.finish(stop),
            None => self.shared.board().submit(sequence),
        }
        answer
    }

    fn command<T>(&self, command: impl Fn(oneshot::Sender<T>) -> Command) -> Vec<oneshot::Receiver<T>> {
        let mut board = self.shared.board();
        let desks = board.desks.iter_mut();
        let told = desks.map(|desk| {
            let (done, told) = oneshot::channel();
            desk.commands.push_back(command(done));
            told
        });
        told.collect()
    }

    pub(super) fn load(&self, weights: Option<&Weights>, in_flight: InFlight) -> Vec<oneshot::Receiver<()>> {
        self.command(|done| Command::Load(weights.cloned(), in_flight, done))
    }

    pub(super) fn abort(&self, which: Abort) -> Vec<oneshot::Receiver<()>> {
        for sequence in self.shared.board().withdraw(|s| which.concerns(s.group, s.key)) {
            sequence.finish(StopReason::Aborted);
        }
        self.command(|done| Command::Abort(which, done))
    }

    /// One step of a lane; `false` when it would sleep.
    pub(super) fn step(&mut self, lane: usize) -> bool {
        let lane = &mut self.lanes[lane];
        loop {
            let next = lane.attend(&mut Arc::clone(&self.shared).board());
            match next {
                Next::ChangeOver => lane.change_over(),
                Next::Sleep | Next::End => return false,
                Next::Compute => {
                    lane.compute().unwrap();
                    return true;
                }
            }
        }
    }
}
