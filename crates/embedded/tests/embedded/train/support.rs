//! Engines with a small policy.

use rloom_embedded::EmbeddedTrainEngine;
use rloom_model::{GenerationConfig, OptimizerSettings};
use rloom_ops::Ctx;

pub(crate) use crate::train::model::{VOCABULARY, model};

pub(crate) fn engine(threads: usize) -> EmbeddedTrainEngine {
    let (optimizer, generation) = (OptimizerSettings::default(), GenerationConfig::default());
    EmbeddedTrainEngine::new(Ctx::new(threads).unwrap(), model(), None, optimizer, generation)
}
