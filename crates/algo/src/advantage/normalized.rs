use super::estimator::{Batch, Estimate};
use super::normalize::{Normalization, STD_EPSILON, check_std_epsilon};
use super::view::Raw;
use crate::StatisticFrom;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// (R_i − mean)/(std + ε) with configurable sources of both statistics, std with n − 1.
    Normalized {
        /// Source of the mean that is subtracted.
        mean_from: StatisticFrom = StatisticFrom::Group,
        /// Source of the standard deviation that divides.
        std_from: StatisticFrom = StatisticFrom::Batch,
        /// Added to the standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
    }
}

impl Estimate for Normalized {
    fn check(&self) -> Result<(), OutOfRange> {
        check_std_epsilon(self.std_epsilon)
    }

    fn ignored(&self) -> &'static [&'static str] {
        if self.std_from == StatisticFrom::None { &["std_epsilon"] } else { &[] }
    }

    fn needs_group(&self) -> bool {
        [self.mean_from, self.std_from].contains(&StatisticFrom::Group)
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let Self { mean_from, std_from, std_epsilon } = *self;
        Normalization { mean_from, std_from, std_epsilon }.estimate(batch)
    }
}
