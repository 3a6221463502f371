//! Forms of answers: quantities, lists, sets, intervals, equations, matrices.

use std::collections::BTreeSet;

use super::expression::Expression;
use super::lexer::{Reading, tokens};
use super::outward::with_outward_brackets;
use super::reader::Reader;
use super::token::{Relation, Spaced, Token};
use super::unit::Unit;
use super::work::Work;

/// An expression with its unit, percent sign and qualifier.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Quantity {
    pub(crate) value: Expression,
    pub(crate) unit: Option<Unit>,
    pub(crate) percent: bool,
    /// Qualifier after the number that distinguishes opposite answers: `more`, `less`, `am`, `pm`.
    pub(crate) qualifier: Option<&'static str>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    Quantity(Quantity),
    /// Several answers, in any order: `1, 2`, `3 ± 1`.
    List(Vec<Form>),
    /// Ordered items in brackets: points, vectors, intervals. The brackets matter.
    Sequence(char, char, Vec<Form>),
    /// Items in braces, in any order.
    Set(Vec<Form>),
    /// Sets of which at least one contains each member; also inequalities with `or` between them.
    Union(Vec<Form>),
    /// Sets that all contain each member; also inequalities with `and` or a comma between them.
    Intersection(Vec<Form>),
    /// The members of the first set that are not in the second one.
    Without(Box<(Form, Form)>),
    /// All real numbers.
    Reals,
    Matrix(Vec<Vec<Form>>),
    /// Two or more sides and the relations between them.
    Relations(Vec<Quantity>, Vec<Relation>),
    /// Names and their values: `(p, q) = (3, 2)`.
    Assignment(Vec<(String, Form)>),
    /// `2:3`
    Ratio(Vec<Quantity>),
}

impl Form {
    /// Adds the names of all variables in it.
    pub(crate) fn collect_variables(&self, names: &mut BTreeSet<String>) {
        let mut add = |quantity: &Quantity| {
            names.extend(quantity.value.variables().iter().map(|n| (*n).to_owned()));
        };
        let items: &mut dyn Iterator<Item = &Form> = match self {
            Form::Reals => return,
            Form::Quantity(quantity) => return add(quantity),
            Form::Relations(sides, _) | Form::Ratio(sides) => return sides.iter().for_each(add),
            Form::Assignment(values) => {
                names.extend(values.iter().map(|(name, _)| name.clone()));
                &mut values.iter().map(|(_, value)| value)
            }
            Form::List(items)
            | Form::Sequence(_, _, items)
            | Form::Set(items)
            | Form::Union(items)
            | Form::Intersection(items) => &mut items.iter(),
            Form::Without(sets) => &mut [&sets.0, &sets.1].into_iter(),
            Form::Matrix(rows) => &mut rows.iter().flatten(),
        };
        for item in items {
            item.collect_variables(names);
        }
    }

    /// True if it has several parts, between which commas are separators.
    pub(crate) fn has_parts(&self) -> bool {
        !matches!(self, Form::Quantity(_) | Form::Relations(..))
    }
}

/// Parses an answer; `None` if it cannot be parsed as a whole.
pub(crate) fn read(text: &str, reading: &Reading, work: &Work) -> Option<Form> {
    let tokens = tokens(strip(text), reading)?;
    work.spend(tokens.len())?;
    let mut tokens = tokens.as_slice();
    loop {
        tokens = match tokens {
            [Spaced { token: Token::Relation(Relation::Equal | Relation::About), .. }, rest @ ..]
            | [Spaced { token: Token::Variable(_), .. }, Spaced { token: Token::In, .. }, rest @ ..] => rest,
            _ => break,
        }
    }
    let reader = Reader { letters: &reading.letters, plus: None, nesting: 0, work };
    reader.list(tokens).or_else(|| reader.list(&with_outward_brackets(tokens)?))
}

/// Strips white space, emphasis, quotes and the full stop of a sentence.
pub(crate) fn strip(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let before = text;
        text = text.trim_end_matches(['.', ',', ';', ':']).trim();
        for mark in ["**", "__", "`", "\"", "'", "$$"] {
            if let Some(inner) = text.strip_prefix(mark).and_then(|t| t.strip_suffix(mark)) {
                text = inner.trim();
            }
        }
        if text == before {
            return text;
        }
    }
}
