use std::fmt::Debug;

use super::{PackedBatch, TopTokens, TrainError};

/// A teacher outside of the training engine, which tells its most probable tokens.
pub trait RemoteTeacher: Send + Debug {
    /// The `k` most probable tokens at each scored position of each batch, at temperature 1.
    fn top(&mut self, step: &[PackedBatch], k: usize) -> Result<Vec<TopTokens>, TrainError>;
}
