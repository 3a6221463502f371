//! Sums for metrics. Merging is exact: order and grouping do not affect the result.

use serde::{Deserialize, Serialize};

use crate::{ExactSum, unbounded};

/// A mean.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Mean {
    sum: ExactSum,
    count: u64,
}

impl Mean {
    pub(super) fn add(&mut self, x: f64) {
        self.sum.add(x);
        self.count += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.sum.merge(&other.sum);
        self.count += other.count;
    }

    pub(super) fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value() / self.count as f64)
    }
}

/// Smallest and largest.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Extremes {
    #[serde(with = "unbounded::high")]
    pub(super) low: f64,
    #[serde(with = "unbounded::low")]
    pub(super) high: f64,
}

impl Default for Extremes {
    fn default() -> Self {
        Self { low: f64::INFINITY, high: f64::NEG_INFINITY }
    }
}

impl Extremes {
    pub(super) fn add(&mut self, x: f64) {
        self.low = self.low.min(x);
        self.high = self.high.max(x);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
    }

    pub(super) fn given(self) -> Option<Self> {
        (self.low <= self.high).then_some(self)
    }
}

/// Sums of x and x².
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Moments {
    sum: ExactSum,
    squares: ExactSum,
    count: u64,
}

impl Moments {
    pub(super) fn add(&mut self, x: f64) {
        self.sum.add(x);
        self.squares.add_product(x, x);
        self.count += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
        self.count += other.count;
    }

    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value() / self.count as f64)
    }

    /// n·Σx² − (Σx)², which is n² times the variance, rounded once: equal numbers give 0, regardless of their size.
    pub(super) fn spread(&self) -> f64 {
        let mut spread = ExactSum::new();
        for &part in self.squares.parts() {
            spread.add_product(self.count as f64, part);
        }
        for &x in self.sum.parts() {
            for &y in self.sum.parts() {
                spread.add_product(-x, y);
            }
        }
        spread.value()
    }

    /// (Σx)²/(n·Σx²) of weights: 1 if all are equal, 1/n if all but one are 0.
    pub(super) fn effective_share(&self) -> Option<f64> {
        let squares = self.squares.value();
        let sum = self.sum.value();
        let share = if squares > 0.0 { sum * sum / (self.count as f64 * squares) } else { 0.0 };
        (self.count > 0).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        for &x in values {
            moments.add(x);
        }
        moments
    }

    /// 0.1² is not representable: the textbook formula leaves a remainder.
    #[test]
    fn equal_numbers_do_not_spread() {
        for x in [0.1, -1e8 - 0.3, 1e-20, 0.0] {
            assert_eq!(moments(&[x; 7]).spread(), 0.0, "{x}");
        }
        assert_eq!(moments(&[1.0, 2.0, 4.0]).spread(), 3.0 * 21.0 - 49.0);
        // Deviations of 1e-9 around 1e6 are below the resolution of the squares.
        let near = moments(&[1e6, 1e6 + 9.313_225_746_154_785e-10]).spread();
        assert_eq!(near, 9.313_225_746_154_785e-10f64.powi(2));
    }

    #[test]
    fn effective_shares() {
        assert_eq!(moments(&[0.3; 5]).effective_share(), Some(1.0));
        assert_eq!(moments(&[2.0, 0.0, 0.0, 0.0]).effective_share(), Some(0.25));
        assert_eq!(moments(&[0.0; 3]).effective_share(), Some(0.0));
        assert_eq!(moments(&[]).effective_share(), None);
    }
}
