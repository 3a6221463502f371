use serde::{Deserialize, Serialize};

use super::{ATTEMPTS, Draws, Made, Operation, Shares, check_sizes, draw_key, drawn_len};
use crate::{DataError, Split};

/// How a countdown task is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wording {
    /// A sentence that a language model understands.
    #[default]
    Sentence,
    /// `3 5 7 = 56:`, for models that learn the task from nothing.
    Short,
}

/// Numbers and a target: the answer is an expression that uses each number once and gives the target.
///
/// Solvable by construction: the target is the value of a random expression whose steps are whole and
/// positive. That expression is the task's answer and its demonstration; any other that is right counts as
/// well, so judge with the countdown reward. Tasks are assigned to splits by a fixed hash of their numbers in
/// ascending order: no held-out set of numbers occurs in demonstrations or training, whatever the target.
/// Tasks are drawn with repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CountdownSettings {
    /// Which operations the expressions are made of.
    pub operations: Vec<Operation>,
    /// Fewest numbers.
    pub min_numbers: u32,
    /// Most numbers.
    pub max_numbers: u32,
    /// Largest number; the smallest is 1.
    pub max_number: u64,
    /// Largest target; the smallest is 1.
    pub max_target: u64,
    /// How the task is put.
    pub wording: Wording,
    /// Share of the sets of numbers that is held out.
    pub held_out_share: f64,
    /// Share of the other sets that demonstrations use; training uses the rest.
    pub demonstration_share: f64,
    /// How many tasks make an epoch of demonstrations or training; 65,536 when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How many evaluation tasks; 512 when not set.
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
    /// Checks the settings against each other.
    pub fn validate(&self) -> Result<(), DataError> {
        let refuse = |key, problem: String| Err(DataError::Setting { key, problem });
        if self.operations.is_empty() {
            return refuse("operations", "names no operation".into());
        }
        if self.min_numbers < 2 || self.min_numbers > self.max_numbers {
            let problem =
                format!("{} is not between 2 and `max_numbers` = {}", self.min_numbers, self.max_numbers);
            return refuse("min_numbers", problem);
        }
        if self.max_numbers > 8 {
            return refuse("max_numbers", format!("{} is more than 8", self.max_numbers));
        }
        for (key, value) in [("max_number", self.max_number), ("max_target", self.max_target)] {
            if !(2..=999_999).contains(&value) {
                return refuse(key, format!("{value} is not between 2 and 999999"));
            }
        }
        self.shares().validate()?;
        check_sizes(self.size, self.eval_size)
    }

    /// The characters that its prompts and completions are made of, in order.
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

    fn shares(&self) -> Shares {
        Shares { held_out: self.held_out_share, demonstration: self.demonstration_share }
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
    /// The operation that was done last: decides where parentheses are needed.
    last: Option<Operation>,
}

impl Countdown {
    pub(crate) fn new(settings: &CountdownSettings, split: Split, seed: u64) -> Result<Self, DataError> {
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
            return Ok(Made { prompt, answer: expression.text, demonstration });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS })
    }
}

/// Joins random parts by random operations until one is left; `None` when a step is not whole and positive.
fn combine(numbers: &[u64], operations: &[Operation], draws: &mut Draws) -> Option<Part> {
    let mut parts: Vec<Part> =
        numbers.iter().map(|&value| Part { value, text: value.to_string(), last: None }).collect();
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
            bracketed(&left, operation, false),
            operation.sign(),
            bracketed(&right, operation, true)
        );
        parts.push(Part { value, text, last: Some(operation) });
    }
    parts.pop()
}

/// A part as an operand, in parentheses where its meaning would change without.
fn bracketed(part: &Part, outer: Operation, is_right: bool) -> String {
    let is_sum = |o| matches!(o, Operation::Add | Operation::Subtract);
    let Some(inner) = part.last else { return part.text.clone() };
    let needed = if is_sum(inner) == is_sum(outer) {
        // a-(b+c) and a/(b*c) change without; a*(b/c) stays whole at every step only with.
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
