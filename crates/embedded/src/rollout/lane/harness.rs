//! Lanes without threads, stepped by the tests.

use std::sync::Arc;

use rloom_core::{PolicyId, PolicyVersion, StopReason};
use rloom_model::{Family, ModelConfig, NewModel};
use tokio::sync::oneshot;

use super::{Lane, Next};
use crate::rollout::batch::{Batch, Limits};
use crate::rollout::decoder::Decoder;
use crate::rollout::dispatch::{Command, Shared};
use crate::rollout::sequence::Sequence;
use crate::rollout::weights::LoadedWeights;
use rloom_engine::{Abort, GenerateRequest, Generation, OnUpdate, PolicyLabel, RolloutError};

/// Label of a version of the main policy.
pub(super) fn label(version: u64) -> PolicyLabel {
    PolicyLabel { policy: PolicyId::MAIN, version: PolicyVersion(version), digest: version }
}

pub(super) type Answer = oneshot::Receiver<Result<Generation, RolloutError>>;

/// A minimal model.
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

pub(super) struct Harness<D> {
    pub(super) shared: Arc<Shared>,
    pub(super) lanes: Vec<Lane<D>>,
}

impl<D: Decoder> Harness<D> {
    pub(super) fn new(decoders: Vec<D>, limits: Limits) -> Self {
        let shared = Arc::new(Shared::new(decoders.len(), limits.blocks * rloom_ops::KV_BLOCK));
        let lane = |(index, decoder)| {
            Lane::new(index, Arc::clone(&shared), decoder, Batch::new(index, limits, 1), 0)
        };
        Self { lanes: decoders.into_iter().enumerate().map(lane).collect(), shared: Arc::clone(&shared) }
    }

    pub(super) fn submit(&self, request: GenerateRequest) -> Answer {
        let (reply, answer) = oneshot::channel();
        let mut sequence = Sequence::new(request, None, reply);
        match sequence.check_prefix().unwrap() {
            Some(stop) => sequence.finish(stop),
            None => self.shared.dispatcher().submit(sequence),
        }
        answer
    }

    fn command<T>(&self, command: impl Fn(oneshot::Sender<T>) -> Command) -> Vec<oneshot::Receiver<T>> {
        let mut dispatcher = self.shared.dispatcher();
        let lanes = dispatcher.lanes.iter_mut();
        let answers = lanes.map(|lane| {
            let (done, answer) = oneshot::channel();
            lane.commands.push_back(command(done));
            answer
        });
        answers.collect()
    }

    pub(super) fn load(
        &self,
        weights: Option<&LoadedWeights>,
        on_update: OnUpdate,
    ) -> Vec<oneshot::Receiver<()>> {
        self.command(|done| Command::Load(weights.cloned(), on_update, done))
    }

    pub(super) fn abort(&self, which: Abort) -> Vec<oneshot::Receiver<()>> {
        for sequence in self.shared.dispatcher().withdraw(|s| which.selects(s.group, s.key)) {
            sequence.finish(StopReason::Aborted);
        }
        self.command(|done| Command::Abort(which, done))
    }

    /// Computes one step of a lane; false if it would sleep.
    pub(super) fn step(&mut self, lane: usize) -> bool {
        let lane = &mut self.lanes[lane];
        loop {
            let next = lane.poll(&mut Arc::clone(&self.shared).dispatcher());
            match next {
                Next::LoadWeights => lane.load_weights(),
                Next::Sleep | Next::End => return false,
                Next::Compute => {
                    lane.compute().unwrap();
                    return true;
                }
            }
        }
    }
}
