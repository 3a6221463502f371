//! Mean and variance of rewards.

use serde::{Deserialize, Serialize};

/// Differences up to this fraction of the largest magnitude count as rounding: rewards may have been rounded to
/// `f32`, and 0.1 + 0.2 is not 0.3.
const RESOLUTION: f64 = f32::EPSILON as f64;

/// True if values between `low` and `high` are equal up to float resolution.
fn is_level(low: f64, high: f64) -> bool {
    high - low <= RESOLUTION * low.abs().max(high.abs())
}

/// True if all values are equal up to float resolution; also for no or one value.
pub(crate) fn no_spread(values: impl Iterator<Item = f64>) -> bool {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    low > high || is_level(low, high)
}

/// Moments of all rewards so far, for [`StatisticFrom::Running`](crate::StatisticFrom::Running). Only estimators that
/// use them update them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunningMoments {
    /// Number of rewards, which include the KL penalty if there is one.
    pub count: u64,
    /// Mean of the rewards.
    pub mean: f64,
    /// Σ(R − mean)².
    pub m2: f64,
    /// Smallest reward.
    pub low: f64,
    /// Largest reward.
    pub high: f64,
}

impl RunningMoments {
    /// Computes the moments of `values` in two passes: E[x²] − mean² would cancel for near-equal values.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count();
        if count == 0 {
            return Self::default();
        }
        let mean = values.clone().sum::<f64>() / count as f64;
        Self {
            count: count as u64,
            mean,
            m2: values.clone().map(|v| (v - mean) * (v - mean)).sum(),
            low: values.clone().fold(f64::INFINITY, f64::min),
            high: values.fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// Merges two sets of moments without reading the values again (Chan, Golub and LeVeque, 1979).
    #[must_use]
    pub(super) fn and(self, more: Self) -> Self {
        if self.count == 0 || more.count == 0 {
            return if self.count == 0 { more } else { self };
        }
        let (n, m) = (self.count as f64, more.count as f64);
        let apart = more.mean - self.mean;
        Self {
            count: self.count + more.count,
            mean: self.mean + apart * (m / (n + m)),
            m2: self.m2 + more.m2 + apart * apart * (n * m / (n + m)),
            low: self.low.min(more.low),
            high: self.high.max(more.high),
        }
    }

    /// Standard deviation with n − 1; 0 for fewer than two values.
    pub(super) fn std(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.m2 / (self.count - 1) as f64).sqrt() }
    }

    /// True if all values are equal up to float resolution.
    pub(super) fn no_spread(&self) -> bool {
        is_level(self.low, self.high)
    }
}
