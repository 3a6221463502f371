//! Operands whose number of digits follows a power law: most are short, a few are long.

use super::arithmetic::{ArithmeticSettings, HeldOut, share_of};
use super::{ATTEMPTS, RandomDraws, SplitShares, fixed_key, task_key};
use crate::{DataError, Permutation, Split};

/// First key of the fixed orders of values, one per number of digits.
const VALUES: u64 = 16;

/// Samples pairs of operands of one split. Both have the same number d of digits, with a probability proportional to
/// 1/d²; pairs of a length are uniform.
#[derive(Debug, Clone)]
pub(super) struct PowerLaw {
    lengths: Vec<Length>,
    held_out: HeldOut,
    shares: SplitShares,
    split: Split,
    seed: u64,
}

/// The numbers of one length.
#[derive(Debug, Clone)]
struct Length {
    /// Sum of 1/d² up to this length.
    cumulative: f64,
    smallest: u64,
    /// Fixed order of the values; the first `reserved` are held out if operands are.
    values: Permutation,
    reserved: u64,
}

impl PowerLaw {
    pub(super) fn new(settings: &ArithmeticSettings, split: Split, seed: u64) -> Self {
        let mut cumulative = 0.0;
        let lengths = (settings.min_digits..=settings.max_digits).map(|digits| {
            cumulative += 1.0 / f64::from(digits * digits);
            let smallest = if digits == 1 { 0 } else { 10u64.pow(digits - 1) };
            let count = 10u64.pow(digits) - smallest;
            let values = Permutation::new(fixed_key(VALUES + u64::from(digits)), count);
            Length { cumulative, smallest, values, reserved: share_of(count, settings.held_out_share) }
        });
        Self {
            lengths: lengths.collect(),
            held_out: settings.held_out,
            shares: settings.shares(),
            split,
            seed,
        }
    }

    /// The operands of the task at `position`, and the index of its operation among `operations`.
    pub(super) fn draw(&self, position: u64, operations: usize) -> Result<(u64, u64, usize), DataError> {
        let mut draws = RandomDraws::new(task_key(self.seed, self.split, position));
        let operation = draws.index(operations);
        let total = self.lengths.last().map_or(0.0, |longest| longest.cumulative);
        let drawn = draws.uniform() * total;
        let below = self.lengths.iter().take_while(|length| length.cumulative <= drawn).count();
        // Rounding can make the product equal to the total: that is the longest length, too.
        let length = &self.lengths[below.min(self.lengths.len() - 1)];
        for _ in 0..ATTEMPTS {
            let (a, b) = (self.operand(length, &mut draws), self.operand(length, &mut draws));
            if self.belongs(a, b) {
                return Ok((a, b, operation));
            }
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS, raise: "`max_digits`" })
    }

    fn operand(&self, length: &Length, draws: &mut RandomDraws) -> u64 {
        let all = length.values.len();
        let (from, to) = match (self.held_out, self.split) {
            (HeldOut::Operands, Split::Eval) => (0, length.reserved),
            (HeldOut::Operands, _) => (length.reserved, all),
            (HeldOut::Pairs, _) => (0, all),
        };
        length.smallest + length.values.at(draws.between(from, to - 1))
    }

    /// True if the pair belongs to the split.
    fn belongs(&self, a: u64, b: u64) -> bool {
        let shares = match (self.held_out, self.split) {
            (HeldOut::Operands, Split::Eval) => return true,
            (HeldOut::Operands, _) => SplitShares { held_out: 0.0, ..self.shares },
            (HeldOut::Pairs, _) => self.shares,
        };
        shares.split_of(&[a, b]) == self.split
    }
}
