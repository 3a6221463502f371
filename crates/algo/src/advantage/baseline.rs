//! R_i − a baseline: RLOO, OPO, ReMax, TOPR.

use rloom_core::Role;

use super::AdvantageReport;
use super::group::{Group, Raw};

/// R_i − mean of the others.
pub(super) fn rloo(group: &Group<'_>) -> Vec<Raw> {
    let of_group = group.moments();
    let n = of_group.count as f64;
    // R_i − (ΣR − R_i)/(n − 1), written so that nothing cancels.
    group.shared(|r| if of_group.no_spread() { 0.0 } else { (r - of_group.mean) * (n / (n - 1.0)) })
}

/// R_i − the mean in which each episode counts once per policy token.
pub(super) fn opo(group: &Group<'_>) -> Vec<Raw> {
    let tokens: f64 = group.members().map(|(_, e, _)| e.tokens as f64).sum();
    let weighted: f64 = group.members().map(|(_, e, r)| e.tokens as f64 * r).sum();
    // Without any token nothing is trained, but 0/0 is nobody's advantage.
    let baseline = if tokens > 0.0 { weighted / tokens } else { group.moments().mean };
    let level = group.is_level();
    group.shared(|r| if level { 0.0 } else { r - baseline })
}

/// R_i − the reward of the greedy episode, which pays no KL: it is not sampled from the policy.
pub(super) fn remax(group: &Group<'_>, report: &mut AdvantageReport) -> Vec<Raw> {
    let greedy = group.episodes.iter().find(|e| e.role == Role::Baseline);
    let Some(baseline) = greedy.and_then(|e| e.reward) else {
        report.baselines_missing += usize::from(group.present().next().is_some());
        return vec![Raw::Out; group.episodes.len()];
    };
    group.shared(|r| r - baseline)
}

/// R_i − c.
pub(super) fn topr(group: &Group<'_>, baseline: f64) -> Vec<Raw> {
    group.shared(|r| r - baseline)
}
