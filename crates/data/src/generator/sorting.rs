use serde::{Deserialize, Serialize};

use super::{ATTEMPTS, Draws, Made, Shares, check_sizes, draw_key, drawn_len};
use crate::{DataError, Split};

/// Lists to sort: `sort 41 7 93:` is completed by `7 41 93`.
///
/// Lists are assigned to splits by a fixed hash of their numbers in ascending order, so no held-out list
/// occurs, in any order, in demonstrations or training. Tasks are drawn with repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SortingSettings {
    /// Fewest numbers in a list.
    pub min_length: u32,
    /// Most numbers in a list.
    pub max_length: u32,
    /// Largest number; the smallest is 0.
    pub max_number: u64,
    /// Share of lists that is held out.
    pub held_out_share: f64,
    /// Share of the other lists that demonstrations use; training uses the rest.
    pub demonstration_share: f64,
    /// How many tasks make an epoch of demonstrations or training; 65,536 when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How many evaluation tasks; 512 when not set.
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
    /// Checks the settings against each other.
    pub fn validate(&self) -> Result<(), DataError> {
        let refuse = |key, problem: String| Err(DataError::Setting { key, problem });
        if self.min_length < 2 || self.min_length > self.max_length {
            let problem =
                format!("{} is not between 2 and `max_length` = {}", self.min_length, self.max_length);
            return refuse("min_length", problem);
        }
        if self.max_length > 64 {
            return refuse("max_length", format!("{} is more than 64", self.max_length));
        }
        if self.max_number == 0 || self.max_number > 999_999_999 {
            return refuse("max_number", format!("{} is not between 1 and 999999999", self.max_number));
        }
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// The characters that its prompts and completions are made of, in order.
    pub fn alphabet(&self) -> String {
        " 0123456789:orst".into()
    }

    fn shares(&self) -> Shares {
        Shares { held_out: self.held_out_share, demonstration: self.demonstration_share }
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
        drawn_len(self.split, self.settings.size, self.settings.eval_size)
    }

    pub(crate) fn task(&self, position: u64) -> Result<Made, DataError> {
        let s = &self.settings;
        let mut draws = Draws::new(draw_key(self.seed, self.split, position));
        for _ in 0..ATTEMPTS {
            let length = draws.between(u64::from(s.min_length), u64::from(s.max_length));
            let mut numbers: Vec<u64> = (0..length).map(|_| draws.between(0, s.max_number)).collect();
            if s.shares().split_of(&numbers) != self.split {
                continue;
            }
            let prompt = format!("sort {}:", spaced(&numbers));
            numbers.sort_unstable();
            let answer = spaced(&numbers);
            return Ok(Made { prompt, demonstration: answer.clone().into(), answer });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS })
    }
}

fn spaced(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}
