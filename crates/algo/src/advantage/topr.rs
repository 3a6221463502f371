use super::estimator::{Batch, Estimate};
use super::view::Raw;
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// R_i − c: TOPR (arXiv 2503.14286).
    Topr {
        /// The fixed baseline c.
        baseline: f64 = 0.5,
    }
}

impl Estimate for Topr {
    fn check(&self) -> Result<(), OutOfRange> {
        check("baseline", self.baseline, true, "a number", "0.5 lies between rewards of 0 and 1")
    }

    fn needs_group(&self) -> bool {
        false
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| group.shared(|r| r - self.baseline))
    }
}
