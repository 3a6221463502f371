//! Training in this process.

mod division;
mod dropout;
mod engine;
mod loss;
mod scored;
mod teacher;
#[cfg(test)]
mod tests;
mod views;

pub use engine::EmbeddedTrainEngine;
pub use views::model_checkpointing;
