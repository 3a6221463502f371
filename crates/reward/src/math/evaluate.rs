//! Evaluation of expressions: exact where possible, otherwise a double with an error bound.
//!
//! The bound makes the comparison of irrational numbers safe: two values are equal if they differ by no more than the
//! possible rounding error, which must be small.

use std::cmp::Ordering;

use super::expression::Expression;
use super::rational::{MAX_BITS, Rational};
use super::token::Function;
use super::work::Work;

/// Rounding error of one operation, relative to its result: twice the bound of the basic operations.
const UNIT: f64 = f64::EPSILON;
/// Error of the functions of the standard library, relative to their result.
const FUNCTION: f64 = 4.0 * f64::EPSILON;
/// Largest argument of a factorial.
const MAX_FACTORIAL: i64 = 300;
/// Largest integer that is tried as a logarithm, and the number of trials.
const MAX_LOGARITHM: i64 = 64;
const TRIALS: usize = 2 * MAX_LOGARITHM as usize + 1;
/// Maximum error bound, relative to the value or to 1; values with a larger bound do not equal anything.
const MAX_ERROR: f64 = 1e-9;

/// The value of an expression.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Exact(Rational),
    Real(Real),
}

/// A double and a bound on its absolute error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Real {
    value: f64,
    error: f64,
}

impl Real {
    /// The result of an operation, with its rounding error added to the propagated one.
    fn new(value: f64, carried: f64) -> Option<Self> {
        let error = carried + value.abs() * UNIT;
        (value.is_finite() && error.is_finite()).then_some(Self { value, error })
    }
}

impl Value {
    pub(crate) fn integer(value: i64) -> Self {
        Self::Exact(Rational::integer(value))
    }

    fn real(&self) -> Option<Real> {
        match self {
            Self::Exact(value) => Real::new(value.to_f64(), 0.0),
            Self::Real(real) => Some(*real),
        }
    }

    /// Steps of the operation that has this result: large fractions are expensive to reduce.
    fn cost(&self) -> usize {
        match self {
            Self::Exact(value) => value.cost(),
            Self::Real(_) => 0,
        }
    }

    /// True if the numbers are equal, or differ by at most `tolerance` relative to `self`.
    pub(crate) fn is_same(&self, other: &Self, tolerance: f64) -> bool {
        self.agrees(other, tolerance) == Some(true)
    }

    /// As [`is_same`](Self::is_same); `None` if the rounding error is too large to tell.
    pub(crate) fn agrees(&self, other: &Self, tolerance: f64) -> Option<bool> {
        if let (Self::Exact(a), Self::Exact(b)) = (self, other)
            && (a == b || tolerance == 0.0)
        {
            return Some(a == b);
        }
        let (a, b) = (self.real()?, other.real()?);
        let error = a.error + b.error;
        if error > MAX_ERROR * a.value.abs().max(1.0) {
            return None;
        }
        Some((a.value - b.value).abs() <= error + tolerance * a.value.abs())
    }
}

impl Value {
    /// The order of two numbers; numbers that may be equal are.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        if let (Self::Exact(a), Self::Exact(b)) = (self, other) {
            return a.compare(b);
        }
        if self.is_same(other, 0.0) {
            return Ordering::Equal;
        }
        let number = |value: &Self| value.real().map_or(f64::NAN, |real| real.value);
        number(self).total_cmp(&number(other))
    }
}

/// Values of the variables, and the steps that evaluation may take.
pub(crate) struct Point<'a> {
    pub(crate) variables: &'a dyn Fn(&str) -> Rational,
    pub(crate) work: &'a Work,
}

impl<'a> Point<'a> {
    /// The point at which all variables are zero, for constants.
    pub(crate) fn origin(work: &'a Work) -> Self {
        Self { variables: &|_| Rational::integer(0), work }
    }
}

/// Evaluates an expression; `None` if there is no real value, or if it is too expensive to compute.
pub(crate) fn evaluate(expression: &Expression, point: &Point<'_>) -> Option<Value> {
    use Expression as E;
    point.work.spend(1)?;
    let of = |e: &Expression| evaluate(e, point);
    let value = match expression {
        E::Number(value) => Some(Value::Exact(value.clone())),
        E::Variable(name) => Some(Value::Exact((point.variables)(name))),
        E::Pi => Real::new(std::f64::consts::PI, 0.0).map(Value::Real),
        E::Euler => Real::new(std::f64::consts::E, 0.0).map(Value::Real),
        E::Infinity => None,
        E::Negate(a) => multiply(&of(a)?, &Value::integer(-1)),
        E::Add(a, b) => add(&of(a)?, &of(b)?),
        E::Subtract(a, b) => add(&of(a)?, &multiply(&of(b)?, &Value::integer(-1))?),
        E::Multiply(a, b) => multiply(&of(a)?, &of(b)?),
        E::Divide(a, b) => divide(&of(a)?, &of(b)?),
        E::Power(a, b) => power(&of(a)?, &of(b)?),
        E::Root(degree, a) => root(&of(degree)?, &of(a)?),
        E::Apply(function, a) => apply(*function, &of(a)?),
        E::Logarithm(base, a) => {
            let (base, a) = (of(base)?, of(a)?);
            point.work.spend(TRIALS.saturating_mul(1 + base.cost()))?;
            logarithm(&base, &a)
        }
        E::Absolute(a) => match of(a)? {
            Value::Exact(v) => Some(Value::Exact(v.magnitude())),
            Value::Real(r) => Some(Value::Real(Real { value: r.value.abs(), error: r.error })),
        },
        E::Floor(a) => floor(&of(a)?),
        E::Ceiling(a) => {
            let minus = Value::integer(-1);
            multiply(&floor(&multiply(&of(a)?, &minus)?)?, &minus)
        }
        E::Factorial(a) => factorial(whole(&of(a)?)?, point.work).map(Value::Exact),
        E::Binomial(n, k) => binomial(whole(&of(n)?)?, whole(&of(k)?)?, point.work).map(Value::Exact),
    }?;
    point.work.spend(value.cost())?;
    Some(value)
}

fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Exact(value) => value.to_i64(),
        Value::Real(_) => None,
    }
}

/// Exact if both operands are and the result is not too large, else real.
fn exact_or(
    a: &Value,
    b: &Value,
    exact: impl Fn(&Rational, &Rational) -> Option<Rational>,
    real: impl Fn(Real, Real) -> Option<Real>,
) -> Option<Value> {
    if let (Value::Exact(a), Value::Exact(b)) = (a, b)
        && let Some(value) = exact(a, b)
    {
        return Some(Value::Exact(value));
    }
    real(a.real()?, b.real()?).map(Value::Real)
}

pub(super) fn add(a: &Value, b: &Value) -> Option<Value> {
    exact_or(a, b, Rational::add, |a, b| Real::new(a.value + b.value, a.error + b.error))
}

pub(super) fn multiply(a: &Value, b: &Value) -> Option<Value> {
    exact_or(a, b, Rational::multiply, |a, b| {
        Real::new(a.value * b.value, a.value.abs() * b.error + b.value.abs() * a.error + a.error * b.error)
    })
}

pub(super) fn divide(a: &Value, b: &Value) -> Option<Value> {
    if matches!(b, Value::Exact(b) if b.is_zero()) {
        return None;
    }
    exact_or(a, b, Rational::divide, |a, b| {
        // The result is unbounded if the divisor may be zero.
        let least = b.value.abs() - b.error;
        if least <= 0.0 {
            return None;
        }
        let value = a.value / b.value;
        Real::new(value, (a.error + value.abs() * b.error) / least)
    })
}

pub(super) fn power(base: &Value, exponent: &Value) -> Option<Value> {
    if let (Value::Exact(base), Value::Exact(exponent)) = (base, exponent) {
        if let Some(times) = exponent.to_i64() {
            if base.is_zero() && times <= 0 {
                return if times == 0 { Some(Value::integer(1)) } else { None };
            }
            if let Some(value) = base.power(times) {
                return Some(Value::Exact(value));
            }
        } else if let Some(value) = rational_power(base, exponent) {
            return Some(Value::Exact(value));
        }
    }
    if let (Value::Real(_), Some(times)) = (base, whole(exponent))
        && times.unsigned_abs() <= 64
    {
        let product =
            (0..times.unsigned_abs()).try_fold(Value::integer(1), |product, _| multiply(&product, base))?;
        return if times < 0 { divide(&Value::integer(1), &product) } else { Some(product) };
    }
    let times = whole(exponent);
    let (x, y) = (base.real()?, exponent.real()?);
    if x.value - x.error <= 0.0 {
        // Zero to a positive power is zero; a negative base requires an integer exponent.
        let times = times.filter(|t| t.unsigned_abs() < 1 << 20 && x.value + x.error < 0.0)?;
        let value = x.value.powi(times as i32);
        let least = x.value.abs() - x.error;
        return Real::new(value, value.abs() * (times as f64).abs() * (x.error / least + FUNCTION))
            .map(Value::Real);
    }
    let value = x.value.powf(y.value);
    let relative = y.value.abs() * x.error / (x.value - x.error)
        + x.value.ln().abs() * (y.error + y.value.abs() * UNIT)
        + FUNCTION;
    Real::new(value, value.abs() * relative).map(Value::Real)
}

/// A power with a fractional exponent whose root is rational: 8^(2/3). The base must not be negative: roots of negative
/// numbers are not real, or ambiguous.
fn rational_power(base: &Rational, exponent: &Rational) -> Option<Rational> {
    if base.is_negative() || (base.is_zero() && exponent.is_negative()) {
        return None;
    }
    let degree =
        (2..=64).find(|&d| exponent.multiply(&Rational::integer(d)).is_some_and(|e| e.is_integer()))?;
    let times = exponent.multiply(&Rational::integer(degree))?.to_i64()?;
    base.root(u32::try_from(degree).ok()?)?.power(times)
}

pub(super) fn root(degree: &Value, radicand: &Value) -> Option<Value> {
    let degree = u32::try_from(whole(degree)?).ok().filter(|d| (1..=1000).contains(d))?;
    let odd_negative = match radicand {
        Value::Exact(value) => {
            if let Some(root) = value.root(degree) {
                return Some(Value::Exact(root));
            }
            value.is_negative() && degree % 2 == 1
        }
        Value::Real(real) => real.value + real.error < 0.0 && degree % 2 == 1,
    };
    if odd_negative {
        let minus = Value::integer(-1);
        return multiply(&root(&Value::integer(i64::from(degree)), &multiply(radicand, &minus)?)?, &minus);
    }
    let x = radicand.real()?;
    if x.value < 0.0 || x.value - x.error < 0.0 {
        return None;
    }
    let value = if degree == 2 { x.value.sqrt() } else { x.value.powf(1.0 / f64::from(degree)) };
    let slope = if x.value == 0.0 { 0.0 } else { value / (f64::from(degree) * (x.value - x.error)) };
    let rounding = value * FUNCTION * (1.0 + x.value.max(f64::MIN_POSITIVE).ln().abs() / f64::from(degree));
    Real::new(value, slope * x.error + rounding).map(Value::Real)
}

fn floor(value: &Value) -> Option<Value> {
    match value {
        Value::Exact(value) => Some(Value::Exact(value.floor())),
        Value::Real(real) => {
            let (low, high) = ((real.value - real.error).floor(), (real.value + real.error).floor());
            (low == high && low.abs() < 1e15).then(|| Value::integer(low as i64))
        }
    }
}

fn factorial(n: i64, work: &Work) -> Option<Rational> {
    if !(0..=MAX_FACTORIAL).contains(&n) {
        return None;
    }
    work.spend(n as usize)?;
    (1..=n).try_fold(Rational::integer(1), |product, i| product.multiply(&Rational::integer(i)))
}

fn binomial(n: i64, k: i64, work: &Work) -> Option<Rational> {
    let (n, k) = (u64::try_from(n).ok()?, u64::try_from(k).ok()?);
    // The result is too large after as many factors as it may have bits.
    work.spend(k.min(n.saturating_sub(k)).min(MAX_BITS) as usize)?;
    if k > n { Some(Rational::integer(0)) } else { Rational::binomial(n, k) }
}

fn logarithm(base: &Value, argument: &Value) -> Option<Value> {
    if let (Value::Exact(base), Value::Exact(argument)) = (base, argument)
        && let Some(value) = exact_logarithm(base, argument)
    {
        return Some(Value::integer(value));
    }
    divide(&apply(Function::Ln, argument)?, &apply(Function::Ln, base)?)
}

/// An integer logarithm, by trial: log₂ 8 = 3.
fn exact_logarithm(base: &Rational, argument: &Rational) -> Option<i64> {
    if base.is_negative() || base.is_zero() || *base == Rational::integer(1) {
        return None;
    }
    (-MAX_LOGARITHM..=MAX_LOGARITHM).find(|&times| base.power(times).as_ref() == Some(argument))
}

pub(super) fn apply(function: Function, argument: &Value) -> Option<Value> {
    if let Value::Exact(value) = argument
        && value.is_zero()
    {
        match function {
            Function::Sin
            | Function::Tan
            | Function::ArcSin
            | Function::ArcTan
            | Function::Sinh
            | Function::Tanh => return Some(Value::integer(0)),
            Function::Cos | Function::Sec | Function::Cosh | Function::Exp => return Some(Value::integer(1)),
            _ => {}
        }
    }
    if function == Function::Ln && matches!(argument, Value::Exact(v) if *v == Rational::integer(1)) {
        return Some(Value::integer(0));
    }
    let x = argument.real()?;
    let v = x.value;
    let inverse = |f: Function| divide(&Value::integer(1), &apply(f, argument)?);
    // The value and its derivative by the argument.
    let (value, slope) = match function {
        Function::Sin => (v.sin(), 1.0),
        Function::Cos => (v.cos(), 1.0),
        Function::Tan => return divide(&apply(Function::Sin, argument)?, &apply(Function::Cos, argument)?),
        Function::Cot => return divide(&apply(Function::Cos, argument)?, &apply(Function::Sin, argument)?),
        Function::Sec => return inverse(Function::Cos),
        Function::Csc => return inverse(Function::Sin),
        Function::ArcSin | Function::ArcCos => {
            if v.abs() > 1.0 {
                return None;
            }
            let value = if function == Function::ArcSin { v.asin() } else { v.acos() };
            // At the ends the slope is infinite; exact arguments have nearly no error there.
            (value, 1.0 / (1.0 - v * v).max(1e-8).sqrt())
        }
        Function::ArcTan => (v.atan(), 1.0),
        Function::Sinh => (v.sinh(), v.cosh()),
        Function::Cosh => (v.cosh(), v.sinh().abs()),
        Function::Tanh => (v.tanh(), 1.0),
        Function::Exp => (v.exp(), v.exp()),
        Function::Ln | Function::Log => {
            if v - x.error <= 0.0 {
                return None;
            }
            (v.ln(), 1.0 / (v - x.error))
        }
    };
    // The absolute term covers results near zero, where the error of library functions is relative to the argument.
    let rounding = f64::EPSILON + value.abs() * FUNCTION;
    Real::new(value, slope * (x.error + v.abs() * f64::EPSILON) + rounding).map(Value::Real)
}
