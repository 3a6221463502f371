//! Equality of answers.

use rloom_core::{Purpose, RandomKey, RandomStream};

use super::answer::{Form, Quantity};
use super::evaluate::{Value, evaluate};
use super::expression::Expression;
use super::rational::Rational;
use super::token::Relation;

/// Number of points at which expressions with variables are compared.
const POINTS: u64 = 8;
/// Minimum number of points at which both expressions must have a value.
const LEAST_POINTS: usize = 3;

/// True if a candidate equals the reference.
pub(super) fn same(reference: &Form, candidate: &Form, tolerance: f64) -> bool {
    let each =
        |r: &[Form], c: &[Form]| r.len() == c.len() && r.iter().zip(c).all(|(r, c)| same(r, c, tolerance));
    match (reference, candidate) {
        (Form::Quantity(r), Form::Quantity(c)) => same_quantity(r, c, tolerance),
        (Form::Sequence(ro, rc, r), Form::Sequence(co, cc, c)) => ro == co && rc == cc && each(r, c),
        (Form::Matrix(r), Form::Matrix(c)) => r.len() == c.len() && r.iter().zip(c).all(|(r, c)| each(r, c)),
        (Form::List(r), Form::List(c)) | (Form::Union(r), Form::Union(c)) => same_unordered(r, c, tolerance),
        (Form::Set(r), Form::Set(c) | Form::List(c)) | (Form::List(r), Form::Set(c)) => {
            same_members(r, c, tolerance)
        }
        (Form::Set(r), c @ Form::Quantity(_)) => matches!(r.as_slice(), [r] if same(r, c, tolerance)),
        (r @ Form::Quantity(_), Form::Set(c)) => matches!(c.as_slice(), [c] if same(r, c, tolerance)),
        (Form::Ratio(r), Form::Ratio(c)) => {
            r.len() == c.len() && r.iter().zip(c).all(|(r, c)| same_quantity(r, c, tolerance))
        }
        (Form::Relations(rs, rr), Form::Relations(cs, cr)) => same_relations((rs, rr), (cs, cr), tolerance),
        // `x = 5` equals 5, in both directions.
        (Form::Relations(sides, relations), Form::Quantity(c)) => {
            named_value(sides, relations).is_some_and(|r| same_quantity(r, c, tolerance))
        }
        (Form::Quantity(r), Form::Relations(sides, relations)) => {
            named_value(sides, relations).is_some_and(|c| same_quantity(r, c, tolerance))
        }
        _ => false,
    }
}

/// The value of an equation that assigns it to a name.
pub(super) fn named_value<'a>(sides: &'a [Quantity], relations: &[Relation]) -> Option<&'a Quantity> {
    match (sides, relations) {
        ([name, value], [Relation::Equal]) if name.value.is_name() => Some(value),
        _ => None,
    }
}

/// Equal items in any order, matched one to one.
fn same_unordered(reference: &[Form], candidate: &[Form], tolerance: f64) -> bool {
    if reference.len() != candidate.len() {
        return false;
    }
    let mut free = vec![true; candidate.len()];
    reference.iter().all(|r| {
        let found = candidate.iter().zip(&free).position(|(c, free)| *free && same(r, c, tolerance));
        found.map(|at| free[at] = false).is_some()
    })
}

/// Equal sets: repetitions do not matter.
fn same_members(reference: &[Form], candidate: &[Form], tolerance: f64) -> bool {
    let all_in = |some: &[Form], others: &[Form], swapped: bool| {
        some.iter().all(|a| {
            others.iter().any(|b| if swapped { same(b, a, tolerance) } else { same(a, b, tolerance) })
        })
    };
    all_in(reference, candidate, false) && all_in(candidate, reference, true)
}

fn same_relations(
    reference: (&[Quantity], &[Relation]),
    candidate: (&[Quantity], &[Relation]),
    tolerance: f64,
) -> bool {
    let ([rl, rr], [Relation::Equal], [cl, cr], [Relation::Equal]) =
        (reference.0, reference.1, candidate.0, candidate.1)
    else {
        let (Some(r), Some(c)) = (ascending(reference), ascending(candidate)) else { return false };
        return r.1 == c.1
            && r.0.len() == c.0.len()
            && r.0.iter().zip(&c.0).all(|(r, c)| same_quantity(r, c, tolerance));
    };
    let aligned = |a: &Quantity, b: &Quantity| same_quantity(a, b, tolerance);
    if (aligned(rl, cl) && aligned(rr, cr)) || (aligned(rl, cr) && aligned(rr, cl)) {
        return true;
    }
    let difference = |a: &Quantity, b: &Quantity| {
        Expression::Subtract(Box::new(a.value.clone()), Box::new(b.value.clone()))
    };
    proportional(&difference(rl, rr), &difference(cl, cr))
}

/// Inequalities in ascending order; `None` if they have both directions.
fn ascending<'a>(
    (sides, relations): (&'a [Quantity], &[Relation]),
) -> Option<(Vec<&'a Quantity>, Vec<Relation>)> {
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

fn same_quantity(reference: &Quantity, candidate: &Quantity, tolerance: f64) -> bool {
    if differ(reference.unit.as_ref(), candidate.unit.as_ref())
        || differ(reference.qualifier.as_ref(), candidate.qualifier.as_ref())
    {
        return false;
    }
    let (r, c) = (&reference.value, &candidate.value);
    match (reference.percent, candidate.percent) {
        (true, true) | (false, false) => same_value(r, c, tolerance),
        // The percent sign was omitted, or the number was divided by 100.
        (true, false) => same_value(r, c, tolerance) || same_value(&hundredth(r), c, tolerance),
        // A reference without a percent sign counts per cent if it is at least 1; otherwise it is a fraction.
        (false, true) if counts_percent(r) => same_value(r, c, tolerance),
        (false, true) => same_value(r, &hundredth(c), tolerance),
    }
}

/// True if both are present and differ.
fn differ<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

fn hundredth(value: &Expression) -> Expression {
    Expression::Divide(Box::new(value.clone()), Box::new(Expression::integer(100)))
}

/// True if a number without a percent sign can count per cent: it is at least 1.
fn counts_percent(value: &Expression) -> bool {
    match evaluate(value, &|_| Rational::integer(0)) {
        Some(Value::Exact(v)) => v.magnitude().compare(&Rational::integer(1)).is_ge(),
        _ => false,
    }
}

/// True if two expressions have equal values wherever both are defined.
pub(super) fn same_value(a: &Expression, b: &Expression, tolerance: f64) -> bool {
    if a == b {
        return true;
    }
    let (a_names, b_names) = (a.variables(), b.variables());
    if a_names.is_empty() && b_names.is_empty() {
        let none = |_: &str| Rational::integer(0);
        return match (evaluate(a, &none), evaluate(b, &none)) {
            (Some(a), Some(b)) => a.is_same(&b, tolerance),
            _ => false,
        };
    }
    let mut agreed = 0;
    for point in 0..POINTS {
        let at = |name: &str| coordinate(name, point);
        match (evaluate(a, &at), evaluate(b, &at)) {
            (Some(a), Some(b)) if a.is_same(&b, 0.0) => agreed += 1,
            (Some(_), Some(_)) => return false,
            // Outside the domain of one of them.
            _ => {}
        }
    }
    agreed >= LEAST_POINTS
}

/// True if one expression is a constant multiple of the other, so that both have the same zeros.
fn proportional(a: &Expression, b: &Expression) -> bool {
    if a.variables().is_empty() || a.variables() != b.variables() {
        return false;
    }
    let mut ratio: Option<Value> = None;
    let mut agreed = 0;
    for point in 0..POINTS {
        let at = |name: &str| coordinate(name, point);
        let quotient = Expression::Divide(Box::new(a.clone()), Box::new(b.clone()));
        let Some(value) = evaluate(&quotient, &at) else { continue };
        if matches!(&value, Value::Exact(v) if v.is_zero()) {
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

/// The value of a variable at a point: a fraction of either sign, derived from its name. Two different polynomials of
/// small degree do not agree at several such points (Schwartz and Zippel).
fn coordinate(name: &str, point: u64) -> Rational {
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let stream = RandomStream::new(RandomKey::new(0, 0, Purpose::Algorithm, hash));
    let numerator = 1 + stream.below(2 * point, 96) as i64;
    let denominator = 1 + stream.below(2 * point + 1, 12) as i64;
    // Half of the points are positive in all variables, for roots and logarithms.
    let sign = if point.is_multiple_of(2) || hash >> 63 == 0 && point % 4 == 1 { 1 } else { -1 };
    Rational::fraction((sign * numerator).into(), denominator.into()).unwrap_or(Rational::integer(1))
}
