use rloom_core::{Demonstration, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ATTEMPTS, GeneratedTask, RandomDraws, SplitShares, check_sizes, sampled_len, task_key};
use crate::{DataError, Split};

/// Number guessing, for the `guess` environment: the prompt `3-30:` contains the range, and the answer `3 <= 17 <= 30`
/// contains the secret for the environment.
///
/// A task is a range and a secret. A fixed hash of both assigns tasks to splits, so no held-out secret occurs in
/// demonstrations or training with the same range. It does occur with other ranges: a policy would learn to avoid a
/// number that is never the secret. Tasks are sampled with repetition.
///
/// A demonstration follows the rules without a strategy: each guess is uniform over the remaining numbers, until it
/// hits the secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuessSettings {
    /// Largest number, from 1 to 999999; the smallest is 0.
    pub max_number: u64,
    /// Minimum size of a range, at least 2.
    pub min_numbers: u32,
    /// Maximum size of a range, at most `max_number` + 1.
    pub max_numbers: u32,
    /// Fraction of the tasks that is held out, between 0.01 and 0.99.
    pub held_out_share: f64,
    /// Fraction of the remaining tasks that demonstrations use, between 0.01 and 0.99; training uses the rest.
    pub demonstration_share: f64,
    /// Number of tasks per epoch of demonstrations or training. Default: 65536.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of evaluation tasks. Default: 512.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_size: Option<u64>,
}

impl Default for GuessSettings {
    fn default() -> Self {
        Self {
            max_number: 31,
            min_numbers: 20,
            max_numbers: 31,
            held_out_share: 0.25,
            demonstration_share: 0.5,
            size: None,
            eval_size: None,
        }
    }
}

impl GuessSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), DataError> {
        ValueRange::between(1.0, 999_999.0).check("max_number", self.max_number as f64)?;
        ValueRange::between(2.0, self.max_numbers.into())
            .max_from("max_numbers")
            .check("min_numbers", self.min_numbers.into())?;
        ValueRange::between(2.0, (self.max_number + 1) as f64)
            .max_from("max_number + 1")
            .check("max_numbers", self.max_numbers.into())?;
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// All characters of the prompts and completions, sorted.
    pub fn alphabet(&self) -> String {
        "-0123456789:".into()
    }

    fn shares(&self) -> SplitShares {
        SplitShares { held_out: self.held_out_share, demonstration: self.demonstration_share }
    }
}

/// The tasks of one split.
#[derive(Debug, Clone)]
pub(crate) struct Guess {
    settings: GuessSettings,
    split: Split,
    seed: u64,
}

impl Guess {
    pub(crate) fn new(settings: &GuessSettings, split: Split, seed: u64) -> Result<Self, DataError> {
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
            let numbers = draws.between(u64::from(s.min_numbers), u64::from(s.max_numbers));
            let low = draws.between(0, s.max_number + 1 - numbers);
            let high = low + numbers - 1;
            let secret = draws.between(low, high);
            if s.shares().split_of(&[low, secret, high]) != self.split {
                continue;
            }
            return Ok(GeneratedTask {
                tests: None,
                prompt: format!("{low}-{high}:"),
                answer: format!("{low} <= {secret} <= {high}"),
                demonstration: Demonstration::Turns(game(low, secret, high, &mut draws)),
            });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS, raise: "`max_number` or `max_numbers`" })
    }
}

/// Uniform guesses among the remaining numbers, until the hit.
fn game(mut low: u64, secret: u64, mut high: u64, draws: &mut RandomDraws) -> Vec<String> {
    let mut guesses = Vec::new();
    loop {
        let guess = draws.between(low, high);
        guesses.push(guess.to_string());
        match guess.cmp(&secret) {
            std::cmp::Ordering::Less => low = guess + 1,
            std::cmp::Ordering::Greater => high = guess - 1,
            std::cmp::Ordering::Equal => return guesses,
        }
    }
}
