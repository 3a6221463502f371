use rloom_core::{Demonstration, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::graded::{GradedRows, wrong_value};
use super::power_law::PowerLaw;
use super::{
    EVAL_SIZE, GeneratedTask, Operation, SplitShares, check_sizes, fixed_key, sampled_len, scratchpad,
    task_key,
};
use crate::{DataError, DataSettingProblem, Permutation, Split};

/// Separation of evaluation tasks from training tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeldOut {
    /// By operand values: a fraction of them is reserved for evaluation, so no operand of an evaluation task occurs as an
    /// operand in demonstrations or training.
    #[default]
    Operands,
    /// By pairs of operands: every value may occur in every split, but no pair of an evaluation task, in either order and
    /// with any operation, occurs in demonstrations or training.
    Pairs,
}

/// Form of the demonstrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// The answer alone: `47+85=` is completed with `132`.
    #[default]
    Plain,
    /// The written calculation, then the answer after `####`: `47+85=` is completed with `7+5=12 4+8+1=13 #### 132`.
    Worked,
    /// Some demonstrations `worked`, the others `plain` (see `worked_share`): the policy learns both, and reinforcement
    /// learning can shift its preference.
    Mixed,
    /// Some demonstrations call the tool `calculator` of the `tools` environment, in the format `tags`, and repeat its result:
    /// `47*85=` is completed with `<calculator>47*85</calculator>`, and in the next turn with `#### 3995`. The others are
    /// `plain` (see `worked_share`).
    Calls,
}

/// Order of the digits of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DigitOrder {
    /// Highest digit first.
    #[default]
    Normal,
    /// Lowest digit first (`231` for 132), the order in which sums are computed; a sign stays in front. Use the `exact`
    /// reward for such answers.
    Reversed,
}

/// Distribution of the number of digits of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Digits {
    /// Uniform over all numbers, so that 90 % have `max_digits`.
    #[default]
    Uniform,
    /// A power law: both operands have d digits with a probability proportional to 1/d². With 2 to 12 digits, 44 % of the
    /// tasks have two, and 5 % have ten or more.
    PowerLaw,
}

/// Arithmetic with two operands: `47+85=`.
///
/// Operands have `min_digits` to `max_digits` digits (0 has one digit), distributed as in `digits`. Fixed permutations or
/// hashes, independent of the seed, assign values or pairs to splits (`held_out`). The remaining unordered pairs are
/// divided between demonstrations and training, so that these two have no pair in common either.
///
/// With `digits = "uniform"` a split is enumerated without repetition, in an order that the seed determines. With
/// `held_out = "operands"` no evaluation task repeats; otherwise only pairs of equal operands repeat (once per order).
/// With `digits = "power_law"` tasks are sampled with repetition: there are few short tasks, and they are frequent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ArithmeticSettings {
    /// Operations, chosen uniformly: `+`, `-`, `*`. Division is not supported, since its answers are not integers.
    pub operations: Vec<Operation>,
    /// Minimum number of digits of an operand, at least 1.
    pub min_digits: u32,
    /// Maximum number of digits of an operand: at most 8, or at most 16 with `digits = "power_law"` and without `*`.
    pub max_digits: u32,
    /// Distribution of the number of digits.
    pub digits: Digits,
    /// Form of the demonstrations.
    pub style: Style,
    /// Form of the rows that stages without sampling learn from.
    pub rows: GradedRows,
    /// Fraction of the demonstrations that are `worked` or call the tool, between 0 and 1; only with `style = "mixed"` or
    /// `"calls"`. Default: 0.25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worked_share: Option<f64>,
    /// Order of the digits of answers.
    pub digit_order: DigitOrder,
    /// Separation of evaluation tasks from training tasks.
    pub held_out: HeldOut,
    /// Fraction of the operand values, or of the pairs, that is held out, between 0.01 and 0.99.
    pub held_out_share: f64,
    /// Fraction of the remaining pairs that demonstrations use, between 0.01 and 0.99; training uses the rest.
    pub demonstration_share: f64,
    /// Number of tasks per epoch of demonstrations or training. Default: all existing tasks, or 65536 with
    /// `digits = "power_law"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of evaluation tasks. Default: 512, or all existing tasks if there are fewer.
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
            rows: GradedRows::Demonstrations,
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

/// Default fraction of worked demonstrations in a mixture.
const WORKED_SHARE: f64 = 0.25;

/// Key of the random numbers that select the worked demonstrations of a mixture, independent of the seed.
const STYLE_STREAM: u64 = 2;

/// Limit of the 64-bit arithmetic that numbers the tasks.
const MAX_DIGITS: u32 = 8;

/// Limit of 64-bit sums and differences.
const MAX_SAMPLED_DIGITS: u32 = 16;

impl ArithmeticSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), DataError> {
        self.check_operations()?;
        ValueRange::between(1.0, self.max_digits.into())
            .max_from("max_digits")
            .check("min_digits", self.min_digits.into())?;
        self.check_max_digits()?;
        if let Some(share) = self.worked_share {
            if !matches!(self.style, Style::Mixed | Style::Calls) {
                let unused = SettingProblem::Unused { other: "style", value: "\"mixed\"" };
                return Err(unused.at("worked_share").into());
            }
            ValueRange::between(0.0, 1.0).check("worked_share", share)?;
        }
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    fn check_operations(&self) -> Result<(), DataError> {
        if self.operations.is_empty() {
            return Err(SettingProblem::Empty.at("operations").into());
        }
        if self.operations.contains(&Operation::Divide) {
            return Err(DataSettingProblem::Division.at("operations"));
        }
        let repeated = self.operations.iter().enumerate().find(|(i, o)| self.operations[..*i].contains(o));
        match repeated {
            Some((_, operation)) => {
                let value = format!("`{}`", operation.sign());
                Err(SettingProblem::Repeated { value }.at("operations").into())
            }
            None => Ok(()),
        }
    }

    fn check_max_digits(&self) -> Result<(), DataError> {
        let digits = self.max_digits;
        let max = match self.digits {
            Digits::Uniform => MAX_DIGITS,
            Digits::PowerLaw if self.operations.contains(&Operation::Multiply) && digits > MAX_DIGITS => {
                let (max, max_without) = (MAX_DIGITS, MAX_SAMPLED_DIGITS);
                return Err(
                    DataSettingProblem::DigitsOfProducts { digits, max, max_without }.at("max_digits")
                );
            }
            Digits::PowerLaw => MAX_SAMPLED_DIGITS,
        };
        Ok(ValueRange::at_most(max.into()).check("max_digits", digits.into())?)
    }

    /// All characters of the prompts and completions, sorted: the alphabet of a character tokenizer.
    pub fn alphabet(&self) -> String {
        let mut characters: Vec<char> = "0123456789=".chars().collect();
        characters.extend(self.operations.iter().map(|o| o.sign()));
        if self.operations.contains(&Operation::Subtract) {
            characters.push('-');
        }
        if self.style == Style::Calls {
            characters.extend(call_of("", "# ").chars());
        } else if self.style != Style::Plain {
            characters.extend("+# ".chars());
            if self.operations.contains(&Operation::Subtract) {
                characters.extend("()".chars());
            }
        }
        characters.sort_unstable();
        characters.dedup();
        characters.into_iter().collect()
    }

    pub(super) fn shares(&self) -> SplitShares {
        SplitShares { held_out: self.held_out_share, demonstration: self.demonstration_share }
    }
}

/// Pairs of operands of a split.
#[derive(Debug, Clone)]
enum Pairs {
    /// Every ordered pair of the first `values` values, the reserved ones.
    Ordered { values: u64 },
    /// The unordered pairs at `from..to` of `order`, each in both orders, over the values from `first_value` on.
    Unordered { order: Permutation, from: u64, to: u64, first_value: u64 },
}

/// The tasks of one split.
#[derive(Debug, Clone)]
pub(crate) struct Arithmetic {
    settings: ArithmeticSettings,
    operands: Operands,
    len: u64,
}

/// Source of the operands of a split.
#[derive(Debug, Clone)]
enum Operands {
    Enumerated(Enumeration),
    Sampled(PowerLaw),
}

/// Every task of a split, once.
#[derive(Debug, Clone)]
struct Enumeration {
    smallest: u64,
    /// Fixed order of the operand values; the first are reserved.
    values: Permutation,
    pairs: Pairs,
    /// Order of the tasks, determined by the seed.
    order: Permutation,
}

impl Arithmetic {
    pub(crate) fn new(settings: &ArithmeticSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        settings.validate()?;
        let (operands, len) = match settings.digits {
            Digits::Uniform => {
                let enumeration = Enumeration::new(settings, split, seed);
                let len = enumeration.len(settings, split)?;
                (Operands::Enumerated(enumeration), len)
            }
            Digits::PowerLaw => {
                let len = sampled_len(split, settings.size, settings.eval_size);
                (Operands::Sampled(PowerLaw::new(settings, split, seed)), len)
            }
        };
        Ok(Self { settings: settings.clone(), operands, len })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn task(&self, position: u64) -> Result<GeneratedTask, DataError> {
        let operations = &self.settings.operations;
        let (a, b, operation) = match &self.operands {
            Operands::Enumerated(enumeration) => enumeration.operands(position, operations.len()),
            Operands::Sampled(power_law) => power_law.draw(position, operations.len())?,
        };
        let operation = operations[operation];
        let sign = operation.sign();
        let (left, right) = (a as i64, b as i64);
        let value = match operation {
            Operation::Add => left + right,
            Operation::Subtract => left - right,
            Operation::Multiply | Operation::Divide => left * right,
        };
        let written = |value: i64| match self.settings.digit_order {
            DigitOrder::Normal => value.to_string(),
            DigitOrder::Reversed => reversed(value),
        };
        let answer = written(value);
        let worked = match self.settings.style {
            Style::Plain => false,
            Style::Worked => true,
            Style::Mixed | Style::Calls => {
                let share = self.settings.worked_share.unwrap_or(WORKED_SHARE);
                fixed_key(STYLE_STREAM).stream().uniform(position) < share
            }
        };
        let demonstration = if worked && self.settings.style == Style::Calls {
            Demonstration::Turns(vec![call_of(&format!("{a}{sign}{b}"), ""), format!("#### {answer}")])
        } else if worked {
            format!("{}#### {answer}", scratchpad::write(a, b, operation)).into()
        } else {
            answer.clone().into()
        };
        let demonstration =
            self.settings.rows.row(position, demonstration, || written(wrong_value(value, position)));
        Ok(GeneratedTask { prompt: format!("{a}{sign}{b}="), answer, demonstration, tests: None })
    }
}

/// A call of the calculator, and what follows it.
fn call_of(expression: &str, after: &str) -> String {
    format!("<calculator>{expression}</calculator>{after}")
}

impl Enumeration {
    fn new(settings: &ArithmeticSettings, split: Split, seed: u64) -> Self {
        let smallest = if settings.min_digits == 1 { 0 } else { 10u64.pow(settings.min_digits - 1) };
        let count = 10u64.pow(settings.max_digits) - smallest;
        let pairs = pairs_of_split(settings, split, count);
        let space = settings.operations.len() as u64
            * match pairs {
                Pairs::Ordered { values } => values * values,
                Pairs::Unordered { from, to, .. } => 2 * (to - from),
            };
        Self {
            smallest,
            values: Permutation::new(fixed_key(0), count),
            pairs,
            order: Permutation::new(task_key(seed, split, 0), space),
        }
    }

    /// Number of tasks per epoch.
    fn len(&self, settings: &ArithmeticSettings, split: Split) -> Result<u64, DataError> {
        let space = self.order.len();
        let (key, wanted) = match split {
            Split::Eval => ("eval_size", settings.eval_size),
            Split::Demonstration | Split::Train => ("size", settings.size),
        };
        if let Some(wanted) = wanted
            && wanted > space
        {
            return Err(DataSettingProblem::TooFewTasks { wanted, available: space }.at(key));
        }
        let default = if split == Split::Eval { EVAL_SIZE } else { u64::MAX };
        Ok(wanted.unwrap_or(default).min(space))
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

/// A fraction of `count`, rounded, between 1 and `count` - 1.
pub(super) fn share_of(count: u64, share: f64) -> u64 {
    ((count as f64 * share).round() as u64).clamp(1, count - 1)
}

/// The pairs of a split, given `count` operand values.
fn pairs_of_split(settings: &ArithmeticSettings, split: Split, count: u64) -> Pairs {
    let (first_value, held_out_pairs) = match settings.held_out {
        HeldOut::Operands => (share_of(count, settings.held_out_share), 0),
        HeldOut::Pairs => (0, share_of(triangle(count), settings.held_out_share)),
    };
    if split == Split::Eval && settings.held_out == HeldOut::Operands {
        return Pairs::Ordered { values: first_value };
    }
    let all = triangle(count - first_value);
    let end_of_demonstrations = held_out_pairs + share_of(all - held_out_pairs, settings.demonstration_share);
    let (from, to) = match split {
        Split::Eval => (0, held_out_pairs),
        Split::Demonstration => (held_out_pairs, end_of_demonstrations),
        Split::Train => (end_of_demonstrations, all),
    };
    Pairs::Unordered { order: Permutation::new(fixed_key(1), all), from, to, first_value }
}

/// Number of unordered pairs of `n` values, pairs of equal values included.
fn triangle(n: u64) -> u64 {
    n * (n + 1) / 2
}

/// The pair i ≥ j with the number i(i+1)/2 + j.
fn unordered(number: u64) -> (u64, u64) {
    let mut i = ((8.0 * number as f64 + 1.0).sqrt() / 2.0 - 0.5) as u64;
    // Beyond 2^53 the square root can be off by a few units.
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
