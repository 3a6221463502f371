use super::estimator::{Batch, Estimate};
use super::moments::no_spread;
use super::normalize::{STD_EPSILON, check_std_epsilon};
use super::view::{GroupView, Raw};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// R_max − R_second for the best of the group, 0 for the others (arXiv 2503.19595).
    MaxAtG {
        /// Also divide by the group's standard deviation.
        divide_by_std: bool = false,
        /// Added to the standard deviation before it divides.
        std_epsilon: f64 = STD_EPSILON,
    }
}

impl MaxAtG {
    /// The best gets its lead over the second, the others 0. If two tie for the best, all get 0.
    fn lead(&self, group: &GroupView<'_>) -> Vec<Raw> {
        let mut best = f64::NEG_INFINITY;
        let mut second = f64::NEG_INFINITY;
        for r in group.present() {
            second = second.max(r.min(best));
            best = best.max(r);
        }
        let tied = no_spread([best, second].into_iter());
        let scale = if self.divide_by_std { group.moments().std() + self.std_epsilon } else { 1.0 };
        group.shared(|r| if r == best && !tied { (best - second) / scale } else { 0.0 })
    }
}

impl Estimate for MaxAtG {
    fn check(&self) -> Result<(), OutOfRange> {
        check_std_epsilon(self.std_epsilon)
    }

    fn ignored(&self) -> &'static [&'static str] {
        if self.divide_by_std { &[] } else { &["std_epsilon"] }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| self.lead(group))
    }
}
