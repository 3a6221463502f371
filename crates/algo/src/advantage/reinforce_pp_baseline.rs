use super::AdvantageKind;
use super::estimator::{Batch, Estimate, Whitening};
use super::normalize::Normalization;
use super::view::Raw;
use crate::settings::keys::settings;

settings! {
    /// R_i − mean of the group on every token, whitened over the batch (arXiv 2501.03262).
    ReinforcePpBaseline {}
}

impl Estimate for ReinforcePpBaseline {
    fn whitening(&self) -> Whitening {
        Whitening::Always { without: AdvantageKind::GroupMean }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        Normalization::GROUP_MEAN.estimate(batch)
    }
}
