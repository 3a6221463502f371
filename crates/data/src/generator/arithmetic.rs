use serde::{Deserialize, Serialize};

use super::power_law::PowerLaw;
use super::{EVAL_SIZE, Made, Operation, Shares, check_sizes, draw_key, drawn_len, fixed_key, scratch};
use crate::{DataError, Permutation, Split};

/// What keeps evaluation apart from training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldOut {
    /// Operand values: a share of them is reserved. Evaluation uses reserved values only, demonstrations and
    /// training never do, so no operand of an evaluation task occurs as an operand in either.
    #[default]
    Operands,
    /// Pairs of operands: every value may occur anywhere, but no pair of an evaluation task, in either order
    /// and under any operation, occurs in demonstrations or training.
    Pairs,
}

/// How a demonstration reaches its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// The answer alone: `47+85=` is completed by `132`.
    #[default]
    Plain,
    /// Digit by digit (products: place by place), then the answer after `####`: `47+85=` is completed by
    /// `7+5=12 4+8+1=13 #### 132`.
    Worked,
    /// Some demonstrations as [`Style::Worked`], the others as [`Style::Plain`]: how a text reaches an answer is
    /// then the policy's choice, and what reinforcement learning can change.
    Mixed,
}

/// In which order the digits of an answer are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DigitOrder {
    /// As everyone writes them.
    #[default]
    Normal,
    /// Lowest digit first (`231` for 132), the order in which sums and products are computed; a sign stays in
    /// front. Judge such answers with an exact match.
    Reversed,
}

/// How many digits the operands have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Digits {
    /// Every number is as likely as any other, so that nine in ten have `max_digits`.
    #[default]
    Uniform,
    /// A long tail: d digits come with a probability proportional to 1/d², and both operands have as many. Of tasks
    /// of 2 to 12 digits 44 % have two, and 5 % ten or more.
    PowerLaw,
}

/// Tasks of two operands: `47+85=`.
///
/// Operands are numbers of `min_digits` to `max_digits` digits (0 has one digit); `digits` says how often each length
/// comes. Values or pairs are assigned to splits (`held_out`) by fixed permutations or hashes that no seed changes.
/// The unordered pairs that are left after `held_out` are divided between demonstrations and training, so that these
/// two share no pair either.
///
/// Under `digits = "uniform"` a split is walked without repetition, in an order that the seed decides; under
/// `held_out = "operands"` an evaluation task never comes twice, elsewhere only a pair of equal operands does (once
/// for each order of its operands). Under `digits = "power_law"` tasks are drawn with repetition: there are few short
/// ones, and they come often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArithmeticSettings {
    /// Which operations, each as likely as the other. Division is not among them: its answers are not whole.
    pub operations: Vec<Operation>,
    /// Fewest digits of an operand.
    pub min_digits: u32,
    /// Most digits of an operand: up to 8, or up to 16 under `digits = "power_law"` without products.
    pub max_digits: u32,
    /// How often each length between comes.
    pub digits: Digits,
    /// How demonstrations reach the answer.
    pub style: Style,
    /// Share of demonstrations that are worked; only with `style = "mixed"`, where it is 0.25 when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worked_share: Option<f64>,
    /// In which order the digits of answers are written.
    pub digit_order: DigitOrder,
    /// What evaluation does not share with training.
    pub held_out: HeldOut,
    /// Share of operand values, or of pairs, that is held out.
    pub held_out_share: f64,
    /// Share of the other pairs that demonstrations use; training uses the rest.
    pub demonstration_share: f64,
    /// How many tasks make an epoch of demonstrations or training; all that exist when not set, and 65,536 where they
    /// are drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How many evaluation tasks; 512, or all that exist, when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_size: Option<u64>,
}

impl Default for ArithmeticSettings {
    fn default() -> Self {
        Self {
            operations: vec![Operation::Add],
            min_digits: 1,
            max_digits: 2,
            digits: Digits::Uniform,
            style: Style::Plain,
            worked_share: None,
            digit_order: DigitOrder::Normal,
            held_out: HeldOut::Operands,
            held_out_share: 0.25,
            demonstration_share: 0.5,
            size: None,
            eval_size: None,
        }
    }
}

/// Share of worked demonstrations in a mixture, when not set.
const WORKED_SHARE: f64 = 0.25;

/// Names the numbers that decide which demonstrations of a mixture are worked; no seed changes them.
const STYLE_STREAM: u64 = 2;

/// More digits would not fit the arithmetic of the numbers that count tasks.
const MAX_DIGITS: u32 = 8;

/// More digits of sums and differences would come close to what 64 bits hold.
const MAX_DRAWN_DIGITS: u32 = 16;

impl ArithmeticSettings {
    /// Checks the settings against each other.
    pub fn validate(&self) -> Result<(), DataError> {
        let refuse = |key, problem: String| Err(DataError::Setting { key, problem });
        if self.operations.is_empty() {
            return refuse("operations", "names no operation".into());
        }
        if self.operations.contains(&Operation::Divide) {
            return refuse("operations", "arithmetic has no `/`\nhint: use `+`, `-` and `*`".into());
        }
        let mut distinct = self.operations.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < self.operations.len() {
            return refuse("operations", "names an operation twice".into());
        }
        if self.min_digits == 0 || self.min_digits > self.max_digits {
            let problem =
                format!("{} is not between 1 and `max_digits` = {}", self.min_digits, self.max_digits);
            return refuse("min_digits", problem);
        }
        let multiplies = self.operations.contains(&Operation::Multiply);
        let (most, hint) = match self.digits {
            Digits::Uniform => (MAX_DIGITS, ""),
            Digits::PowerLaw if multiplies => (MAX_DIGITS, "\nhint: without `*` there can be 16"),
            Digits::PowerLaw => (MAX_DRAWN_DIGITS, ""),
        };
        if self.max_digits > most {
            return refuse("max_digits", format!("{} is more than {most}{hint}", self.max_digits));
        }
        match self.worked_share {
            Some(_) if self.style != Style::Mixed => {
                let problem = "is read only with `style = \"mixed\"`".into();
                return refuse("worked_share", problem);
            }
            Some(share) if !(0.0..=1.0).contains(&share) => {
                return refuse("worked_share", format!("{share} is not between 0 and 1"));
            }
            _ => {}
        }
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// The characters that its prompts and completions are made of, in order: what a tokenizer for it needs.
    pub fn alphabet(&self) -> String {
        let mut characters: Vec<char> = "0123456789=".chars().collect();
        characters.extend(self.operations.iter().map(|o| o.sign()));
        if self.operations.contains(&Operation::Subtract) {
            characters.push('-');
        }
        if self.style != Style::Plain {
            characters.extend("+# ".chars());
            if self.operations.contains(&Operation::Subtract) {
                characters.extend("()".chars());
            }
        }
        characters.sort_unstable();
        characters.dedup();
        characters.into_iter().collect()
    }

    pub(super) fn shares(&self) -> Shares {
        Shares { held_out: self.held_out_share, demonstration: self.demonstration_share }
    }
}

/// Which pairs of operands a split consists of.
#[derive(Debug, Clone)]
enum Pairs {
    /// Every ordered pair of the first `values` reserved ones.
    Ordered { values: u64 },
    /// The unordered pairs that `order` puts at `from..to`, in both orders, over the values from
    /// `first_value` on.
    Unordered { order: Permutation, from: u64, to: u64, first_value: u64 },
}

/// The tasks of one split.
#[derive(Debug, Clone)]
pub(crate) struct Arithmetic {
    settings: ArithmeticSettings,
    operands: Operands,
    len: u64,
}

/// Where the operands of a split come from.
#[derive(Debug, Clone)]
enum Operands {
    Walked(Walk),
    Drawn(PowerLaw),
}

/// Every task of a split once.
#[derive(Debug, Clone)]
struct Walk {
    smallest: u64,
    /// The fixed order of operand values, of which the first are reserved.
    values: Permutation,
    pairs: Pairs,
    /// The seed's order of the tasks.
    order: Permutation,
}

impl Arithmetic {
    pub(crate) fn new(settings: &ArithmeticSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        settings.validate()?;
        let (operands, len) = match settings.digits {
            Digits::Uniform => {
                let walk = Walk::new(settings, split, seed);
                let len = walk.len(settings, split)?;
                (Operands::Walked(walk), len)
            }
            Digits::PowerLaw => {
                let len = drawn_len(split, settings.size, settings.eval_size);
                (Operands::Drawn(PowerLaw::new(settings, split, seed)), len)
            }
        };
        Ok(Self { settings: settings.clone(), operands, len })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn task(&self, position: u64) -> Result<Made, DataError> {
        let operations = &self.settings.operations;
        let (a, b, operation) = match &self.operands {
            Operands::Walked(walk) => walk.operands(position, operations.len()),
            Operands::Drawn(drawn) => drawn.draw(position, operations.len())?,
        };
        let operation = operations[operation];
        let sign = operation.sign();
        let (left, right) = (a as i64, b as i64);
        let value = match operation {
            Operation::Add => left + right,
            Operation::Subtract => left - right,
            Operation::Multiply | Operation::Divide => left * right,
        };
        let answer = match self.settings.digit_order {
            DigitOrder::Normal => value.to_string(),
            DigitOrder::Reversed => reversed(value),
        };
        let worked = match self.settings.style {
            Style::Plain => false,
            Style::Worked => true,
            Style::Mixed => {
                let share = self.settings.worked_share.unwrap_or(WORKED_SHARE);
                fixed_key(STYLE_STREAM).stream().uniform(position) < share
            }
        };
        let demonstration =
            if worked { format!("{}#### {answer}", scratch::work(a, b, operation)) } else { answer.clone() };
        Ok(Made { prompt: format!("{a}{sign}{b}="), answer, demonstration: demonstration.into() })
    }
}

impl Walk {
    fn new(settings: &ArithmeticSettings, split: Split, seed: u64) -> Self {
        let smallest = if settings.min_digits == 1 { 0 } else { 10u64.pow(settings.min_digits - 1) };
        let count = 10u64.pow(settings.max_digits) - smallest;
        let pairs = divide(settings, split, count);
        let space = settings.operations.len() as u64
            * match pairs {
                Pairs::Ordered { values } => values * values,
                Pairs::Unordered { from, to, .. } => 2 * (to - from),
            };
        Self {
            smallest,
            values: Permutation::new(fixed_key(0), count),
            pairs,
            order: Permutation::new(draw_key(seed, split, 0), space),
        }
    }

    /// How many tasks make an epoch.
    fn len(&self, settings: &ArithmeticSettings, split: Split) -> Result<u64, DataError> {
        let space = self.order.len();
        let (key, wanted) = match split {
            Split::Eval => ("eval_size", settings.eval_size),
            Split::Demonstration | Split::Train => ("size", settings.size),
        };
        if let Some(wanted) = wanted
            && wanted > space
        {
            let problem = format!(
                "{wanted} tasks were asked for, but there are only {space} of them\nhint: allow more digits, or change \
                 `held_out_share`"
            );
            return Err(DataError::Setting { key, problem });
        }
        let usual = if split == Split::Eval { EVAL_SIZE } else { u64::MAX };
        Ok(wanted.unwrap_or(usual).min(space))
    }

    /// The operands of the task at `position`, and the index of its operation.
    fn operands(&self, position: u64, operations: usize) -> (u64, u64, usize) {
        let number = self.order.at(position);
        let operation = (number % operations as u64) as usize;
        let number = number / operations as u64;
        let (i, j) = match &self.pairs {
            Pairs::Ordered { values } => (number / values, number % values),
            Pairs::Unordered { order, from, first_value, .. } => {
                let (i, j) = unordered(order.at(from + number / 2));
                let (i, j) = (i + first_value, j + first_value);
                if number.is_multiple_of(2) { (i, j) } else { (j, i) }
            }
        };
        let value = |i| self.smallest + self.values.at(i);
        (value(i), value(j), operation)
    }
}

/// A share of so many, at least one and not all.
pub(super) fn part(of: u64, share: f64) -> u64 {
    ((of as f64 * share).round() as u64).clamp(1, of - 1)
}

/// Gives a split its pairs of the `count` operand values.
fn divide(settings: &ArithmeticSettings, split: Split, count: u64) -> Pairs {
    let (first_value, held_out_pairs) = match settings.held_out {
        HeldOut::Operands => (part(count, settings.held_out_share), 0),
        HeldOut::Pairs => (0, part(triangle(count), settings.held_out_share)),
    };
    if split == Split::Eval && settings.held_out == HeldOut::Operands {
        return Pairs::Ordered { values: first_value };
    }
    let all = triangle(count - first_value);
    let shown = held_out_pairs + part(all - held_out_pairs, settings.demonstration_share);
    let (from, to) = match split {
        Split::Eval => (0, held_out_pairs),
        Split::Demonstration => (held_out_pairs, shown),
        Split::Train => (shown, all),
    };
    Pairs::Unordered { order: Permutation::new(fixed_key(1), all), from, to, first_value }
}

/// Unordered pairs of `n` values, equal ones included.
fn triangle(n: u64) -> u64 {
    n * (n + 1) / 2
}

/// The pair i ≥ j of a number: i(i+1)/2 + j.
fn unordered(number: u64) -> (u64, u64) {
    let mut i = ((8.0 * number as f64 + 1.0).sqrt() / 2.0 - 0.5) as u64;
    // The square root is exact to a few units only where numbers pass 2^53.
    while triangle(i) > number {
        i -= 1;
    }
    while triangle(i + 1) <= number {
        i += 1;
    }
    (i, number - triangle(i))
}

fn reversed(value: i64) -> String {
    let digits: String = value.unsigned_abs().to_string().chars().rev().collect();
    if value < 0 { format!("-{digits}") } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unordered_pairs_are_numbered_without_gaps() {
        let mut number = 0;
        for i in 0..200 {
            for j in 0..=i {
                assert_eq!(unordered(number), (i, j));
                number += 1;
            }
        }
        for i in [99_999_998u64, 99_999_999, 2_000_000_000] {
            assert_eq!(unordered(triangle(i)), (i, 0));
            assert_eq!(unordered(triangle(i) + i), (i, i));
        }
    }

    #[test]
    fn reversed_answers_keep_their_sign_in_front() {
        assert_eq!(reversed(132), "231");
        assert_eq!(reversed(-38), "-83");
        assert_eq!(reversed(100), "001");
        assert_eq!(reversed(0), "0");
    }
}
