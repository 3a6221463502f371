//! Equality of answers.

use std::cmp::Ordering;

use rloom_core::{Purpose, RandomKey, RandomStream};

use super::answer::{Form, Quantity};
use super::complex::evaluate_complex;
use super::evaluate::{Point, Value, evaluate};
use super::expression::Expression;
use super::rational::Rational;
use super::region::Region;
use super::token::Relation;
use super::work::Work;

/// Number of points at which expressions with variables are compared.
const POINTS: u64 = 8;
/// Minimum number of points at which both expressions must have a value.
const LEAST_POINTS: usize = 3;

/// The comparison of a candidate with a reference.
#[derive(Clone, Copy)]
pub(super) struct Comparison<'a> {
    /// Maximum relative difference of constant numbers.
    pub(super) tolerance: f64,
    pub(super) work: &'a Work,
}

impl Comparison<'_> {
    /// True if a candidate equals the reference.
    pub(super) fn same(&self, reference: &Form, candidate: &Form) -> bool {
        if self.work.spend(1).is_none() {
            return false;
        }
        if let (Some(r), Some(c)) = (assigned(reference), assigned(candidate))
            && (matches!(reference, Form::Assignment(_))
                || matches!(candidate, Form::Assignment(_))
                || distinct(&r))
        {
            return self.same_assignment(&r, &c);
        }
        match (reference, candidate) {
            (Form::Quantity(r), Form::Quantity(c)) => self.same_quantity(r, c),
            (Form::Sequence(ro, rc, r), Form::Sequence(co, cc, c)) => ro == co && rc == cc && self.each(r, c),
            (Form::Matrix(r), Form::Matrix(c)) => {
                r.len() == c.len() && r.iter().zip(c).all(|(r, c)| self.each(r, c))
            }
            (Form::Matrix(rows), Form::Sequence(_, _, items)) => self.same_rows(rows, items, false),
            (Form::Sequence(_, _, items), Form::Matrix(rows)) => self.same_rows(rows, items, true),
            (Form::List(r), Form::List(c)) => self.same_list(r, c),
            (Form::Set(r), Form::Set(c) | Form::List(c)) | (Form::List(r), Form::Set(c)) => {
                self.same_members(r, c)
            }
            (Form::Set(r), c @ (Form::Quantity(_) | Form::Relations(..))) if r.len() == 1 => {
                self.same(&r[0], c)
            }
            (r @ (Form::Quantity(_) | Form::Relations(..)), Form::Set(c)) if c.len() == 1 => {
                self.same(r, &c[0])
            }
            (Form::Ratio(r), Form::Ratio(c)) => {
                r.len() == c.len() && r.iter().zip(c).all(|(r, c)| self.same_quantity(r, c))
            }
            (Form::Relations(rs, rr), Form::Relations(cs, cr)) if self.same_relations((rs, rr), (cs, cr)) => {
                true
            }
            // `x = 5` equals 5, in both directions.
            (Form::Relations(sides, relations), Form::Quantity(c)) => {
                named_value(sides, relations).is_some_and(|r| self.same_quantity(r, c))
            }
            (Form::Quantity(r), Form::Relations(sides, relations)) => {
                named_value(sides, relations).is_some_and(|c| self.same_quantity(r, c))
            }
            (Form::Assignment(_), Form::Sequence('(', ')', plain)) => {
                self.same_values(reference, plain, false)
            }
            (Form::Sequence('(', ')', plain), Form::Assignment(_)) => {
                self.same_values(candidate, plain, true)
            }
            // Brackets around a list; two items can be an interval.
            (Form::List(r), Form::Sequence('[', ']', c)) if c.len() > 2 => self.same_list(r, c),
            (Form::Sequence('[', ']', r), Form::List(c)) if r.len() > 2 => self.each(r, c),
            (Form::List(_), Form::Sequence('(', ')', plain)) => self.same_values(reference, plain, false),
            (Form::Sequence('(', ')', plain), Form::List(_)) => self.same_values(candidate, plain, true),
            _ => self.same_region(reference, candidate),
        }
    }

    fn each(&self, reference: &[Form], candidate: &[Form]) -> bool {
        reference.len() == candidate.len() && reference.iter().zip(candidate).all(|(r, c)| self.same(r, c))
    }

    /// As [`same`](Self::same); `swapped` if the first one is of the candidate.
    fn in_order(&self, a: &Form, b: &Form, swapped: bool) -> bool {
        if swapped { self.same(b, a) } else { self.same(a, b) }
    }

    /// Sets of numbers, at least one of which is not written as a single interval or set.
    fn same_region(&self, reference: &Form, candidate: &Form) -> bool {
        let is_general = |form: &Form| {
            matches!(
                form,
                Form::Union(_) | Form::Intersection(_) | Form::Without(_) | Form::Reals | Form::Relations(..)
            )
        };
        let equation = |form: &Form| matches!(form, Form::Relations(_, r) if r.iter().any(|r| matches!(r, Relation::Equal | Relation::About)));
        if !(is_general(reference) || is_general(candidate)) || equation(reference) || equation(candidate) {
            return false;
        }
        if let (Some(r), Some(c)) = (Region::of(reference, self.work), Region::of(candidate, self.work)) {
            return r.is_same(&c);
        }
        // Intervals with variables.
        match (reference, candidate) {
            (Form::Union(r), Form::Union(c)) | (Form::Intersection(r), Form::Intersection(c)) => {
                self.same_unordered(r, c)
            }
            (Form::Without(r), Form::Without(c)) => self.same(&r.0, &c.0) && self.same(&r.1, &c.1),
            _ => false,
        }
    }

    /// A matrix and nested brackets, or a vector and a single row or column.
    fn same_rows(&self, rows: &[Vec<Form>], items: &[Form], swapped: bool) -> bool {
        let same = |cells: &mut dyn Iterator<Item = &Form>, items: &[Form]| {
            cells.zip(items).all(|(cell, item)| self.in_order(cell, item, swapped))
        };
        if rows.len() == items.len() && rows.iter().all(|row| row.len() == 1) {
            return same(&mut rows.iter().flatten(), items);
        }
        if let [row] = rows
            && row.len() == items.len()
        {
            return same(&mut row.iter(), items);
        }
        rows.len() == items.len()
            && rows.iter().zip(items).all(|(row, item)| match item {
                Form::Sequence(_, _, items) => row.len() == items.len() && same(&mut row.iter(), items),
                _ => false,
            })
    }

    /// The same names with the same values, in any order.
    fn same_assignment(&self, reference: &[Named<'_>], candidate: &[Named<'_>]) -> bool {
        reference.len() == candidate.len()
            && reference.iter().all(|(name, r)| {
                candidate.iter().any(|(other, c)| name == other && self.same_named_value(*r, *c))
            })
    }

    fn same_named_value(&self, a: NamedValue<'_>, b: NamedValue<'_>) -> bool {
        match (a, b) {
            (NamedValue::Form(a), NamedValue::Form(b)) => self.same(a, b),
            (NamedValue::Quantity(a), NamedValue::Quantity(b) | NamedValue::Form(Form::Quantity(b)))
            | (NamedValue::Form(Form::Quantity(a)), NamedValue::Quantity(b)) => self.same_quantity(a, b),
            _ => false,
        }
    }

    /// The values of names and the items of brackets or a list, in order.
    fn same_values(&self, named: &Form, plain: &[Form], swapped: bool) -> bool {
        let Some(named) = assigned(named) else { return false };
        named.len() == plain.len()
            && named.iter().zip(plain).all(|((_, value), item)| {
                let item = NamedValue::Form(item);
                if swapped {
                    self.same_named_value(item, *value)
                } else {
                    self.same_named_value(*value, item)
                }
            })
    }

    fn same_list(&self, reference: &[Form], candidate: &[Form]) -> bool {
        let names = |items: &[Form]| items.iter().filter_map(name).count();
        let named = |items: &[Form]| names(items) == items.len() && distinct_names(items);
        // Values without names belong to different names in their order.
        match (named(reference), named(candidate)) {
            (true, false) if names(candidate) == 0 => self.each(reference, candidate),
            (false, true) if names(reference) == 0 => self.each(reference, candidate),
            _ => self.same_unordered(reference, candidate),
        }
    }

    /// Equal items in any order, matched one to one.
    fn same_unordered(&self, reference: &[Form], candidate: &[Form]) -> bool {
        if reference.len() != candidate.len() {
            return false;
        }
        let mut free = vec![true; candidate.len()];
        reference.iter().all(|r| {
            let found = candidate.iter().zip(&free).position(|(c, free)| *free && self.same(r, c));
            found.map(|at| free[at] = false).is_some()
        })
    }

    /// Equal sets: repetitions do not matter.
    fn same_members(&self, reference: &[Form], candidate: &[Form]) -> bool {
        let all_in = |some: &[Form], others: &[Form], swapped: bool| {
            some.iter().all(|a| others.iter().any(|b| self.in_order(a, b, swapped)))
        };
        all_in(reference, candidate, false) && all_in(candidate, reference, true)
    }

    fn same_relations(&self, reference: Chain<'_>, candidate: Chain<'_>) -> bool {
        let difference = |(sides, _): Chain<'_>| {
            Expression::Subtract(Box::new(sides[0].value.clone()), Box::new(sides[1].value.clone()))
        };
        let ([rl, rr], [Relation::Equal], [cl, cr], [Relation::Equal]) =
            (reference.0, reference.1, candidate.0, candidate.1)
        else {
            let (Some(r), Some(c)) = (ascending(reference), ascending(candidate)) else { return false };
            if r.1 != c.1 || r.0.len() != c.0.len() {
                return false;
            }
            if r.0.iter().zip(&c.0).all(|(r, c)| self.same_quantity(r, c)) {
                return true;
            }
            let turned = |chain: Chain<'_>| matches!(chain.1, [Relation::Greater | Relation::AtLeast]);
            let same_direction = turned(reference) == turned(candidate);
            let sign = if reference.1 == [Relation::Unequal] {
                Sign::Any
            } else if same_direction {
                Sign::Positive
            } else {
                Sign::Negative
            };
            return r.0.len() == 2 && self.proportional(&difference(reference), &difference(candidate), sign);
        };
        if let (Expression::Variable(r), Expression::Variable(c)) = (&rl.value, &cl.value)
            && same_name(r, c)
            && self.same_quantity(rr, cr)
        {
            return true;
        }
        let aligned = |a: &Quantity, b: &Quantity| self.same_quantity(a, b);
        if (aligned(rl, cl) && aligned(rr, cr)) || (aligned(rl, cr) && aligned(rr, cl)) {
            return true;
        }
        self.proportional(&difference(reference), &difference(candidate), Sign::Any)
    }

    fn same_quantity(&self, reference: &Quantity, candidate: &Quantity) -> bool {
        let units = match (&reference.unit, &candidate.unit) {
            (Some(r), Some(c)) => r.agrees(c),
            _ => true,
        };
        let qualifiers = matches!((reference.qualifier, candidate.qualifier), (Some(a), Some(b)) if a != b);
        if !units || qualifiers {
            return false;
        }
        let (r, c) = (&reference.value, &candidate.value);
        match (reference.percent, candidate.percent) {
            (true, true) | (false, false) => self.same_value(r, c),
            // The percent sign was omitted, or the number was divided by 100.
            (true, false) => self.same_value(r, c) || self.same_value(&hundredth(r), c),
            // A reference without a percent sign counts per cent if it is at least 1; otherwise it is a fraction.
            (false, true) if self.counts_percent(r) => self.same_value(r, c),
            (false, true) => self.same_value(r, &hundredth(c)),
        }
    }

    /// True if a number without a percent sign can count per cent: it is at least 1.
    fn counts_percent(&self, value: &Expression) -> bool {
        match evaluate(value, &Point::origin(self.work)) {
            Some(Value::Exact(v)) => v.magnitude().compare(&Rational::integer(1)).is_ge(),
            _ => false,
        }
    }

    /// True if two expressions have equal values wherever both are defined.
    fn same_value(&self, a: &Expression, b: &Expression) -> bool {
        if a == b {
            return true;
        }
        if let (Some(a), Some(b)) = (self.infinity(a), self.infinity(b)) {
            return a == b;
        }
        let (a_names, b_names) = (a.variables(), b.variables());
        if a_names.is_empty() && b_names.is_empty() {
            let origin = Point::origin(self.work);
            if let (Some(a), Some(b)) = (evaluate(a, &origin), evaluate(b, &origin)) {
                return a.is_same(&b, self.tolerance);
            }
        }
        if is_constant(a) && is_constant(b) {
            return self.agreements(a, b, 1, coordinate) == Some(1);
        }
        match self.agreements(a, b, POINTS, coordinate) {
            None => false,
            Some(LEAST_POINTS..) => true,
            // Factorials of variables have values at whole numbers alone.
            Some(_) => self.agreements(a, b, 2 * POINTS, whole_coordinate) >= Some(LEAST_POINTS),
        }
    }

    /// The sign of an infinite value: `∞`, `∞ - 3`, `-2 ∞`.
    fn infinity(&self, expression: &Expression) -> Option<Ordering> {
        use Expression as E;
        self.work.spend(1)?;
        let sign = |finite: &E| {
            let value = if finite.is_constant() { evaluate(finite, &Point::origin(self.work)) } else { None };
            value.map(|value| value.compare(&Value::integer(0)))
        };
        let times = |infinite: Ordering, finite: &E| match sign(finite)? {
            Ordering::Greater => Some(infinite),
            Ordering::Less => Some(infinite.reverse()),
            Ordering::Equal => None,
        };
        match expression {
            E::Infinity => Some(Ordering::Greater),
            E::Negate(a) => self.infinity(a).map(Ordering::reverse),
            E::Add(a, b) | E::Subtract(a, b) | E::Multiply(a, b) => {
                let is_product = matches!(expression, E::Multiply(..));
                match (self.infinity(a), self.infinity(b)) {
                    (Some(infinite), None) if is_product => times(infinite, b),
                    (None, Some(infinite)) if is_product => times(infinite, a),
                    (Some(infinite), None) => sign(b).map(|_| infinite),
                    (None, Some(infinite)) if matches!(expression, E::Add(..)) => sign(a).map(|_| infinite),
                    (None, Some(infinite)) => sign(a).map(|_| infinite.reverse()),
                    _ => None,
                }
            }
            E::Divide(a, b) => times(self.infinity(a)?, b),
            _ => None,
        }
    }

    /// Number of points at which both expressions have the same value; `None` if they differ at one.
    fn agreements(
        &self,
        a: &Expression,
        b: &Expression,
        points: u64,
        coordinate: fn(&str, u64) -> Rational,
    ) -> Option<usize> {
        let mut agreed = 0;
        for point in 0..points {
            let at = |name: &str| coordinate(name, point);
            match same_at(a, b, &Point { variables: &at, work: self.work }) {
                Some(true) => agreed += 1,
                Some(false) => return None,
                // Outside the domain of one of them.
                None => {}
            }
        }
        Some(agreed)
    }

    /// True if one expression is a constant multiple of the other, so that both have the same zeros.
    fn proportional(&self, a: &Expression, b: &Expression, sign: Sign) -> bool {
        if a.variables().is_empty() || a.variables() != b.variables() {
            return false;
        }
        let quotient = Expression::Divide(Box::new(a.clone()), Box::new(b.clone()));
        let zero = Value::integer(0);
        let mut ratio: Option<Value> = None;
        let mut agreed = 0;
        for point in 0..POINTS {
            let at = |name: &str| coordinate(name, point);
            let Some(value) = evaluate(&quotient, &Point { variables: &at, work: self.work }) else {
                continue;
            };
            let order = value.compare(&zero);
            if order.is_eq()
                || (sign == Sign::Positive && order.is_lt())
                || (sign == Sign::Negative && order.is_gt())
            {
                return false;
            }
            match &ratio {
                Some(ratio) if !ratio.is_same(&value, 0.0) => return false,
                Some(_) => agreed += 1,
                None => {
                    ratio = Some(value);
                    agreed += 1;
                }
            }
        }
        agreed >= LEAST_POINTS
    }
}

/// True if both expressions have the same value at a point; `None` if one of them has none, or it is too inaccurate.
fn same_at(a: &Expression, b: &Expression, point: &Point<'_>) -> Option<bool> {
    if !a.is_complex()
        && !b.is_complex()
        && let (Some(a), Some(b)) = (evaluate(a, point), evaluate(b, point))
    {
        return a.agrees(&b, 0.0);
    }
    Some(evaluate_complex(a, point)?.is_same(&evaluate_complex(b, point)?))
}

/// Sides and the relations between them.
type Chain<'a> = (&'a [Quantity], &'a [Relation]);

/// The sign of a constant factor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Any,
    Positive,
    Negative,
}

/// A name and its value.
type Named<'a> = (&'a str, NamedValue<'a>);

#[derive(Clone, Copy)]
enum NamedValue<'a> {
    Quantity(&'a Quantity),
    Form(&'a Form),
}

/// The names with their values: `(p, q) = (3, 2)` and `p = 3, q = 2`.
fn assigned(form: &Form) -> Option<Vec<Named<'_>>> {
    match form {
        Form::Assignment(values) => {
            Some(values.iter().map(|(name, value)| (name.as_str(), NamedValue::Form(value))).collect())
        }
        Form::List(items) if distinct_full_names(items) => items
            .iter()
            .map(|item| match item {
                Form::Relations(sides, relations) => {
                    Some((name(item)?, NamedValue::Quantity(named_value(sides, relations)?)))
                }
                _ => None,
            })
            .collect(),
        _ => None,
    }
}

/// The variable to which an equation assigns a value.
fn name(form: &Form) -> Option<&str> {
    match form {
        Form::Relations(sides, relations) => match (&sides.first()?.value, named_value(sides, relations)) {
            (Expression::Variable(name), Some(_)) => Some(name),
            _ => None,
        },
        _ => None,
    }
}

fn without_index(name: &str) -> &str {
    name.split_once('_').map_or(name, |(base, _)| base)
}

/// True if two names are equal, or one of them has no index.
fn same_name(a: &str, b: &str) -> bool {
    a == b || a == without_index(b) || b == without_index(a)
}

fn all_distinct<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let mut names: Vec<&str> = names.collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    names.len() == count
}

fn distinct_full_names(items: &[Form]) -> bool {
    all_distinct(items.iter().filter_map(name))
}

/// True if the items name different things, and not different values of one (`x_1`, `x_2`).
fn distinct_names(items: &[Form]) -> bool {
    all_distinct(items.iter().filter_map(name).map(without_index))
}

fn distinct(named: &[Named<'_>]) -> bool {
    all_distinct(named.iter().map(|(name, _)| without_index(name)))
}

/// The value of an equation that assigns it to a name.
pub(super) fn named_value<'a>(sides: &'a [Quantity], relations: &[Relation]) -> Option<&'a Quantity> {
    match (sides, relations) {
        ([name, value], [Relation::Equal | Relation::About]) if name.value.is_name() => Some(value),
        _ => None,
    }
}

/// Inequalities in ascending order; `None` if they have both directions.
fn ascending((sides, relations): Chain<'_>) -> Option<(Vec<&Quantity>, Vec<Relation>)> {
    let up = |r: &Relation| matches!(r, Relation::Less | Relation::AtMost);
    let down = |r: &Relation| matches!(r, Relation::Greater | Relation::AtLeast);
    if relations.iter().all(up) || relations.iter().all(|r| *r == Relation::Unequal) {
        return Some((sides.iter().collect(), relations.to_vec()));
    }
    if !relations.iter().all(down) {
        return None;
    }
    let turned = |r: &Relation| if *r == Relation::Greater { Relation::Less } else { Relation::AtMost };
    Some((sides.iter().rev().collect(), relations.iter().rev().map(turned).collect()))
}

/// True if it has no variables other than the imaginary unit.
fn is_constant(expression: &Expression) -> bool {
    expression.variables().len() == usize::from(expression.is_complex())
}

fn hundredth(value: &Expression) -> Expression {
    Expression::Divide(Box::new(value.clone()), Box::new(Expression::integer(100)))
}

/// The value of a variable at a point: a fraction of either sign, derived from its name. Two different polynomials of
/// small degree do not agree at several such points (Schwartz and Zippel).
fn coordinate(name: &str, point: u64) -> Rational {
    let hash = hash(name);
    let stream = stream(hash);
    let numerator = 1 + stream.below(2 * point, 96) as i64;
    let denominator = 1 + stream.below(2 * point + 1, 12) as i64;
    // Half of the points are positive in all variables, for roots and logarithms.
    let sign = if point.is_multiple_of(2) || hash >> 63 == 0 && point % 4 == 1 { 1 } else { -1 };
    Rational::fraction((sign * numerator).into(), denominator.into()).unwrap_or(Rational::integer(1))
}

/// As [`coordinate`], a small positive integer.
fn whole_coordinate(name: &str, point: u64) -> Rational {
    Rational::integer(1 + stream(hash(name)).below(2 * POINTS + point, 16) as i64)
}

fn hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

fn stream(hash: u64) -> RandomStream {
    RandomStream::new(RandomKey::new(0, 0, Purpose::Algorithm, hash))
}
