//! (R − mean)/(std + ε) with configurable sources of both statistics; shared by the estimators that normalise rewards.

use super::estimator::Batch;
use super::moments::RunningMoments;
use super::view::{GroupView, Raw};
use crate::StatisticFrom;
use crate::settings::keys::{OutOfRange, check};

/// ε of standard deviations.
pub(super) const STD_EPSILON: f64 = 1e-4;

pub(super) fn check_std_epsilon(epsilon: f64) -> Result<(), OutOfRange> {
    check("std_epsilon", epsilon, epsilon >= 0.0, "0 or more", "1e-4 is usual")
}

pub(super) fn check_gamma(gamma: f64) -> Result<(), OutOfRange> {
    check("gamma", gamma, (0.0..=1.0).contains(&gamma), "between 0 and 1", "1 for no discount")
}

/// Sources of the mean and of the standard deviation, and the latter's ε.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normalization {
    pub(super) mean_from: StatisticFrom,
    pub(super) std_from: StatisticFrom,
    pub(super) std_epsilon: f64,
}

impl Normalization {
    /// R − mean of the group.
    pub(super) const GROUP_MEAN: Self =
        Self { mean_from: StatisticFrom::Group, std_from: StatisticFrom::None, std_epsilon: 0.0 };

    fn reads_running(&self) -> bool {
        [self.mean_from, self.std_from].contains(&StatisticFrom::Running)
    }

    pub(super) fn estimate(self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let of_batch = RunningMoments::of(batch.groups.iter().flat_map(GroupView::present));
        if self.reads_running() {
            *batch.running = batch.running.and(of_batch);
        }
        let running = *batch.running;
        batch.each(|group, _| self.group(group, &of_batch, &running))
    }

    /// `batch` are the moments of all compared rewards of the batch; `running` those of all batches, including this
    /// one.
    ///
    /// If the values of a statistic are equal, the remainder is rounding and the advantage is 0; a standard deviation
    /// of nearly 0 would amplify it by up to 1/ε.
    fn group(self, group: &GroupView<'_>, batch: &RunningMoments, running: &RunningMoments) -> Vec<Raw> {
        let of_group = group.moments();
        let from = |place| match place {
            StatisticFrom::Group => Some(&of_group),
            StatisticFrom::Batch => Some(batch),
            StatisticFrom::Running => Some(running),
            StatisticFrom::None => None,
        };
        let (mean, std) = (from(self.mean_from), from(self.std_from));
        let level = [mean, std].into_iter().flatten().any(RunningMoments::no_spread);
        let center = mean.map_or(0.0, |m| m.mean);
        let scale = std.map_or(1.0, |m| m.std() + self.std_epsilon);
        group.shared(|reward| if level { 0.0 } else { (reward - center) / scale })
    }
}
