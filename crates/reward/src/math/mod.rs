//! Answers as mathematics: `\frac{1}{2}`, `0.5` and `50%` are the same answer, `(1,2)` and `[1,2]` are not.
//!
//! A text is read whole or not at all: tokens, expressions, and the shapes that answers have. Numbers are
//! exact fractions of any size up to a bound; irrational ones are doubles that carry a bound on their error;
//! expressions with variables are compared at several points. Every step is bounded: the length of a text,
//! its tokens and nesting, and the size of numbers, so that no completion can make the verifier slow.
//!
//! What is deliberate:
//!
//! - Units that are known must agree, exponent included, and are never converted; other words behind a number
//!   are not compared.
//! - A percent sign may be left out where the reference has one. Where the reference has none, `50%` is 50
//!   for a reference of 1 or more and 0.5 below that.
//! - A decimal is not the fraction that it rounds (`0.33` is not `1/3`), unless a `tolerance` says so.
//! - Points, vectors and intervals keep order and brackets; sets and lists have no order.
//! - Complex numbers, other bases than ten and piecewise functions are compared as they are written, not by
//!   their value.

mod answer;
mod command;
mod equal;
mod evaluate;
mod expression;
mod lexer;
mod parser;
mod rational;
mod token;
mod unit;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::extract::{self, Extract};
use crate::verifier::{Truncated, reference};
use crate::{Completion, JudgeError, Reward, Verdict};
use answer::Form;
use evaluate::{Value, evaluate};
use lexer::{Letters, Reading};
use rational::Rational;
pub(crate) use rational::Rational as Exact;

/// How a candidate compares with a reference answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It says the same.
    Same,
    /// It says something else.
    Different,
    /// It is not an answer that can be read.
    Unreadable,
}

/// A reference answer, read once.
#[derive(Debug, Clone)]
pub struct Reference {
    plain: String,
    form: Option<Form>,
    reading: Reading,
}

impl Reference {
    /// Reads a reference answer. One that is not mathematics is compared as text.
    pub fn read(text: &str) -> Self {
        let form = answer::read(text, &Reading { letters: Letters::Guess, thousands: true });
        let mut variables = BTreeSet::new();
        if let Some(form) = &form {
            collect_variables(form, &mut variables);
        }
        let letters = variables.iter().flat_map(|name| name.chars()).collect();
        let thousands = !matches!(form, Some(Form::List(_) | Form::Set(_)));
        Self { plain: plain(text), form, reading: Reading { letters: Letters::Known(letters), thousands } }
    }

    /// Compares a candidate. `tolerance` is the relative difference that constant numbers may have; 0 asks
    /// for the same number.
    pub fn judge(&self, candidate: &str, tolerance: f64) -> Judgement {
        let form = self.form.as_ref().and_then(|_| answer::read(candidate, &self.reading));
        if let (Some(reference), Some(form)) = (&self.form, form) {
            let same = equal::same(reference, &form, tolerance);
            return if same { Judgement::Same } else { Judgement::Different };
        }
        let text = plain(candidate);
        if text.is_empty() || (self.form.is_some() && text != self.plain) {
            return Judgement::Unreadable;
        }
        // Words are the same in upper and lower case.
        let same = text == self.plain || text.to_lowercase() == self.plain.to_lowercase();
        if same { Judgement::Same } else { Judgement::Different }
    }

    /// Whether it is a number that is written out.
    pub fn is_number(&self) -> bool {
        self.form.as_ref().is_some_and(|form| literal(form).is_some())
    }

    /// Compares a candidate that must be a number written out: `3`, `7/2`, `$1,800`, but not `1 + 2`.
    pub fn judge_number(&self, candidate: &str, tolerance: f64) -> Judgement {
        let (Some(reference), Some(form)) = (&self.form, answer::read(candidate, &self.reading)) else {
            return Judgement::Unreadable;
        };
        match literal(&form) {
            None => Judgement::Unreadable,
            Some(_) if equal::same(reference, &form, tolerance) => Judgement::Same,
            Some(_) => Judgement::Different,
        }
    }
}

/// The value of an expression of whole numbers with `+ - * / ( )`, exactly, and the numbers that it is made
/// of, in order; `None` for anything else.
pub(crate) fn countdown(text: &str) -> Option<(Option<Rational>, Vec<u64>)> {
    let reading = Reading { letters: Letters::Known(BTreeSet::new()), thousands: false };
    let Some(Form::Quantity(quantity)) = answer::read(text, &reading) else { return None };
    if quantity.unit.is_some() || quantity.percent {
        return None;
    }
    let mut numbers = Vec::new();
    whole_numbers(&quantity.value, &mut numbers)?;
    let value = match evaluate(&quantity.value, &|_| Rational::integer(0)) {
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

/// A number that is written out, under a name or not.
fn literal(form: &Form) -> Option<&answer::Quantity> {
    let quantity = match form {
        Form::Quantity(quantity) => quantity,
        Form::Relations(sides, relations) => equal::named_value(sides, relations)?,
        _ => return None,
    };
    quantity.value.is_literal().then_some(quantity)
}

fn collect_variables(form: &Form, names: &mut BTreeSet<String>) {
    let mut add = |quantity: &answer::Quantity| {
        names.extend(quantity.value.variables().iter().map(|n| (*n).to_owned()));
    };
    let items: &mut dyn Iterator<Item = &Form> = match form {
        Form::Quantity(quantity) => return add(quantity),
        Form::Relations(sides, _) | Form::Ratio(sides) => return sides.iter().for_each(add),
        Form::List(items) | Form::Sequence(_, _, items) | Form::Set(items) | Form::Union(items) => {
            &mut items.iter()
        }
        Form::Matrix(rows) => &mut rows.iter().flatten(),
    };
    for item in items {
        collect_variables(item, names);
    }
}

/// An answer as bare words: without the marks of LaTeX text and white space around words.
fn plain(text: &str) -> String {
    let mut text = answer::strip(text).replace(['$', '\\'], " ");
    for mark in ["text{", "textbf{", "mathrm{", "mathbf{", "boxed{", "mbox{"] {
        text = text.replace(mark, " {");
    }
    let words: String = text.chars().map(|c| if matches!(c, '{' | '}') { ' ' } else { c }).collect();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The answer as a mathematical expression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Math {
    /// Where the answer is looked for, in this order ([`Extract`] says which place decides).
    pub extract: Vec<Extract>,
    /// The relative difference that constant numbers may have. 0 asks for the same number.
    pub tolerance: f64,
    /// What is made of a completion that was cut off.
    pub truncated: Truncated,
}

impl Default for Math {
    fn default() -> Self {
        Self {
            extract: vec![Extract::Boxed, Extract::Hashes, Extract::AnswerTag, Extract::AnswerIs],
            tolerance: 0.0,
            truncated: Truncated::Judge,
        }
    }
}

impl Reward for Math {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let reference = Reference::read(reference(completion)?);
        let judgement =
            decide(&self.extract, completion.text, |answer| reference.judge(answer, self.tolerance));
        Ok(self.truncated.apply(completion, verdict(judgement)))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<(), String> {
        extract::validate(&self.extract)?;
        validate_tolerance(self.tolerance)
    }
}

/// The judgement of the place that decides.
pub(crate) fn decide(places: &[Extract], text: &str, judge: impl Fn(&str) -> Judgement) -> Judgement {
    let judge = |answer: &str| Some(judge(answer)).filter(|j| *j != Judgement::Unreadable);
    extract::decide(places, text, judge).unwrap_or(Judgement::Unreadable)
}

pub(crate) fn verdict(judgement: Judgement) -> Verdict {
    Verdict::outcome(judgement == Judgement::Same, judgement != Judgement::Unreadable)
}

pub(crate) fn validate_tolerance(tolerance: f64) -> Result<(), String> {
    if (0.0..1.0).contains(&tolerance) {
        Ok(())
    } else {
        Err(format!("`tolerance`: {tolerance} is not at least 0 and below 1"))
    }
}
