//! Mathematical answers: `\frac{1}{2}`, `0.5` and `50%` are the same answer, `(1,2)` and `[1,2]` are not.
//!
//! A text is parsed as a whole or not at all: into tokens, expressions and forms of answers. Rational numbers are exact
//! fractions up to a maximum size; irrational numbers are doubles with an error bound; expressions with variables are
//! compared at several points. Text length, number of tokens, nesting and the size of numbers are limited, so that no
//! completion can make the verifier slow.
//!
//! Deliberate rules:
//!
//! - Known units must agree, exponent included, and are never converted; other words after a number are not compared.
//! - A percent sign may be omitted if the reference has one. If the reference has none, `50%` is 50 for a reference of at
//!   least 1, and 0.5 for a smaller one.
//! - A rounded decimal does not equal the fraction (`0.33` is not `1/3`), unless `tolerance` allows it.
//! - Order and brackets matter in points, vectors and intervals; order does not matter in sets and lists.
//! - Complex numbers, bases other than ten and piecewise functions are compared as text, not by value.

mod answer;
mod command;
mod complex;
mod equal;
mod evaluate;
mod expression;
mod lexer;
mod notation;
mod number;
mod outward;
mod parser;
mod rational;
mod reader;
mod region;
mod split;
mod token;
mod unit;
mod work;

use std::collections::BTreeSet;

use rloom_core::{SettingError, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::verifier::{Truncated, reference};
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};
use answer::Form;
use equal::Comparison;
use evaluate::{Point, Value, evaluate};
use lexer::{Letters, Reading};
use rational::Rational;
pub(crate) use rational::Rational as Exact;
use work::Work;

/// The result of comparing a candidate with a reference answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The answers are equal.
    Same,
    /// The answers differ.
    Different,
    /// The candidate cannot be parsed.
    Unreadable,
}

/// A parsed reference answer.
#[derive(Debug, Clone)]
pub struct Reference {
    plain: String,
    form: Option<Form>,
    reading: Reading,
}

impl Reference {
    /// Parses a reference answer. An answer that is not mathematics is compared as text.
    pub fn read(text: &str) -> Self {
        let reading = Reading { letters: Letters::Guess, thousands: true, decimal_comma: false };
        let form = answer::read(text, &reading, &Work::new());
        let mut variables = BTreeSet::new();
        if let Some(form) = &form {
            form.collect_variables(&mut variables);
        }
        let letters = variables.iter().flat_map(|name| name.chars()).collect();
        let reading = Reading {
            letters: Letters::Known(letters),
            thousands: !matches!(form, Some(Form::List(_) | Form::Set(_))),
            decimal_comma: form.as_ref().is_some_and(|form| !form.has_parts()),
        };
        Self { plain: plain(text), form, reading }
    }

    /// Compares a candidate. `tolerance` is the maximum relative difference of constant numbers; 0 requires equality.
    pub fn judge(&self, candidate: &str, tolerance: f64) -> Judgement {
        self.judge_within(candidate, tolerance, &Work::new())
    }

    fn judge_within(&self, candidate: &str, tolerance: f64, work: &Work) -> Judgement {
        let form = self.form.as_ref().and_then(|_| answer::read(candidate, &self.reading, work));
        if let (Some(reference), Some(form)) = (&self.form, form) {
            // Also where a value does not exist or is too expensive to compute.
            let is_identical = || !self.plain.is_empty() && plain(candidate) == self.plain;
            let same = Comparison { tolerance, work }.same(reference, &form) || is_identical();
            return if same { Judgement::Same } else { Judgement::Different };
        }
        let text = plain(candidate);
        if text.is_empty() || (self.form.is_some() && text != self.plain && !self.is_choice()) {
            return Judgement::Unreadable;
        }
        // Words are compared without case.
        let same = text == self.plain || text.to_lowercase() == self.plain.to_lowercase();
        if same { Judgement::Same } else { Judgement::Different }
    }

    /// True if it may be one of the letters of a choice: words are other answers than it.
    fn is_choice(&self) -> bool {
        let mut letters = self.plain.chars();
        letters.next().is_some_and(char::is_alphabetic) && letters.next().is_none()
    }

    /// True if it is a literal number.
    pub fn is_number(&self) -> bool {
        self.form.as_ref().is_some_and(|form| literal(form).is_some())
    }

    /// Compares a candidate that must be a literal number: `3`, `7/2`, `$1,800`, but not `1 + 2`.
    pub fn judge_number(&self, candidate: &str, tolerance: f64) -> Judgement {
        let work = Work::new();
        let (Some(reference), Some(form)) = (&self.form, answer::read(candidate, &self.reading, &work))
        else {
            return Judgement::Unreadable;
        };
        let comparison = Comparison { tolerance, work: &work };
        match literal(&form) {
            None => Judgement::Unreadable,
            Some(_) if comparison.same(reference, &form) => Judgement::Same,
            Some(_) => Judgement::Different,
        }
    }
}

/// The exact value of an expression of integers with `+ - * / ( )`, and its numbers in order; `None` for other texts.
pub(crate) fn countdown(text: &str) -> Option<(Option<Rational>, Vec<u64>)> {
    let reading =
        Reading { letters: Letters::Known(BTreeSet::new()), thousands: false, decimal_comma: false };
    let work = Work::new();
    let Some(Form::Quantity(quantity)) = answer::read(text, &reading, &work) else { return None };
    if quantity.unit.is_some() || quantity.percent {
        return None;
    }
    let mut numbers = Vec::new();
    whole_numbers(&quantity.value, &mut numbers)?;
    let value = match evaluate(&quantity.value, &Point::origin(&work)) {
        Some(Value::Exact(value)) => Some(value),
        _ => None,
    };
    Some((value, numbers))
}

fn whole_numbers(expression: &expression::Expression, numbers: &mut Vec<u64>) -> Option<()> {
    use expression::Expression as E;
    match expression {
        E::Number(value) => {
            numbers.push(u64::try_from(value.to_i64()?).ok()?);
            Some(())
        }
        E::Add(a, b) | E::Subtract(a, b) | E::Multiply(a, b) | E::Divide(a, b) => {
            whole_numbers(a, numbers)?;
            whole_numbers(b, numbers)
        }
        _ => None,
    }
}

/// A literal number, with or without a name (`x = 3`).
fn literal(form: &Form) -> Option<&answer::Quantity> {
    let quantity = match form {
        Form::Quantity(quantity) => quantity,
        Form::Relations(sides, relations) => equal::named_value(sides, relations)?,
        _ => return None,
    };
    quantity.value.is_literal().then_some(quantity)
}

/// An answer as plain words, without LaTeX markup and extra white space.
fn plain(text: &str) -> String {
    let mut text = answer::strip(text).to_owned();
    for delimiter in ["\\(", "\\)", "\\[", "\\]"] {
        text = text.replace(delimiter, " ");
    }
    text = text.replace(['$', '\\'], " ");
    for mark in ["text{", "textbf{", "mathrm{", "mathbf{", "boxed{", "mbox{"] {
        text = text.replace(mark, " {");
    }
    let words: String = text.chars().map(|c| if matches!(c, '{' | '}') { ' ' } else { c }).collect();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    // The full stop of a sentence in math mode.
    words.trim_end_matches(['.', ',', ';', ':', ' ']).to_owned()
}

/// Verifies a mathematical expression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Math {
    /// Places to look for the answer, in order of preference.
    pub extract: Vec<Extract>,
    /// Maximum relative difference of constant numbers, at least 0 and below 1. 0: the numbers must be equal.
    pub tolerance: f64,
    /// Treatment of truncated completions.
    pub truncated: Truncated,
}

impl Default for Math {
    fn default() -> Self {
        Self {
            extract: vec![
                Extract::Boxed,
                Extract::Hashes,
                Extract::AnswerTag,
                Extract::AnswerIs,
                Extract::Formula,
            ],
            tolerance: 0.0,
            truncated: Truncated::Judge,
        }
    }
}

impl Reward for Math {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let reference = Reference::read(reference(completion)?);
        let judgement =
            judge_first(&self.extract, completion.text, |answer| reference.judge(answer, self.tolerance));
        Ok(self.truncated.apply(completion, verdict(judgement)))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn reads_answer(&self) -> bool {
        true
    }

    fn reference(&self, answer: &str) -> Option<String> {
        extract::write_first(&self.extract, answer)
    }

    fn validate(&self) -> Result<(), ComponentError> {
        extract::validate(&self.extract)?;
        Ok(validate_tolerance(self.tolerance)?)
    }
}

/// The judgement of the answer at the first place that occurs.
pub(crate) fn judge_first(places: &[Extract], text: &str, judge: impl Fn(&str) -> Judgement) -> Judgement {
    let judge = |answer: &str| Some(judge(answer)).filter(|j| *j != Judgement::Unreadable);
    extract::read_first(places, text, judge).unwrap_or(Judgement::Unreadable)
}

pub(crate) fn verdict(judgement: Judgement) -> Assessment {
    Assessment::outcome(judgement == Judgement::Same, judgement != Judgement::Unreadable)
}

pub(crate) fn validate_tolerance(tolerance: f64) -> Result<(), SettingError> {
    ValueRange::from_below(0.0, 1.0).check("tolerance", tolerance)
}
