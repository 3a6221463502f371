//! Writing of published weights.

use std::fmt;
use std::path::Path;

use rloom_engine::PublishedPolicy;

use crate::StageError;

/// Writes published weights to Hugging Face folders.
pub trait PolicyWriter: fmt::Debug + Send + Sync {
    /// Writes the weights to `folder`, which exists.
    fn write(&self, policy: &PublishedPolicy, folder: &Path) -> Result<(), StageError>;
}
