use super::estimator::{Batch, Estimate, Reads, Whitening};
use super::moments::RunningMoments;
use super::normalize::{STD_EPSILON, check_std_epsilon};
use super::view::{GroupView, Raw};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Each named reward normalised separately in the group, then their weighted sum: GDPO (arXiv 2601.05242).
    Gdpo {
        /// Added to each standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
    }
}

/// Σ_k w_k (r_ik − mean_k)/(std_k + ε). A named reward that does not apply to an episode is excluded from that reward's
/// statistics and adds nothing to the episode; one that applies to a single episode adds nothing either.
fn normalize_each(group: &GroupView<'_>, std_epsilon: f64) -> Vec<Raw> {
    let names = group.members().map(|(_, e, _)| e.components.len()).max().unwrap_or(0);
    let moments: Vec<RunningMoments> = (0..names)
        .map(|k| RunningMoments::of(group.members().filter_map(move |(_, e, _)| e.components[k].1)))
        .collect();
    group.each(|_, e, _| {
        let compared = || {
            let named = e.components.iter().zip(&moments).filter(|(_, of)| of.count > 1);
            named.filter_map(|(&(weight, value), of)| value.map(|v| (weight, v, of)))
        };
        if compared().next().is_none() {
            return Raw::Out;
        }
        let normalized = |(weight, v, of): (f64, f64, &RunningMoments)| {
            if of.no_spread() { 0.0 } else { weight * (v - of.mean) / (of.std() + std_epsilon) }
        };
        Raw::Constant(compared().map(normalized).sum())
    })
}

impl Estimate for Gdpo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_std_epsilon(self.std_epsilon)
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn whitening(&self) -> Whitening {
        Whitening::On
    }

    fn reads(&self) -> Reads {
        Reads { components: true, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| normalize_each(group, self.std_epsilon))
    }
}
