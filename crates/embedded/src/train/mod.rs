//! Training in this process.

mod batch;
mod division;
mod engine;
mod loss;
mod scored;
#[cfg(test)]
mod tests;

pub use batch::model_checkpointing;
pub use engine::EmbeddedTrainEngine;
