use super::estimator::{Batch, Estimate};
use super::normalize::Normalization;
use super::view::Raw;
use crate::settings::keys::settings;

settings! {
    /// R_i − mean of the group: Dr.GRPO (arXiv 2503.20783).
    GroupMean {}
}

impl Estimate for GroupMean {
    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        Normalization::GROUP_MEAN.estimate(batch)
    }
}
