use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rloom_core::{SettingProblem, ValueRange};

use super::{
    ATTEMPTS, GeneratedTask, Operation, RandomDraws, SplitShares, check_sizes, sampled_len, task_key,
};
use crate::{DataError, Split};

/// Wording of a countdown task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wording {
    /// A sentence, for pretrained language models.
    #[default]
    Sentence,
    /// `3 5 7 = 56:`, for models that are trained from scratch.
    Short,
}

/// Countdown: find an expression that uses each of the given numbers once and evaluates to the target.
///
/// Every task is solvable: the target is the value of a random expression whose intermediate values are positive
/// integers. That expression is the task's answer and demonstration; other solutions are valid, so use the `countdown`
/// reward. A fixed hash of the numbers in ascending order assigns tasks to splits: no held-out set of numbers occurs in
/// demonstrations or training, whatever the target. Tasks are sampled with repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CountdownSettings {
    /// Operations in the expressions: `+`, `-`, `*`, `/`.
    pub operations: Vec<Operation>,
    /// Minimum count of numbers, at least 2.
    pub min_numbers: u32,
    /// Maximum count of numbers, at most 8.
    pub max_numbers: u32,
    /// Largest number, from 2 to 999999; the smallest is 1.
    pub max_number: u64,
    /// Largest target, from 2 to 999999; the smallest is 1.
    pub max_target: u64,
    /// Wording of the prompts.
    pub wording: Wording,
    /// Fraction of the sets of numbers that is held out, between 0.01 and 0.99.
    pub held_out_share: f64,
    /// Fraction of the remaining sets that demonstrations use, between 0.01 and 0.99; training uses the rest.
    pub demonstration_share: f64,
    /// Number of tasks per epoch of demonstrations or training. Default: 65536.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of evaluation tasks. Default: 512.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_size: Option<u64>,
}

impl Default for CountdownSettings {
    fn default() -> Self {
        Self {
            operations: vec![Operation::Add, Operation::Subtract, Operation::Multiply, Operation::Divide],
            min_numbers: 3,
            max_numbers: 4,
            max_number: 99,
            max_target: 999,
            wording: Wording::Sentence,
            held_out_share: 0.25,
            demonstration_share: 0.5,
            size: None,
            eval_size: None,
        }
    }
}

impl CountdownSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), DataError> {
        if self.operations.is_empty() {
            return Err(SettingProblem::Empty.at("operations").into());
        }
        ValueRange::between(2.0, self.max_numbers.into())
            .max_from("max_numbers")
            .check("min_numbers", self.min_numbers.into())?;
        ValueRange::at_most(8.0).check("max_numbers", self.max_numbers.into())?;
        for (key, value) in [("max_number", self.max_number), ("max_target", self.max_target)] {
            ValueRange::between(2.0, 999_999.0).check(key, value as f64)?;
        }
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// All characters of the prompts and completions, sorted.
    pub fn alphabet(&self) -> String {
        let text = match self.wording {
            Wording::Sentence => sentence(&[0, 0], 0),
            Wording::Short => short(&[0, 0], 0),
        };
        let mut characters: Vec<char> = text.chars().chain(" ()0123456789".chars()).collect();
        characters.extend(self.operations.iter().map(|o| o.sign()));
        characters.sort_unstable();
        characters.dedup();
        characters.into_iter().collect()
    }

    fn shares(&self) -> SplitShares {
        SplitShares { held_out: self.held_out_share, demonstration: self.demonstration_share }
    }
}

/// The tasks of one split.
#[derive(Debug, Clone)]
pub(crate) struct Countdown {
    settings: CountdownSettings,
    split: Split,
    seed: u64,
}

/// A part of an expression.
struct Part {
    value: u64,
    text: String,
    /// Outermost operation; decides on parentheses.
    outermost: Option<Operation>,
}

impl Countdown {
    pub(crate) fn new(settings: &CountdownSettings, split: Split, seed: u64) -> Result<Self, DataError> {
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
            let count = draws.between(u64::from(s.min_numbers), u64::from(s.max_numbers));
            let numbers: Vec<u64> = (0..count).map(|_| draws.between(1, s.max_number)).collect();
            if s.shares().split_of(&numbers) != self.split {
                continue;
            }
            let Some(expression) = combine(&numbers, &s.operations, &mut draws) else { continue };
            if expression.value > s.max_target {
                continue;
            }
            let prompt = match s.wording {
                Wording::Sentence => sentence(&numbers, expression.value),
                Wording::Short => short(&numbers, expression.value),
            };
            let demonstration = expression.text.clone().into();
            return Ok(GeneratedTask { prompt, answer: expression.text, demonstration, tests: None });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS, raise: "`max_number` or `max_target`" })
    }
}

/// Joins random parts by random operations until one is left; `None` if an intermediate value is not a positive
/// integer.
fn combine(numbers: &[u64], operations: &[Operation], draws: &mut RandomDraws) -> Option<Part> {
    let mut parts: Vec<Part> =
        numbers.iter().map(|&value| Part { value, text: value.to_string(), outermost: None }).collect();
    while parts.len() > 1 {
        let left = parts.remove(draws.index(parts.len()));
        let right = parts.remove(draws.index(parts.len()));
        let operation = operations[draws.index(operations.len())];
        let value = match operation {
            Operation::Add => left.value.checked_add(right.value)?,
            Operation::Subtract => left.value.checked_sub(right.value).filter(|&v| v > 0)?,
            Operation::Multiply => left.value.checked_mul(right.value)?,
            Operation::Divide => left.value.is_multiple_of(right.value).then(|| left.value / right.value)?,
        };
        let text = format!(
            "{}{}{}",
            operand(&left, operation, false),
            operation.sign(),
            operand(&right, operation, true)
        );
        parts.push(Part { value, text, outermost: Some(operation) });
    }
    parts.pop()
}

/// A part as an operand, in parentheses where necessary.
fn operand(part: &Part, outer: Operation, is_right: bool) -> String {
    let is_sum = |o| matches!(o, Operation::Add | Operation::Subtract);
    let Some(inner) = part.outermost else { return part.text.clone() };
    let needed = if is_sum(inner) == is_sum(outer) {
        // a-(b+c) and a/(b*c) need them for their value, a*(b/c) for integer intermediate values.
        is_right && (matches!(outer, Operation::Subtract | Operation::Divide) || inner == Operation::Divide)
    } else {
        is_sum(inner)
    };
    if needed { format!("({})", part.text) } else { part.text.clone() }
}

fn sentence(numbers: &[u64], target: u64) -> String {
    let list = numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "Combine the numbers {list} with the operations allowed to get {target}. Use every number exactly once. \
         Reply with the expression alone."
    )
}

fn short(numbers: &[u64], target: u64) -> String {
    format!("{} = {target}:", numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
}
