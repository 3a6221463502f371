//! Distributions of lengths and latencies.
//!
//! Everything is drawn through the quantile function at a probability, so that a long sample stays long when the
//! distribution's scale is changed, and a group's samples can share a part of their luck.

use serde::{Deserialize, Serialize};

use super::SimError;

/// How a quantity (tokens, turns, seconds) is distributed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Distribution {
    /// Always the same.
    Constant {
        /// The value.
        value: f64,
    },
    /// Log-normal: `exp(ln median + sigma · z)`, cut off at `most`.
    Lognormal {
        /// Half of the values are below it.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// No value is larger.
        #[serde(default = "unbounded", skip_serializing_if = "is_unbounded")]
        most: f64,
    },
    /// Measured: values at evenly spaced probabilities from 0 to 1, linear between them.
    Quantiles {
        /// At least one, ascending.
        values: Vec<f64>,
    },
    /// A share of the values comes from another distribution: a heavy tail.
    Tail {
        /// What most values are.
        body: Box<Distribution>,
        /// What the others are.
        tail: Box<Distribution>,
        /// The share of the others, from 0 to 1. They are the luckiest ones of all draws.
        share: f64,
    },
}

fn unbounded() -> f64 {
    f64::INFINITY
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_unbounded(most: &f64) -> bool {
    most.is_infinite()
}

impl Distribution {
    /// Nothing, ever.
    pub const ZERO: Self = Self::Constant { value: 0.0 };

    /// The value below which a share `p` (0 to 1) of all values lies.
    pub fn quantile(&self, p: f64) -> f64 {
        match self {
            Self::Constant { value } => *value,
            Self::Lognormal { median, sigma, most } => (median * (sigma * probit(p)).exp()).min(*most),
            Self::Quantiles { values } => interpolate(values, p),
            Self::Tail { body, tail, share } => {
                let split = 1.0 - share;
                if p < split { body.quantile(p / split) } else { tail.quantile((p - split) / share) }
            }
        }
    }

    /// The same shape, cut off at `most`.
    #[must_use]
    pub fn at_most(self, most: f64) -> Self {
        match self {
            Self::Constant { value } => Self::Constant { value: value.min(most) },
            Self::Lognormal { median, sigma, most: old } => {
                Self::Lognormal { median, sigma, most: old.min(most) }
            }
            Self::Quantiles { values } => {
                Self::Quantiles { values: values.into_iter().map(|v| v.min(most)).collect() }
            }
            Self::Tail { body, tail, share } => {
                Self::Tail { body: Box::new(body.at_most(most)), tail: Box::new(tail.at_most(most)), share }
            }
        }
    }

    /// The same shape, `factor` times as large.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        match self {
            Self::Constant { value } => Self::Constant { value: value * factor },
            Self::Lognormal { median, sigma, most } => {
                Self::Lognormal { median: median * factor, sigma, most: most * factor }
            }
            Self::Quantiles { values } => {
                Self::Quantiles { values: values.into_iter().map(|v| v * factor).collect() }
            }
            Self::Tail { body, tail, share } => {
                Self::Tail { body: Box::new(body.times(factor)), tail: Box::new(tail.times(factor)), share }
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

    /// Refuses what is no distribution of a quantity.
    pub(crate) fn check(&self, what: &str) -> Result<(), SimError> {
        let wrong = |why: String| Err(SimError::Scenario { what: what.to_owned(), why });
        match self {
            Self::Constant { value } if !(value.is_finite() && *value >= 0.0) => {
                wrong(format!("{value} is not a finite number of at least 0"))
            }
            Self::Lognormal { median, sigma, most } if !(*median > 0.0 && *sigma >= 0.0 && *most > 0.0) => {
                wrong(format!(
                    "a log-normal needs median > 0, sigma >= 0 and most > 0, not {median}, {sigma}, {most}"
                ))
            }
            Self::Quantiles { values } => {
                let ascending = values.windows(2).all(|w| w[0] <= w[1]);
                let finite = values.iter().all(|v| v.is_finite() && *v >= 0.0);
                if values.is_empty() || !ascending || !finite {
                    return wrong(
                        "quantiles are ascending finite numbers of at least 0, and not none".into(),
                    );
                }
                Ok(())
            }
            Self::Tail { body, tail, share } => {
                if !(*share > 0.0 && *share < 1.0) {
                    return wrong(format!("the tail's share lies between 0 and 1, not at {share}"));
                }
                body.check(what)?;
                tail.check(what)
            }
            _ => Ok(()),
        }
    }
}

/// Linear between evenly spaced points; 0 of none.
fn interpolate(values: &[f64], p: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let place = p.clamp(0.0, 1.0) * last as f64;
    let low = (place.floor() as usize).min(last);
    let high = (low + 1).min(last);
    values[low] + (values[high] - values[low]) * (place - low as f64)
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
    fn means_and_quantiles_are_those_of_the_formula() {
        let lognormal = Distribution::Lognormal { median: 100.0, sigma: 0.5, most: f64::INFINITY };
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
        assert_eq!(tail.clone().times(2.0).quantile(0.95), 22.0);
        assert_eq!(tail.at_most(5.0).quantile(0.95), 5.0);
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for wrong in [
            Distribution::Constant { value: -1.0 },
            Distribution::Lognormal { median: 0.0, sigma: 1.0, most: 1.0 },
            Distribution::Quantiles { values: vec![2.0, 1.0] },
            Distribution::Quantiles { values: vec![] },
        ] {
            let error = wrong.check("length").unwrap_err();
            assert!(error.to_string().contains("length"), "{error}");
        }
    }
}
