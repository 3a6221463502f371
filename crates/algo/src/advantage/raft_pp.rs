use super::AdvantageReport;
use super::estimator::{Batch, Estimate};
use super::view::{GroupView, Raw};
use crate::Keep;
use crate::settings::keys::settings;

settings! {
    /// 1 for episodes that are kept, 0 for the others: RAFT++ (arXiv 2504.11343).
    RaftPp {
        /// The episodes that are kept.
        keep: Keep = Keep::Positive,
    }
}

/// Marks the rewards that are kept.
pub(crate) fn kept(keep: Keep, rewards: &[Option<f64>]) -> Vec<bool> {
    let best = rewards.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    let first_best = rewards.iter().position(|&r| r == Some(best));
    let is_kept = |(i, r): (usize, &Option<f64>)| match keep {
        Keep::Positive => r.is_some_and(|r| r > 0.0),
        Keep::Best => first_best == Some(i),
    };
    rewards.iter().enumerate().map(is_kept).collect()
}

impl RaftPp {
    fn group(self, group: &GroupView<'_>, report: &mut AdvantageReport) -> Vec<Raw> {
        let kept = kept(self.keep, &group.rewards);
        if !kept.contains(&true) && group.present().next().is_some() {
            report.none_kept += 1;
        }
        group.each(|i, _, _| Raw::Constant(if kept[i] { 1.0 } else { 0.0 }))
    }
}

impl Estimate for RaftPp {
    fn needs_group(&self) -> bool {
        self.keep == Keep::Best
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn keep(&self) -> Option<Keep> {
        Some(self.keep)
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, report| self.group(group, report))
    }
}
