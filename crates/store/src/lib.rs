//! Durable state of a run: its directory and lock, the journal, checkpoints and atomic file operations.

pub mod checkpoint;
#[cfg(test)]
mod child;
pub mod directory;
pub mod disk;
mod error;
pub mod faults;
pub mod journal;
pub mod scores;

pub use error::{CheckpointDamage, JournalDamage, StoreError};
