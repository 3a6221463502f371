//! Built-in tasks, each a pure function of (seed, split, position).
//!
//! The assignment of operands to splits is keyed by constants and equal in every run; the seed determines the order of
//! the tasks within a split.

mod arithmetic;
mod countdown;
pub(crate) mod games;
mod graded;
mod guess;
mod power_law;
mod programs;
mod scratchpad;
mod sorting;

use rloom_core::{Demonstration, Purpose, RandomKey, RandomStream, SettingError, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use arithmetic::{ArithmeticSettings, DigitOrder, Digits, HeldOut, Style};
pub use countdown::{CountdownSettings, Wording};
pub use games::{
    BanditSettings, BlackjackSettings, ConnectFourSettings, FrozenLakeSettings, KuhnPokerSettings, Notation,
    Seat, SokobanSettings, SudokuSettings, TicTacToeSettings, WordleSettings,
};
pub use graded::GradedRows;
pub use guess::GuessSettings;
pub use programs::ProgramsSettings;
pub use sorting::SortingSettings;

pub(crate) use arithmetic::Arithmetic;
pub(crate) use countdown::Countdown;
pub(crate) use games::Games;
pub(crate) use guess::Guess;
pub(crate) use programs::Programs;
pub(crate) use sorting::Sorting;

use crate::{DataError, Split};

/// An arithmetic operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
    /// Sign of the operation.
    pub fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Subtract => '-',
            Self::Multiply => '*',
            Self::Divide => '/',
        }
    }
}

/// A generated task, before the prompt is formatted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GeneratedTask {
    pub(crate) prompt: String,
    pub(crate) answer: String,
    pub(crate) demonstration: Demonstration,
    /// Tests of a program.
    pub(crate) tests: Option<Value>,
}

/// Seed of values that are equal in every run.
const FIXED: u64 = 0x5350_4C49_5453; // an arbitrary constant
/// Stage of the keys that assign splits; the splits themselves use 0, 1 and 2.
const ASSIGNMENT: u32 = 3;

/// The random key of a task of a split.
fn task_key(seed: u64, split: Split, position: u64) -> RandomKey {
    let stage = match split {
        Split::Demonstration => 0,
        Split::Train => 1,
        Split::Eval => 2,
    };
    RandomKey::new(seed, stage, Purpose::Generator, position)
}

/// A key that is independent of the seed.
fn fixed_key(id: u64) -> RandomKey {
    RandomKey::new(FIXED, ASSIGNMENT, Purpose::Generator, id)
}

/// Random numbers in sequence.
pub(crate) struct RandomDraws {
    stream: RandomStream,
    position: u64,
}

impl RandomDraws {
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

    /// Uniform index into a list of `len` items.
    fn index(&mut self, len: usize) -> usize {
        self.between(0, len as u64 - 1) as usize
    }
}

/// Maximum number of attempts to sample a task of a split.
const ATTEMPTS: u64 = 10_000;
/// Default number of evaluation tasks.
const EVAL_SIZE: u64 = 512;

/// Fractions by which a generator divides its tasks into splits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SplitShares {
    held_out: f64,
    demonstration: f64,
}

impl SplitShares {
    /// Checks that no split is empty.
    fn validate(self) -> Result<(), SettingError> {
        for (key, share) in [("held_out_share", self.held_out), ("demonstration_share", self.demonstration)] {
            ValueRange::between(0.01, 0.99).check(key, share)?;
        }
        Ok(())
    }

    /// The split of a set of numbers, by a fixed hash of the numbers in ascending order.
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

/// The length of a split whose tasks are sampled with repetition.
fn sampled_len(split: Split, size: Option<u64>, eval_size: Option<u64>) -> u64 {
    match split {
        Split::Eval => eval_size.unwrap_or(EVAL_SIZE),
        Split::Demonstration | Split::Train => size.unwrap_or(1 << 16),
    }
}

/// Checks the sizes of the splits.
fn check_sizes(size: Option<u64>, eval_size: Option<u64>) -> Result<(), DataError> {
    for (key, value) in [("size", size), ("eval_size", eval_size)] {
        value.map_or(Ok(()), |value| ValueRange::at_least(1.0).check(key, value as f64))?;
    }
    Ok(())
}
