use rloom_core::Role;

use super::AdvantageReport;
use super::estimator::{Batch, Estimate, Reads};
use super::view::{GroupView, Raw};
use crate::settings::keys::settings;

settings! {
    /// R_i − R of the group's episode of role `Baseline`: ReMax (arXiv 2310.10505).
    Remax {}
}

/// R_i − the reward of the greedy episode. It has no KL penalty, because it is not sampled from the policy.
fn against_greedy(group: &GroupView<'_>, report: &mut AdvantageReport) -> Vec<Raw> {
    let greedy = group.episodes.iter().find(|e| e.role == Role::Baseline);
    let Some(baseline) = greedy.and_then(|e| e.reward) else {
        report.baselines_missing += usize::from(group.present().next().is_some());
        return vec![Raw::Out; group.episodes.len()];
    };
    group.shared(|r| r - baseline)
}

impl Estimate for Remax {
    fn needs_group(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads { greedy: true, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(against_greedy)
    }
}
