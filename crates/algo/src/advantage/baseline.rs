//! One advantage per episode: its reward against its group's.

use super::{Estimator, GroupRewards, Raw, k1, no_spread, takes_part};

/// Advantages of one group. Only estimators with a group baseline come here.
pub(super) fn group(group: &GroupRewards<'_>, kl_coef: f64, estimator: Estimator) -> Vec<Raw> {
    let penalised: Vec<Option<f64>> = group
        .episodes
        .iter()
        .map(|e| {
            let kl = if kl_coef == 0.0 { 0.0 } else { kl_coef * k1(e).sum::<f64>() };
            e.reward.filter(|_| takes_part(e)).map(|r| r - kl)
        })
        .collect();
    let present = penalised.iter().flatten().copied();
    let n = present.clone().count();
    if n < 2 {
        // Nobody to compare with: nothing is learnt, which the report counts.
        return vec![Raw::Out; group.episodes.len()];
    }
    let (mean, std) = mean_and_std(present.clone(), n);
    let equal = no_spread(present);
    let n = n as f64;
    let advantage = |r: f64| match estimator {
        _ if equal => 0.0,
        Estimator::Group { std_epsilon } => (r - mean) / (std + std_epsilon),
        // R_i − (ΣR − R_i)/(n − 1), written so that nothing cancels.
        Estimator::Rloo => (r - mean) * (n / (n - 1.0)),
        Estimator::GroupMean | Estimator::ReinforcePp { .. } => r - mean,
    };
    penalised.into_iter().map(|r| r.map_or(Raw::Out, |r| Raw::Constant(advantage(r)))).collect()
}

/// Mean and standard deviation with n − 1, in two passes: E[x²] − mean² would cancel for near-equal values.
fn mean_and_std(values: impl Iterator<Item = f64> + Clone, n: usize) -> (f64, f64) {
    let n = n as f64;
    let mean = values.clone().sum::<f64>() / n;
    let squares: f64 = values.map(|v| (v - mean) * (v - mean)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}
