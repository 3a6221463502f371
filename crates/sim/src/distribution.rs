//! Distributions of lengths and latencies.
//!
//! Values are drawn through the quantile function at a probability, so that a long sample stays long when the scale of the
//! distribution changes, and the lengths of a group's samples can be correlated.

use serde::{Deserialize, Serialize};

use super::{DistributionError, ScenarioError};

/// Distribution of a quantity (tokens, turns, seconds).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Distribution {
    /// A constant.
    Constant {
        /// The value.
        value: f64,
    },
    /// Log-normal: `exp(ln median + sigma · z)`, limited to `max`.
    Lognormal {
        /// The median.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Upper limit of the values.
        #[serde(default = "unbounded", skip_serializing_if = "is_unbounded")]
        max: f64,
    },
    /// Measured: values at evenly spaced probabilities from 0 to 1, linear between them.
    Quantiles {
        /// At least one value, ascending.
        values: Vec<f64>,
    },
    /// Mixture with a heavy tail: a share of the values comes from another distribution.
    Tail {
        /// Distribution of most values.
        body: Box<Distribution>,
        /// Distribution of the others.
        tail: Box<Distribution>,
        /// Share of the tail, between 0 and 1. The tail replaces the highest quantiles.
        share: f64,
    },
}

fn unbounded() -> f64 {
    f64::INFINITY
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_unbounded(max: &f64) -> bool {
    max.is_infinite()
}

impl Distribution {
    /// The constant 0.
    pub const ZERO: Self = Self::Constant { value: 0.0 };

    /// The value below which a fraction `p` (0 to 1) of all values lies.
    pub fn quantile(&self, p: f64) -> f64 {
        match self {
            Self::Constant { value } => *value,
            Self::Lognormal { median, sigma, max } => (median * (sigma * probit(p)).exp()).min(*max),
            Self::Quantiles { values } => interpolate(values, p),
            Self::Tail { body, tail, share } => {
                let split = 1.0 - share;
                if p < split { body.quantile(p / split) } else { tail.quantile((p - split) / share) }
            }
        }
    }

    /// The same shape, limited to `max`.
    #[must_use]
    pub fn clamped(self, max: f64) -> Self {
        match self {
            Self::Constant { value } => Self::Constant { value: value.min(max) },
            Self::Lognormal { median, sigma, max: old } => {
                Self::Lognormal { median, sigma, max: old.min(max) }
            }
            Self::Quantiles { values } => {
                Self::Quantiles { values: values.into_iter().map(|v| v.min(max)).collect() }
            }
            Self::Tail { body, tail, share } => {
                Self::Tail { body: Box::new(body.clamped(max)), tail: Box::new(tail.clamped(max)), share }
            }
        }
    }

    /// The same shape, scaled by `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Constant { value } => Self::Constant { value: value * factor },
            Self::Lognormal { median, sigma, max } => {
                Self::Lognormal { median: median * factor, sigma, max: max * factor }
            }
            Self::Quantiles { values } => {
                Self::Quantiles { values: values.into_iter().map(|v| v * factor).collect() }
            }
            Self::Tail { body, tail, share } => {
                Self::Tail { body: Box::new(body.scaled(factor)), tail: Box::new(tail.scaled(factor)), share }
            }
        }
    }

    /// The mean, by the midpoint rule over 4,096 probabilities.
    pub fn mean(&self) -> f64 {
        const POINTS: usize = 4096;
        (0..POINTS).map(|i| self.quantile((i as f64 + 0.5) / POINTS as f64)).sum::<f64>() / POINTS as f64
    }

    /// The distribution of measured values as `points` quantiles.
    pub fn measured(mut values: Vec<f64>, points: usize) -> Self {
        values.sort_by(f64::total_cmp);
        let points = points.max(2);
        let at = |i: usize| interpolate(&values, i as f64 / (points - 1) as f64);
        Self::Quantiles { values: (0..points).map(at).collect() }
    }

    /// Rejects invalid parameters; `name` is the field that holds the distribution.
    pub(crate) fn check(&self, name: &'static str) -> Result<(), ScenarioError> {
        self.check_parameters().map_err(|error| ScenarioError::Distribution { name, error })
    }

    fn check_parameters(&self) -> Result<(), DistributionError> {
        match self {
            Self::Constant { value } if !(value.is_finite() && *value >= 0.0) => {
                Err(DistributionError::Constant(*value))
            }
            &Self::Lognormal { median, sigma, max } if !(median > 0.0 && sigma >= 0.0 && max > 0.0) => {
                Err(DistributionError::Lognormal { median, sigma, max })
            }
            Self::Quantiles { values } => {
                let ascending = values.windows(2).all(|w| w[0] <= w[1]);
                let finite = values.iter().all(|v| v.is_finite() && *v >= 0.0);
                if values.is_empty() || !ascending || !finite {
                    return Err(DistributionError::Quantiles);
                }
                Ok(())
            }
            Self::Tail { body, tail, share } => {
                if !(*share > 0.0 && *share < 1.0) {
                    return Err(DistributionError::TailShare(*share));
                }
                body.check_parameters()?;
                tail.check_parameters()
            }
            _ => Ok(()),
        }
    }
}

/// Interpolates linearly between evenly spaced points; 0 if there are none.
fn interpolate(values: &[f64], p: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let position = p.clamp(0.0, 1.0) * last as f64;
    let low = (position.floor() as usize).min(last);
    let high = (low + 1).min(last);
    values[low] + (values[high] - values[low]) * (position - low as f64)
}

/// The standard normal's cumulative probability, to about 1e-7 (Abramowitz and Stegun 26.2.17).
pub(crate) fn normal_probability(z: f64) -> f64 {
    const C: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let polynomial = C.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    let upper = polynomial * (-0.5 * z * z).exp() * 0.398_942_280_401_432_7;
    if z >= 0.0 { 1.0 - upper } else { upper }
}

/// The standard normal's quantile, to about 5e-4 in the far tail and 1e-7 elsewhere: a rational start (Abramowitz and
/// Stegun 26.2.23) and one Newton step.
fn probit(p: f64) -> f64 {
    let p = p.clamp(1e-9, 1.0 - 1e-9);
    let (sign, tail) = if p < 0.5 { (-1.0, p) } else { (1.0, 1.0 - p) };
    let t = (-2.0 * tail.ln()).sqrt();
    let top = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let bottom = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let start = sign * (t - top / bottom);
    let density = (-0.5 * start * start).exp() * 0.398_942_280_401_432_7;
    if density < 1e-6 { start } else { start - (normal_probability(start) - p) / density }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_and_its_inverse_agree_with_tables() {
        for (z, p) in [(0.0, 0.5), (1.0, 0.841_344_75), (-1.959_964, 0.025), (2.326_348, 0.99)] {
            assert!((normal_probability(z) - p).abs() < 2e-7, "{z}");
            assert!((probit(p) - z).abs() < 2e-6, "{p}");
        }
    }

    #[test]
    fn means_and_quantiles_match_the_formula() {
        let lognormal = Distribution::Lognormal { median: 100.0, sigma: 0.5, max: f64::INFINITY };
        assert!((lognormal.mean() / (100.0 * (0.125f64).exp()) - 1.0).abs() < 1e-3);
        assert!((lognormal.quantile(0.5) - 100.0).abs() < 1e-4);
        let measured = Distribution::measured(vec![3.0, 1.0, 2.0], 5);
        assert_eq!(measured, Distribution::Quantiles { values: vec![1.0, 1.5, 2.0, 2.5, 3.0] });
        let tail = Distribution::Tail {
            body: Box::new(Distribution::Constant { value: 1.0 }),
            tail: Box::new(Distribution::Constant { value: 11.0 }),
            share: 0.1,
        };
        assert!((tail.mean() - 2.0).abs() < 0.01);
        assert_eq!((tail.quantile(0.89), tail.quantile(0.91)), (1.0, 11.0));
        assert_eq!(tail.clone().scaled(2.0).quantile(0.95), 22.0);
        assert_eq!(tail.clamped(5.0).quantile(0.95), 5.0);
    }

    #[test]
    fn invalid_distributions_are_rejected() {
        for invalid in [
            Distribution::Constant { value: -1.0 },
            Distribution::Lognormal { median: 0.0, sigma: 1.0, max: 1.0 },
            Distribution::Quantiles { values: vec![2.0, 1.0] },
            Distribution::Quantiles { values: vec![] },
        ] {
            let error = invalid.check("length").unwrap_err();
            assert!(error.to_string().contains("`length`: "), "{error}");
        }
    }
}
