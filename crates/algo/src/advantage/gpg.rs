use super::estimator::{Batch, Estimate};
use super::view::{GroupView, Raw};
use crate::settings::keys::settings;

settings! {
    /// α(R_i − mean), α = samples / samples in groups whose rewards are not all equal: GPG (arXiv 2504.02546). Groups
    /// with different rewards compensate for those with equal rewards.
    Gpg {}
}

/// α; 0 if the rewards of every group are equal.
fn alpha(groups: &[GroupView<'_>]) -> f64 {
    let samples = |groups: &mut dyn Iterator<Item = &GroupView<'_>>| -> usize {
        groups.map(|g| g.present().count()).sum()
    };
    let all = samples(&mut groups.iter());
    match samples(&mut groups.iter().filter(|g| !g.is_level())) {
        0 => 0.0,
        with_contrast => all as f64 / with_contrast as f64,
    }
}

impl Estimate for Gpg {
    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let alpha = alpha(batch.groups);
        batch.report.no_contrast = batch.report.groups > 0 && batch.groups.iter().all(GroupView::is_level);
        batch.each(|group, _| {
            let of_group = group.moments();
            group.shared(|r| if of_group.no_spread() { 0.0 } else { alpha * (r - of_group.mean) })
        })
    }
}
