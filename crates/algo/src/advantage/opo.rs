use super::estimator::{Batch, Estimate};
use super::view::{GroupView, Raw};
use crate::settings::keys::settings;

settings! {
    /// R_i − Σ_j |y_j|R_j / Σ_j |y_j|: OPO (arXiv 2505.23585).
    Opo {}
}

/// R_i − the mean in which each episode counts once per policy token.
fn length_weighted(group: &GroupView<'_>) -> Vec<Raw> {
    let tokens: f64 = group.members().map(|(_, e, _)| e.tokens as f64).sum();
    let weighted: f64 = group.members().map(|(_, e, r)| e.tokens as f64 * r).sum();
    // Without tokens nothing is trained, but the advantage must not be 0/0.
    let baseline = if tokens > 0.0 { weighted / tokens } else { group.moments().mean };
    let level = group.is_level();
    group.shared(|r| if level { 0.0 } else { r - baseline })
}

impl Estimate for Opo {
    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| length_weighted(group))
    }
}
