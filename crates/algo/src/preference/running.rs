use serde::{Deserialize, Serialize};

use crate::ExactSum;

/// A mean that is extended step by step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RunningMean {
    /// The mean so far; 0 before the first value.
    pub mean: f64,
    /// Number of values.
    pub count: u64,
}

impl RunningMean {
    /// The mean with further values, whose order does not matter.
    #[must_use]
    pub fn after(self, values: &[f64]) -> Self {
        let mut sum = ExactSum::new();
        sum.add_product(self.mean, self.count as f64);
        for &value in values {
            sum.add(value);
        }
        let count = self.count + values.len() as u64;
        if count == 0 { self } else { Self { mean: sum.value() / count as f64, count } }
    }
}
