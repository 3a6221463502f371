//! Built-in tasks, each a pure function of (seed, split, position).
//!
//! The assignment of operands to splits is keyed by constants, so it is the same in every run; the seed
//! decides which tasks of a split come when.

mod arithmetic;
mod countdown;
mod guess;
mod power_law;
mod scratch;
mod sorting;

use rloom_core::{Purpose, RandomKey, RandomStream, WorkedExample};
use serde::{Deserialize, Serialize};

pub use arithmetic::{ArithmeticSettings, DigitOrder, Digits, HeldOut, Style};
pub use countdown::{CountdownSettings, Wording};
pub use guess::GuessSettings;
pub use sorting::SortingSettings;

use crate::{DataError, Source, Split};

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operation {
    /// Addition.
    #[serde(rename = "+")]
    Add,
    /// Subtraction.
    #[serde(rename = "-")]
    Subtract,
    /// Multiplication.
    #[serde(rename = "*")]
    Multiply,
    /// Exact division.
    #[serde(rename = "/")]
    Divide,
}

impl Operation {
    /// Its sign.
    pub fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Subtract => '-',
            Self::Multiply => '*',
            Self::Divide => '/',
        }
    }
}

/// What a generator makes, before it is presented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) prompt: String,
    pub(crate) answer: String,
    pub(crate) demonstration: WorkedExample,
}

/// A source of tasks that needs no file.
#[derive(Debug, Clone)]
pub(crate) enum Generator {
    Arithmetic(arithmetic::Arithmetic),
    Countdown(countdown::Countdown),
    Guess(guess::Guess),
    Sorting(sorting::Sorting),
}

impl Generator {
    pub(crate) fn new(source: &Source, split: Split, seed: u64) -> Result<Self, DataError> {
        match source {
            Source::Arithmetic(s) => Ok(Self::Arithmetic(arithmetic::Arithmetic::new(s, split, seed)?)),
            Source::Countdown(s) => Ok(Self::Countdown(countdown::Countdown::new(s, split, seed)?)),
            Source::Guess(s) => Ok(Self::Guess(guess::Guess::new(s, split, seed)?)),
            Source::Sorting(s) => Ok(Self::Sorting(sorting::Sorting::new(s, split, seed)?)),
            Source::Files(_) => Err(DataError::Setting { key: "generator", problem: "is not set".into() }),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Arithmetic(_) => "arithmetic",
            Self::Countdown(_) => "countdown",
            Self::Guess(_) => "guess",
            Self::Sorting(_) => "sorting",
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Arithmetic(g) => g.len(),
            Self::Countdown(g) => g.len(),
            Self::Guess(g) => g.len(),
            Self::Sorting(g) => g.len(),
        }
    }

    pub(crate) fn task(&self, position: u64) -> Result<Made, DataError> {
        match self {
            Self::Arithmetic(g) => g.task(position),
            Self::Countdown(g) => g.task(position),
            Self::Guess(g) => g.task(position),
            Self::Sorting(g) => g.task(position),
        }
    }
}

/// Seed of everything that must be the same in every run.
const FIXED: u64 = 0x5350_4C49_5453; // any constant would do
/// Stage of keys that assign splits; splits themselves use 0, 1 and 2.
const ASSIGNMENT: u32 = 3;

/// The key of what a generator draws for a split.
fn draw_key(seed: u64, split: Split, position: u64) -> RandomKey {
    let stage = match split {
        Split::Demonstration => 0,
        Split::Train => 1,
        Split::Eval => 2,
    };
    RandomKey::new(seed, stage, Purpose::Generator, position)
}

/// A key that no seed changes.
fn fixed_key(name: u64) -> RandomKey {
    RandomKey::new(FIXED, ASSIGNMENT, Purpose::Generator, name)
}

/// Random numbers read one after the other.
struct Draws {
    stream: RandomStream,
    position: u64,
}

impl Draws {
    fn new(key: RandomKey) -> Self {
        Self { stream: key.stream(), position: 0 }
    }

    /// Uniform in `low..=high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        let value = low + self.stream.below(self.position, high - low + 1);
        self.position += 1;
        value
    }

    /// Uniform in 0 ≤ x < 1.
    fn uniform(&mut self) -> f64 {
        let value = self.stream.uniform(self.position);
        self.position += 1;
        value
    }

    /// Uniform index into a list of `len` things.
    fn index(&mut self, len: usize) -> usize {
        self.between(0, len as u64 - 1) as usize
    }
}

/// How often a generator tries to find a task of its split before it gives up.
const ATTEMPTS: u64 = 10_000;
/// Number of held-out tasks where the settings do not say.
const EVAL_SIZE: u64 = 512;

/// Shares by which a generator divides what it can make.
#[derive(Debug, Clone, Copy)]
struct Shares {
    held_out: f64,
    demonstration: f64,
}

impl Shares {
    /// Checks that no split is left with nothing.
    fn validate(self) -> Result<(), DataError> {
        for (key, share) in [("held_out_share", self.held_out), ("demonstration_share", self.demonstration)] {
            if !(0.01..=0.99).contains(&share) {
                return Err(DataError::Setting {
                    key,
                    problem: format!("{share} is not between 0.01 and 0.99"),
                });
            }
        }
        Ok(())
    }

    /// The split of a set of numbers, whatever their order: a fixed hash of them in ascending order.
    fn split_of(self, numbers: &[u64]) -> Split {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        let mut hash = sorted.len() as u64;
        for number in sorted {
            hash = fixed_key(hash ^ number.rotate_left(32)).stream().bits(1);
        }
        let uniform = (hash >> 11) as f64 / (1u64 << 53) as f64;
        if uniform < self.held_out {
            Split::Eval
        } else if (uniform - self.held_out) / (1.0 - self.held_out) < self.demonstration {
            Split::Demonstration
        } else {
            Split::Train
        }
    }
}

/// The length of a split whose tasks are drawn rather than counted.
fn drawn_len(split: Split, size: Option<u64>, eval_size: Option<u64>) -> u64 {
    match split {
        Split::Eval => eval_size.unwrap_or(EVAL_SIZE),
        Split::Demonstration | Split::Train => size.unwrap_or(1 << 16),
    }
}

/// Refuses a size of nothing.
fn check_sizes(size: Option<u64>, eval_size: Option<u64>) -> Result<(), DataError> {
    for (key, value) in [("size", size), ("eval_size", eval_size)] {
        if value == Some(0) {
            return Err(DataError::Setting { key, problem: "must be at least 1".into() });
        }
    }
    Ok(())
}
