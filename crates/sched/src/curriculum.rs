//! Curriculum: quotas that follow the measured success of the domains.

use std::collections::VecDeque;

use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Quotas that follow the measured success rates: a domain whose rate leaves the band has a smaller share, in proportion
/// to the distance. With the difficulty as the domain of a row, these are levels of difficulty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CurriculumSettings {
    /// Success rates `[low, high]`, from 0 to 1, between which a domain has its full quota. Beyond them the quota is
    /// multiplied by rate / low, or by (1 − rate) / (1 − high).
    pub band: [f64; 2],
    /// Smallest factor of a quota, above 0 and at most 1: every domain remains in training and is measured.
    pub floor: f64,
    /// Number of last batches over which success is measured, at least 1. Filtered groups count.
    pub window: u64,
}

impl Default for CurriculumSettings {
    fn default() -> Self {
        Self { band: [0.2, 0.8], floor: 0.1, window: 8 }
    }
}

impl CurriculumSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        let [low, high] = self.band;
        ValueRange::between(0.0, 1.0).check("band", low)?;
        ValueRange::between(0.0, 1.0).check("band", high)?;
        if low > high {
            let problem = SettingProblem::Invalid {
                value: format!("[{low}, {high}]"),
                expected: "two numbers in ascending order",
            };
            return Err(SettingError { key: "band", problem });
        }
        ValueRange::above(0.0, 1.0).check("floor", self.floor)?;
        ValueRange::between(1.0, 1e6).check("window", self.window as f64)
    }

    /// Factor of the quota of a domain with a success rate; 1 before the first measurement.
    pub fn factor(&self, rate: Option<f64>) -> f64 {
        let Some(rate) = rate else { return 1.0 };
        let [low, high] = self.band;
        let factor = if rate < low {
            rate / low
        } else if rate > high {
            (1.0 - rate) / (1.0 - high)
        } else {
            1.0
        };
        factor.max(self.floor)
    }

    /// The quotas for the next slots.
    pub fn weights(&self, quotas: &[f64], measured: &SuccessRates) -> Vec<f64> {
        quotas.iter().enumerate().map(|(domain, quota)| quota * self.factor(measured.rate(domain))).collect()
    }
}

/// Attempts at the tasks of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempts {
    /// Those that solved their task.
    pub solved: u64,
    /// All that were judged.
    pub judged: u64,
}

/// Attempts of the last batches, by domain. Whole numbers, so that their order does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuccessRates {
    /// The last batches, oldest first.
    batches: VecDeque<Vec<Attempts>>,
    /// Attempts since the last batch.
    current: Vec<Attempts>,
}

impl SuccessRates {
    /// Counts the attempts of a group.
    pub fn count(&mut self, domain: usize, attempts: Attempts) {
        if self.current.len() <= domain {
            self.current.resize(domain + 1, Attempts::default());
        }
        self.current[domain].solved += attempts.solved;
        self.current[domain].judged += attempts.judged;
    }

    /// Ends a batch; the attempts of the last `window` ones remain.
    pub fn end_batch(&mut self, window: u64) {
        self.batches.push_back(std::mem::take(&mut self.current));
        while self.batches.len() as u64 > window {
            self.batches.pop_front();
        }
    }

    /// Success rate of a domain over the last batches; `None` without an attempt.
    pub fn rate(&self, domain: usize) -> Option<f64> {
        let of_domain = || self.batches.iter().filter_map(|batch| batch.get(domain));
        let judged: u64 = of_domain().map(|attempts| attempts.judged).sum();
        let solved: u64 = of_domain().map(|attempts| attempts.solved).sum();
        (judged > 0).then(|| solved as f64 / judged as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_outside_the_band_have_less() {
        let settings = CurriculumSettings { band: [0.2, 0.8], floor: 0.1, window: 2 };
        let factor = |rate| settings.factor(Some(rate));
        assert_eq!((factor(0.2), factor(0.5), factor(0.8), settings.factor(None)), (1.0, 1.0, 1.0, 1.0));
        assert_eq!((factor(0.1), factor(0.0), factor(1.0)), (0.5, 0.1, 0.1));
        assert!((factor(0.9) - 0.5).abs() < 1e-12);
        let open = CurriculumSettings { band: [0.0, 1.0], ..settings };
        assert_eq!((open.factor(Some(0.0)), open.factor(Some(1.0))), (1.0, 1.0));
    }

    #[test]
    fn success_is_that_of_the_last_batches() {
        let mut rates = SuccessRates::default();
        let attempts = |solved, judged| Attempts { solved, judged };
        rates.count(1, attempts(3, 4));
        assert_eq!((rates.rate(0), rates.rate(1)), (None, None), "the batch has not ended");
        rates.end_batch(2);
        assert_eq!((rates.rate(0), rates.rate(1)), (None, Some(0.75)));
        rates.count(1, attempts(0, 4));
        rates.count(0, attempts(1, 1));
        rates.end_batch(2);
        assert_eq!((rates.rate(0), rates.rate(1)), (Some(1.0), Some(0.375)));
        rates.end_batch(2);
        assert_eq!(rates.rate(1), Some(0.0));
        rates.end_batch(2);
        assert_eq!((rates.rate(0), rates.rate(1)), (None, None));
        let text = serde_json::to_string(&rates).unwrap();
        assert_eq!(serde_json::from_str::<SuccessRates>(&text).unwrap(), rates);
    }

    #[test]
    fn settings_are_checked() {
        let error = |settings: CurriculumSettings| settings.validate().unwrap_err().key;
        let good = CurriculumSettings::default();
        good.validate().unwrap();
        assert_eq!(error(CurriculumSettings { band: [0.9, 0.1], ..good }), "band");
        assert_eq!(error(CurriculumSettings { band: [-0.1, 0.1], ..good }), "band");
        assert_eq!(error(CurriculumSettings { floor: 0.0, ..good }), "floor");
        assert_eq!(error(CurriculumSettings { window: 0, ..good }), "window");
    }
}
