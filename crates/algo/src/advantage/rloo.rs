use super::estimator::{Batch, Estimate};
use super::view::{GroupView, Raw};
use crate::settings::keys::settings;

settings! {
    /// R_i − mean of the other G − 1: RLOO (arXiv 2402.14740).
    Rloo {}
}

/// R_i − mean of the others.
pub(super) fn leave_one_out(group: &GroupView<'_>) -> Vec<Raw> {
    let of_group = group.moments();
    let n = of_group.count as f64;
    // R_i − (ΣR − R_i)/(n − 1), in a form without cancellation.
    group.shared(|r| if of_group.no_spread() { 0.0 } else { (r - of_group.mean) * (n / (n - 1.0)) })
}

impl Estimate for Rloo {
    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| leave_one_out(group))
    }
}
