//! Estimators that look for the best of a group: max@G and RAFT++.

use super::AdvantageReport;
use super::group::{Group, Raw};
use super::moments::no_spread;
use crate::Keep;

/// The best gets its lead over the second, optionally over the group's standard deviation; the others get nothing,
/// and with two equally good ones nobody does.
pub(super) fn max_at_g(group: &Group<'_>, std_epsilon: Option<f64>) -> Vec<Raw> {
    let mut best = f64::NEG_INFINITY;
    let mut second = f64::NEG_INFINITY;
    for r in group.present() {
        second = second.max(r.min(best));
        best = best.max(r);
    }
    let tied = no_spread([best, second].into_iter());
    let scale = std_epsilon.map_or(1.0, |epsilon| group.moments().std() + epsilon);
    group.shared(|r| if r == best && !tied { (best - second) / scale } else { 0.0 })
}

/// Which rewards are kept.
pub(crate) fn kept(keep: Keep, rewards: &[Option<f64>]) -> Vec<bool> {
    let best = rewards.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    let first_best = rewards.iter().position(|&r| r == Some(best));
    let is_kept = |(i, r): (usize, &Option<f64>)| match keep {
        Keep::Positive => r.is_some_and(|r| r > 0.0),
        Keep::Best => first_best == Some(i),
    };
    rewards.iter().enumerate().map(is_kept).collect()
}

/// 1 for what is kept and 0 for the rest.
pub(super) fn raft_pp(group: &Group<'_>, keep: Keep, report: &mut AdvantageReport) -> Vec<Raw> {
    let kept = kept(keep, &group.rewards);
    if !kept.contains(&true) && group.present().next().is_some() {
        report.none_kept += 1;
    }
    group.each(|i, _, _| Raw::Constant(if kept[i] { 1.0 } else { 0.0 }))
}
