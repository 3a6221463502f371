//! Operands whose number of digits has a long tail: most are short, a few are long.

use super::arithmetic::{ArithmeticSettings, HeldOut, part};
use super::{ATTEMPTS, Draws, Shares, draw_key, fixed_key};
use crate::{DataError, Permutation, Split};

/// Names the fixed orders of values from here on, one for each number of digits.
const VALUES: u64 = 16;

/// Draws pairs of operands of one split. Both have the same number d of digits, which is drawn with a probability
/// proportional to 1/d²; then every pair of that length is as likely as any other.
#[derive(Debug, Clone)]
pub(super) struct PowerLaw {
    lengths: Vec<Length>,
    held_out: HeldOut,
    shares: Shares,
    split: Split,
    seed: u64,
}

/// The numbers of one length.
#[derive(Debug, Clone)]
struct Length {
    /// Sum of 1/d² up to this length.
    cumulative: f64,
    smallest: u64,
    /// Their fixed order, of which the first are reserved where values are held out.
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
            Length { cumulative, smallest, values, reserved: part(count, settings.held_out_share) }
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
        let mut draws = Draws::new(draw_key(self.seed, self.split, position));
        let operation = draws.index(operations);
        let whole = self.lengths.last().map_or(0.0, |longest| longest.cumulative);
        let drawn = draws.uniform() * whole;
        let below = self.lengths.iter().take_while(|length| length.cumulative <= drawn).count();
        // A product that is rounded up to the whole is still of the longest.
        let length = &self.lengths[below.min(self.lengths.len() - 1)];
        for _ in 0..ATTEMPTS {
            let (a, b) = (self.operand(length, &mut draws), self.operand(length, &mut draws));
            if self.belongs(a, b) {
                return Ok((a, b, operation));
            }
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS })
    }

    fn operand(&self, length: &Length, draws: &mut Draws) -> u64 {
        let all = length.values.len();
        let (from, to) = match (self.held_out, self.split) {
            (HeldOut::Operands, Split::Eval) => (0, length.reserved),
            (HeldOut::Operands, _) => (length.reserved, all),
            (HeldOut::Pairs, _) => (0, all),
        };
        length.smallest + length.values.at(draws.between(from, to - 1))
    }

    /// Whether the pair is one of the split's.
    fn belongs(&self, a: u64, b: u64) -> bool {
        let shares = match (self.held_out, self.split) {
            (HeldOut::Operands, Split::Eval) => return true,
            (HeldOut::Operands, _) => Shares { held_out: 0.0, ..self.shares },
            (HeldOut::Pairs, _) => self.shares,
        };
        shares.split_of(&[a, b]) == self.split
    }
}
