use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rloom_core::ValueRange;

use super::{ATTEMPTS, GeneratedTask, RandomDraws, SplitShares, check_sizes, sampled_len, task_key};
use crate::{DataError, Split};

/// Sorting of lists: the prompt `sort 41 7 93:` has the answer `7 41 93`.
///
/// A fixed hash of the numbers in ascending order assigns lists to splits, so no held-out list occurs, in any order, in
/// demonstrations or training. Tasks are sampled with repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SortingSettings {
    /// Minimum length of a list, at least 2.
    pub min_length: u32,
    /// Maximum length of a list, at most 64.
    pub max_length: u32,
    /// Largest number, from 1 to 999999999; the smallest is 0.
    pub max_number: u64,
    /// Fraction of the lists that is held out, between 0.01 and 0.99.
    pub held_out_share: f64,
    /// Fraction of the remaining lists that demonstrations use, between 0.01 and 0.99; training uses the rest.
    pub demonstration_share: f64,
    /// Number of tasks per epoch of demonstrations or training. Default: 65536.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of evaluation tasks. Default: 512.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_size: Option<u64>,
}

impl Default for SortingSettings {
    fn default() -> Self {
        Self {
            min_length: 3,
            max_length: 5,
            max_number: 99,
            held_out_share: 0.25,
            demonstration_share: 0.5,
            size: None,
            eval_size: None,
        }
    }
}

impl SortingSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), DataError> {
        ValueRange::between(2.0, self.max_length.into())
            .max_from("max_length")
            .check("min_length", self.min_length.into())?;
        ValueRange::at_most(64.0).check("max_length", self.max_length.into())?;
        ValueRange::between(1.0, 999_999_999.0).check("max_number", self.max_number as f64)?;
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// All characters of the prompts and completions, sorted.
    pub fn alphabet(&self) -> String {
        " 0123456789:orst".into()
    }

    fn shares(&self) -> SplitShares {
        SplitShares { held_out: self.held_out_share, demonstration: self.demonstration_share }
    }
}

/// The tasks of one split.
#[derive(Debug, Clone)]
pub(crate) struct Sorting {
    settings: SortingSettings,
    split: Split,
    seed: u64,
}

impl Sorting {
    pub(crate) fn new(settings: &SortingSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        settings.validate()?;
        Ok(Self { settings: settings.clone(), split, seed })
    }

    pub(crate) fn len(&self) -> u64 {
        sampled_len(self.split, self.settings.size, self.settings.eval_size)
    }

    pub(crate) fn task(&self, position: u64) -> Result<GeneratedTask, DataError> {
        let s = &self.settings;
        let mut draws = RandomDraws::new(task_key(self.seed, self.split, position));
        for _ in 0..ATTEMPTS {
            let length = draws.between(u64::from(s.min_length), u64::from(s.max_length));
            let mut numbers: Vec<u64> = (0..length).map(|_| draws.between(0, s.max_number)).collect();
            if s.shares().split_of(&numbers) != self.split {
                continue;
            }
            let prompt = format!("sort {}:", joined(&numbers));
            numbers.sort_unstable();
            let answer = joined(&numbers);
            return Ok(GeneratedTask { prompt, demonstration: answer.clone().into(), answer, tests: None });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS, raise: "`max_number` or `max_length`" })
    }
}

fn joined(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}
