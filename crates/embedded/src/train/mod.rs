//! Training in this process.

mod division;
mod dropout;
mod engine;
mod loss;
mod scored;
#[cfg(test)]
mod tests;

pub use engine::{EmbeddedTrainEngine, model_checkpointing};
