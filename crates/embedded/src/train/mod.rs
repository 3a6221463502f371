//! Training in this process.

mod division;
mod engine;

pub use engine::EmbeddedTrainEngine;
