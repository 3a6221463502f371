use super::estimator::{Batch, Estimate};
use super::normalize::{Normalization, STD_EPSILON, check_std_epsilon};
use super::view::Raw;
use crate::StatisticFrom;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// (R_i − mean)/(std + ε) over the group, std with n − 1: GRPO (arXiv 2402.03300).
    Group {
        /// Added to the standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
    }
}

impl Estimate for Group {
    fn check(&self) -> Result<(), OutOfRange> {
        check_std_epsilon(self.std_epsilon)
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        let (mean_from, std_from) = (StatisticFrom::Group, StatisticFrom::Group);
        Normalization { mean_from, std_from, std_epsilon: self.std_epsilon }.estimate(batch)
    }
}
