//! (R − mean)/(std + ε), each statistic from its own place.

use super::group::{Group, Raw};
use super::moments::RunningMoments;
use crate::StatisticFrom;

/// Mean and standard deviation with its ε.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normalization {
    pub(super) mean_from: StatisticFrom,
    pub(super) std_from: StatisticFrom,
    pub(super) std_epsilon: f64,
}

impl Normalization {
    pub(super) fn reads_running(&self) -> bool {
        [self.mean_from, self.std_from].contains(&StatisticFrom::Running)
    }
}

/// `batch` are the moments of all that is compared in the batch; `running` those of all batches, this one included.
///
/// Where the values behind a statistic are all equal, what is left of the reward is rounding: the advantage is 0. A
/// standard deviation of nearly 0 would make it as large as 1/ε.
pub(super) fn group(
    group: &Group<'_>,
    by: Normalization,
    batch: &RunningMoments,
    running: &RunningMoments,
) -> Vec<Raw> {
    let of_group = group.moments();
    let from = |place| match place {
        StatisticFrom::Group => Some(&of_group),
        StatisticFrom::Batch => Some(batch),
        StatisticFrom::Running => Some(running),
        StatisticFrom::None => None,
    };
    let (mean, std) = (from(by.mean_from), from(by.std_from));
    let level = [mean, std].into_iter().flatten().any(RunningMoments::no_spread);
    let center = mean.map_or(0.0, |m| m.mean);
    let scale = std.map_or(1.0, |m| m.std() + by.std_epsilon);
    group.shared(|reward| if level { 0.0 } else { (reward - center) / scale })
}
