//! Training in this process.

mod division;
mod engine;
mod loss;
#[cfg(test)]
mod tests;

pub use engine::{EmbeddedTrainEngine, model_checkpointing};
