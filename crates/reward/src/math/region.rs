//! Sets of real numbers: intervals, their unions, and inequalities in one variable.

use std::cmp::Ordering;

use super::answer::{Form, Quantity};
use super::evaluate::{Point, Value, add, divide, evaluate, multiply};
use super::expression::Expression;
use super::rational::Rational;
use super::token::Relation;
use super::work::Work;

/// A border between numbers: before or after a number, or beyond all of them.
#[derive(Debug, Clone)]
enum Border {
    Lowest,
    At(Value, Side),
    Highest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Before,
    After,
}

impl Border {
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Lowest, Self::Lowest) | (Self::Highest, Self::Highest) => Ordering::Equal,
            (Self::Lowest, _) | (_, Self::Highest) => Ordering::Less,
            (Self::Highest, _) | (_, Self::Lowest) => Ordering::Greater,
            (Self::At(a, a_side), Self::At(b, b_side)) => a.compare(b).then(a_side.cmp(b_side)),
        }
    }
}

/// The numbers between pairs of borders, in ascending order and without common borders, and the variable that an
/// inequality is about.
#[derive(Debug, Clone)]
pub(super) struct Region {
    spans: Vec<(Border, Border)>,
    variable: Option<String>,
}

impl Region {
    /// The region that a form denotes; `None` if it denotes none.
    pub(super) fn of(form: &Form, work: &Work) -> Option<Self> {
        match form {
            Form::Reals => Some(Self::from_spans(vec![(Border::Lowest, Border::Highest)], None)),
            Form::Sequence(open, close, items) => interval(*open, *close, items, work),
            Form::Set(items) => items.iter().try_fold(Self::from_spans(Vec::new(), None), |all, item| {
                let Form::Quantity(quantity) = item else { return None };
                let value = constant(quantity, work)?;
                let span = (Border::At(value.clone(), Side::Before), Border::At(value, Side::After));
                all.union(Self::from_spans(vec![span], None), work)
            }),
            Form::Union(items) => combined(items, work, Self::union),
            // `x < 1, x > 2` without a common member means both parts.
            Form::Intersection(items) => {
                let both = combined(items, work, |a, b, work| a.intersection(&b, work))?;
                let inequalities = items.iter().all(|item| matches!(item, Form::Relations(..)));
                if both.spans.is_empty() && inequalities {
                    combined(items, work, Self::union)
                } else {
                    Some(both)
                }
            }
            Form::Without(sets) => {
                let (all, some) = (Self::of(&sets.0, work)?, Self::of(&sets.1, work)?);
                all.intersection(&some.complement(), work)
            }
            Form::Relations(sides, relations) => inequality(sides, relations, work),
            _ => None,
        }
    }

    fn from_spans(spans: Vec<(Border, Border)>, variable: Option<String>) -> Self {
        Self { spans, variable }
    }

    /// True if both have the same members, of variables of the same name.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let equal = |a: &Border, b: &Border| a.compare(b).is_eq();
        self.agrees(other)
            && self.spans.len() == other.spans.len()
            && self.spans.iter().zip(&other.spans).all(|(a, b)| equal(&a.0, &b.0) && equal(&a.1, &b.1))
    }

    /// True unless both are about variables, and different ones.
    fn agrees(&self, other: &Self) -> bool {
        self.variable.is_none() || other.variable.is_none() || self.variable == other.variable
    }

    fn union(self, other: Self, work: &Work) -> Option<Self> {
        if !self.agrees(&other) {
            return None;
        }
        let variable = self.variable.or(other.variable);
        let mut spans = self.spans;
        spans.extend(other.spans);
        work.spend(spans.len())?;
        spans.sort_by(|a, b| a.0.compare(&b.0));
        let mut merged: Vec<(Border, Border)> = Vec::new();
        for (from, to) in spans {
            match merged.last_mut() {
                Some((_, end)) if from.compare(end).is_le() => {
                    if to.compare(end).is_gt() {
                        *end = to;
                    }
                }
                _ => merged.push((from, to)),
            }
        }
        Some(Self::from_spans(merged, variable))
    }

    fn intersection(&self, other: &Self, work: &Work) -> Option<Self> {
        if !self.agrees(other) {
            return None;
        }
        let variable = self.variable.as_ref().or(other.variable.as_ref()).cloned();
        work.spend(self.spans.len() * other.spans.len())?;
        let mut spans = Vec::new();
        for a in &self.spans {
            for b in &other.spans {
                let from = if a.0.compare(&b.0).is_ge() { &a.0 } else { &b.0 };
                let to = if a.1.compare(&b.1).is_le() { &a.1 } else { &b.1 };
                if from.compare(to).is_lt() {
                    spans.push((from.clone(), to.clone()));
                }
            }
        }
        Some(Self::from_spans(spans, variable))
    }

    fn complement(&self) -> Self {
        let mut spans = Vec::new();
        let mut from = Border::Lowest;
        for (start, end) in &self.spans {
            if from.compare(start).is_lt() {
                spans.push((from, start.clone()));
            }
            from = end.clone();
        }
        if from.compare(&Border::Highest).is_lt() {
            spans.push((from, Border::Highest));
        }
        Self::from_spans(spans, self.variable.clone())
    }
}

/// The regions of several forms, joined in order.
fn combined(
    items: &[Form],
    work: &Work,
    join: impl Fn(Region, Region, &Work) -> Option<Region>,
) -> Option<Region> {
    let mut regions = items.iter().map(|item| Region::of(item, work));
    let first = regions.next()??;
    regions.try_fold(first, |all, next| join(all, next?, work))
}

fn constant(quantity: &Quantity, work: &Work) -> Option<Value> {
    let plain = quantity.value.is_constant() && !quantity.percent && quantity.qualifier.is_none();
    if plain { evaluate(&quantity.value, &Point::origin(work)) } else { None }
}

/// The end of an interval.
fn end(form: &Form, side: Side, work: &Work) -> Option<Border> {
    let Form::Quantity(quantity) = form else { return None };
    match &quantity.value {
        Expression::Infinity => Some(Border::Highest),
        Expression::Negate(inner) if **inner == Expression::Infinity => Some(Border::Lowest),
        _ => Some(Border::At(constant(quantity, work)?, side)),
    }
}

fn interval(open: char, close: char, items: &[Form], work: &Work) -> Option<Region> {
    let [low, high] = items else { return None };
    let low = end(low, if open == '(' { Side::After } else { Side::Before }, work)?;
    let high = end(high, if close == ')' { Side::Before } else { Side::After }, work)?;
    let spans = if low.compare(&high).is_lt() { vec![(low, high)] } else { Vec::new() };
    Some(Region::from_spans(spans, None))
}

/// The solutions of a chain of linear inequalities in one variable.
fn inequality(sides: &[Quantity], relations: &[Relation], work: &Work) -> Option<Region> {
    let mut names: Vec<&str> = sides.iter().flat_map(|side| side.value.variables()).collect();
    names.sort_unstable();
    names.dedup();
    let [name] = names.as_slice() else { return None };
    if sides.iter().any(|side| side.percent || side.qualifier.is_some()) {
        return None;
    }
    let everything = Region::from_spans(vec![(Border::Lowest, Border::Highest)], Some((*name).to_owned()));
    sides.windows(2).zip(relations).try_fold(everything, |all, (pair, relation)| {
        let some = match (&pair[0].value, &pair[1].value) {
            (Expression::Absolute(inner), bound) => distance(inner, *relation, bound, work)?,
            (bound, Expression::Absolute(inner)) => distance(inner, turned(*relation), bound, work)?,
            (left, right) => Region::from_spans(solutions(left, *relation, right, work)?, None),
        };
        all.intersection(&some, work)
    })
}

/// The relation with its sides exchanged.
fn turned(relation: Relation) -> Relation {
    match relation {
        Relation::Less => Relation::Greater,
        Relation::AtMost => Relation::AtLeast,
        Relation::Greater => Relation::Less,
        Relation::AtLeast => Relation::AtMost,
        other => other,
    }
}

/// The solutions of an inequality between an absolute value and a bound.
fn distance(inner: &Expression, relation: Relation, bound: &Expression, work: &Work) -> Option<Region> {
    if !bound.is_constant() {
        return None;
    }
    let opposite = Expression::Negate(Box::new(bound.clone()));
    let above = Region::from_spans(solutions(inner, relation, bound, work)?, None);
    let below = Region::from_spans(solutions(inner, turned(relation), &opposite, work)?, None);
    match relation {
        Relation::Less | Relation::AtMost | Relation::Unequal => above.intersection(&below, work),
        _ => above.union(below, work),
    }
}

/// The solutions of an inequality whose sides are linear, or infinite.
fn solutions(
    left: &Expression,
    relation: Relation,
    right: &Expression,
    work: &Work,
) -> Option<Vec<(Border, Border)>> {
    let infinite = |side: &Expression| {
        matches!(side, Expression::Infinity)
            || matches!(side, Expression::Negate(inner) if **inner == Expression::Infinity)
    };
    if infinite(left) || infinite(right) {
        return Some(vec![(Border::Lowest, Border::Highest)]);
    }
    let difference = Expression::Subtract(Box::new(left.clone()), Box::new(right.clone()));
    let at = |x: &Rational| evaluate(&difference, &Point { variables: &|_| x.clone(), work });
    let minus = |v: &Value| multiply(v, &Value::integer(-1));
    let zero = at(&Rational::integer(0))?;
    let slope = add(&at(&Rational::integer(1))?, &minus(&zero)?)?;
    if slope.is_same(&Value::integer(0), 0.0) {
        return None;
    }
    // Linear: the values at other points follow from the first two.
    for (numerator, denominator) in [(-22, 7), (101, 13)] {
        let x = Rational::integer(numerator).divide(&Rational::integer(denominator))?;
        let expected = add(&zero, &multiply(&slope, &Value::Exact(x.clone()))?)?;
        if !expected.is_same(&at(&x)?, 0.0) {
            return None;
        }
    }
    let root = divide(&minus(&zero)?, &slope)?;
    let border = |side| Border::At(root.clone(), side);
    let rising = slope.compare(&Value::integer(0)).is_gt();
    let below = |side| vec![(Border::Lowest, border(side))];
    let above = |side| vec![(border(side), Border::Highest)];
    Some(match (relation, rising) {
        (Relation::Less, true) | (Relation::Greater, false) => below(Side::Before),
        (Relation::AtMost, true) | (Relation::AtLeast, false) => below(Side::After),
        (Relation::Greater, true) | (Relation::Less, false) => above(Side::After),
        (Relation::AtLeast, true) | (Relation::AtMost, false) => above(Side::Before),
        (Relation::Unequal, _) => [below(Side::Before), above(Side::After)].concat(),
        (Relation::Equal | Relation::About, _) => vec![(border(Side::Before), border(Side::After))],
    })
}
