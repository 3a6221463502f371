//! The training engine of a stage, chosen when the run starts.

use std::path::Path;
use std::sync::Arc;

use rloom_algo::{LossStep, TokenScores};
use rloom_core::PolicyVersion;
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{
    Form, LossReport, OptimStep, PackedBatch, ProgressObserver, PublishedPolicy, SavedFile, StepReport,
    TopTokens, TrainCapabilities, TrainEngine, TrainError, WeightFolder, Which,
};
use rloom_remote::Gang;

/// One of the training engines.
#[derive(Debug)]
pub(crate) enum ConfiguredTrainer {
    /// The engine of this process.
    Embedded(Box<EmbeddedTrainEngine>),
    /// PyTorch ranks.
    Gang {
        gang: Box<Gang>,
        /// The weights that the ranks opened.
        _start: Arc<WeightFolder>,
    },
}

macro_rules! delegate {
    ($engine:expr, $method:ident($($argument:expr),*)) => {
        match $engine {
            ConfiguredTrainer::Embedded(engine) => engine.$method($($argument),*),
            ConfiguredTrainer::Gang { gang, .. } => gang.$method($($argument),*),
        }
    };
}

impl TrainEngine for ConfiguredTrainer {
    fn observe(&mut self, observer: ProgressObserver) {
        delegate!(self, observe(observer));
    }

    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        delegate!(self, score(which, step))
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        delegate!(self, accumulate(step, loss))
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        delegate!(self, step(step))
    }

    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        delegate!(self, publish(version, form))
    }

    fn publish_exact(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        delegate!(self, publish_exact(version, form))
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        delegate!(self, digest())
    }

    fn reference_digest(&mut self) -> Result<u64, TrainError> {
        delegate!(self, reference_digest())
    }

    fn sync_reference(&mut self, mixup: f64) -> Result<(), TrainError> {
        delegate!(self, sync_reference(mixup))
    }

    fn release_reference(&mut self) -> Result<(), TrainError> {
        delegate!(self, release_reference())
    }

    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        delegate!(self, save(directory))
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        delegate!(self, restore(directory))
    }

    fn teacher_top(
        &mut self,
        step: &[PackedBatch],
        k: usize,
        temperature: f64,
    ) -> Result<Vec<TopTokens>, TrainError> {
        delegate!(self, teacher_top(step, k, temperature))
    }

    fn capabilities(&self) -> TrainCapabilities {
        delegate!(self, capabilities())
    }

    fn park(&mut self) -> Result<(), TrainError> {
        delegate!(self, park())
    }

    fn trim(&mut self) -> Result<(), TrainError> {
        delegate!(self, trim())
    }
}
