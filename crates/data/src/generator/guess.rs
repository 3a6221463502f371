use rloom_core::WorkedExample;
use serde::{Deserialize, Serialize};

use super::{ATTEMPTS, Draws, Made, Shares, check_sizes, draw_key, drawn_len};
use crate::{DataError, Split};

/// Secrets to guess, for the `guess` environment: the prompt `3-30:` says the range, and the answer `3 <= 17 <= 30`
/// says the secret in it, which the environment reads.
///
/// A task is a range and a secret; tasks are assigned to splits by a fixed hash of both, so no held-out secret occurs
/// in demonstrations or training under the same range. Under other ranges it does: were a number never the secret, a
/// policy would learn never to guess it. Tasks are drawn with repetition.
///
/// A demonstration is a game of somebody who knows the rules and no strategy: each guess is any of the numbers that are
/// left, with equal chances, up to the hit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuessSettings {
    /// Largest number; the smallest is 0.
    pub max_number: u64,
    /// Fewest numbers in a range.
    pub min_numbers: u32,
    /// Most numbers in a range.
    pub max_numbers: u32,
    /// Share of tasks that is held out.
    pub held_out_share: f64,
    /// Share of the other tasks that demonstrations use; training uses the rest.
    pub demonstration_share: f64,
    /// How many tasks make an epoch of demonstrations or training; 65,536 when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How many evaluation tasks; 512 when not set.
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
    /// Checks the settings against each other.
    pub fn validate(&self) -> Result<(), DataError> {
        let refuse = |key, problem: String| Err(DataError::Setting { key, problem });
        if !(1..=999_999).contains(&self.max_number) {
            return refuse("max_number", format!("{} is not between 1 and 999999", self.max_number));
        }
        if self.min_numbers < 2 || self.min_numbers > self.max_numbers {
            let problem =
                format!("{} is not between 2 and `max_numbers` = {}", self.min_numbers, self.max_numbers);
            return refuse("min_numbers", problem);
        }
        if u64::from(self.max_numbers) > self.max_number + 1 {
            let problem =
                format!("{} is more than there are from 0 to {}", self.max_numbers, self.max_number);
            return refuse("max_numbers", problem);
        }
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// The characters that its prompts and completions are made of, in order.
    pub fn alphabet(&self) -> String {
        "-0123456789:".into()
    }

    fn shares(&self) -> Shares {
        Shares { held_out: self.held_out_share, demonstration: self.demonstration_share }
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
        drawn_len(self.split, self.settings.size, self.settings.eval_size)
    }

    pub(crate) fn task(&self, position: u64) -> Result<Made, DataError> {
        let s = &self.settings;
        let mut draws = Draws::new(draw_key(self.seed, self.split, position));
        for _ in 0..ATTEMPTS {
            let numbers = draws.between(u64::from(s.min_numbers), u64::from(s.max_numbers));
            let low = draws.between(0, s.max_number + 1 - numbers);
            let high = low + numbers - 1;
            let secret = draws.between(low, high);
            if s.shares().split_of(&[low, secret, high]) != self.split {
                continue;
            }
            return Ok(Made {
                prompt: format!("{low}-{high}:"),
                answer: format!("{low} <= {secret} <= {high}"),
                demonstration: WorkedExample::Turns(game(low, secret, high, &mut draws)),
            });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS })
    }
}

/// Guesses at random among what is left, up to the hit.
fn game(mut low: u64, secret: u64, mut high: u64, draws: &mut Draws) -> Vec<String> {
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
