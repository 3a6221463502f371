//! GDPO: each named reward is normalised in the group alone.

use super::group::{Group, Raw};
use super::moments::RunningMoments;

/// Σ_k w_k (r_ik − mean_k)/(std_k + ε). A named reward that does not apply to an episode leaves the statistics of that
/// name and adds nothing to the episode; one that applies to a single episode has nobody to be compared with.
pub(super) fn group(group: &Group<'_>, std_epsilon: f64) -> Vec<Raw> {
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
