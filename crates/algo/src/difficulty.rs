//! Difficulty of a group: the rewards of its attempts before any shaping.

use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::FilterReason;

/// Filter of the groups of a domain by their rewards, before a penalty of the algorithm. Without a key it keeps all.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DifficultyFilter {
    /// Bounds of the mean reward, `[low, high]`: a group at or below `low` is too hard, one at or above `high` too easy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<[f64; 2]>,
    /// Largest standard deviation (with n − 1) of the rewards at which a group has too little spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std: Option<f64>,
}

impl DifficultyFilter {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        if let Some([low, high]) = self.mean {
            let finite = ValueRange::between(f64::MIN, f64::MAX);
            finite.check("mean", low)?;
            finite.check("mean", high)?;
            if low >= high {
                let problem = SettingProblem::Invalid {
                    value: format!("[{low}, {high}]"),
                    expected: "two numbers of which the first is smaller",
                };
                return Err(SettingError { key: "mean", problem });
            }
        }
        match self.std {
            Some(std) => ValueRange::between(0.0, f64::MAX).check("std", std),
            None => Ok(()),
        }
    }

    /// True if a group can be replaced.
    pub fn replaces_groups(&self) -> bool {
        self.mean.is_some() || self.std.is_some()
    }

    /// The reason to replace a group with these rewards; `None` if it is to be trained on. Rewards that do not apply are not
    /// compared; without any, there is nothing to filter by.
    pub fn verdict(&self, rewards: &[Option<f64>]) -> Option<FilterReason> {
        let present = || rewards.iter().flatten().copied();
        let count = present().count() as f64;
        if count == 0.0 {
            return None;
        }
        let mean = present().sum::<f64>() / count;
        if let Some([low, high]) = self.mean {
            if mean <= low {
                return Some(FilterReason::TooHard);
            }
            if mean >= high {
                return Some(FilterReason::TooEasy);
            }
        }
        let squares = present().map(|reward| (reward - mean) * (reward - mean)).sum::<f64>();
        let std = if count > 1.0 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        self.std.is_some_and(|least| std <= least).then_some(FilterReason::LowSpread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_part_of_what_is_dropped() {
        let filter = DifficultyFilter { mean: Some([0.25, 0.75]), std: None };
        let verdict =
            |rewards: &[f64]| filter.verdict(&rewards.iter().copied().map(Some).collect::<Vec<_>>());
        assert_eq!(verdict(&[0.0, 0.0, 0.0, 1.0]), Some(FilterReason::TooHard));
        assert_eq!(verdict(&[1.0, 1.0, 1.0, 0.0]), Some(FilterReason::TooEasy));
        assert_eq!(verdict(&[1.0, 0.0]), None);
        assert_eq!(verdict(&[0.5]), None);
        assert_eq!(filter.verdict(&[None, Some(0.0), None]), Some(FilterReason::TooHard));
        assert_eq!(filter.verdict(&[None]), None);
    }

    #[test]
    fn the_spread_counts_n_minus_one() {
        // Of 0 and 1 it is √(0.5) ≈ 0.707.
        let filter = |std| DifficultyFilter { mean: None, std: Some(std) };
        assert_eq!(filter(0.70).verdict(&[Some(0.0), Some(1.0)]), None);
        assert_eq!(filter(0.71).verdict(&[Some(0.0), Some(1.0)]), Some(FilterReason::LowSpread));
        assert_eq!(filter(0.0).verdict(&[Some(1.0), Some(1.0)]), Some(FilterReason::LowSpread));
        assert_eq!(filter(0.0).verdict(&[Some(1.0)]), Some(FilterReason::LowSpread));
        assert_eq!(DifficultyFilter::default().verdict(&[Some(1.0), Some(1.0)]), None);
        assert!(!DifficultyFilter::default().replaces_groups() && filter(0.0).replaces_groups());
    }

    #[test]
    fn bounds_are_ordered_numbers() {
        let error = |mean, std| DifficultyFilter { mean, std }.validate().unwrap_err().to_string();
        assert!(error(Some([0.5, 0.5]), None).contains("`mean`: must be two numbers"));
        assert!(error(Some([f64::NAN, 0.5]), None).contains("`mean`"));
        assert!(error(None, Some(-0.1)).contains("`std`"));
        DifficultyFilter { mean: Some([-1.0, 1.0]), std: Some(0.0) }.validate().unwrap();
    }
}
