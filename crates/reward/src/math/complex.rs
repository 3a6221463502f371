//! Evaluation of expressions with the imaginary unit.

use super::evaluate::{Point, Value, add, apply, divide, evaluate, multiply, power, root};
use super::expression::{Expression, IMAGINARY};
use super::token::Function;

/// Largest exponent of a power that is computed as a product.
const MAX_EXPONENT: i64 = 64;

/// Real and imaginary part.
#[derive(Debug, Clone)]
pub(crate) struct Complex {
    pub(crate) re: Value,
    pub(crate) im: Value,
}

impl Complex {
    fn real(re: Value) -> Self {
        Self { re, im: Value::integer(0) }
    }

    fn is_real(&self) -> bool {
        matches!(&self.im, Value::Exact(im) if im.is_zero())
    }

    /// True if both parts are equal.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.re.is_same(&other.re, 0.0) && self.im.is_same(&other.im, 0.0)
    }

    fn add(&self, other: &Self) -> Option<Self> {
        Some(Self { re: add(&self.re, &other.re)?, im: add(&self.im, &other.im)? })
    }

    fn negate(&self) -> Option<Self> {
        let minus = Value::integer(-1);
        Some(Self { re: multiply(&self.re, &minus)?, im: multiply(&self.im, &minus)? })
    }

    fn multiply(&self, other: &Self) -> Option<Self> {
        let (a, b, c, d) = (&self.re, &self.im, &other.re, &other.im);
        let minus = multiply(&multiply(b, d)?, &Value::integer(-1))?;
        Some(Self { re: add(&multiply(a, c)?, &minus)?, im: add(&multiply(a, d)?, &multiply(b, c)?)? })
    }

    fn conjugate(&self) -> Option<Self> {
        Some(Self { re: self.re.clone(), im: multiply(&self.im, &Value::integer(-1))? })
    }

    /// The square of the absolute value.
    fn norm(&self) -> Option<Value> {
        add(&multiply(&self.re, &self.re)?, &multiply(&self.im, &self.im)?)
    }

    fn divide(&self, other: &Self) -> Option<Self> {
        let (product, norm) = (self.multiply(&other.conjugate()?)?, other.norm()?);
        Some(Self { re: divide(&product.re, &norm)?, im: divide(&product.im, &norm)? })
    }
}

/// Evaluates an expression in complex numbers; `None` if it has no value, or several: powers and roots are computed for
/// exponents that are integers or bases that are real.
pub(crate) fn evaluate_complex(expression: &Expression, point: &Point<'_>) -> Option<Complex> {
    use Expression as E;
    let of = |e: &Expression| evaluate_complex(e, point);
    point.work.spend(1)?;
    match expression {
        E::Variable(name) if name == IMAGINARY => {
            Some(Complex { re: Value::integer(0), im: Value::integer(1) })
        }
        E::Negate(a) => of(a)?.negate(),
        E::Add(a, b) => of(a)?.add(&of(b)?),
        E::Subtract(a, b) => of(a)?.add(&of(b)?.negate()?),
        E::Multiply(a, b) => of(a)?.multiply(&of(b)?),
        E::Divide(a, b) => of(a)?.divide(&of(b)?),
        E::Power(a, b) => complex_power(&of(a)?, &of(b)?, a, point),
        E::Root(degree, a) => {
            let (degree, a) = (of(degree)?, of(a)?);
            if !degree.is_real() || !a.is_real() {
                return None;
            }
            match root(&degree.re, &a.re) {
                Some(value) => Some(Complex::real(value)),
                None if degree.re.is_same(&Value::integer(2), 0.0) => {
                    let im = root(&degree.re, &a.negate()?.re)?;
                    Some(Complex { re: Value::integer(0), im })
                }
                None => None,
            }
        }
        E::Absolute(a) => root(&Value::integer(2), &of(a)?.norm()?).map(Complex::real),
        E::Apply(Function::Exp, a) => exponential(&of(a)?),
        // Other functions of real numbers only.
        _ if !expression.is_complex() => evaluate(expression, point).map(Complex::real),
        _ => None,
    }
}

fn complex_power(base: &Complex, exponent: &Complex, of: &Expression, point: &Point<'_>) -> Option<Complex> {
    if base.is_real()
        && exponent.is_real()
        && let Some(value) = power(&base.re, &exponent.re)
    {
        return Some(Complex::real(value));
    }
    if *of == Expression::Euler {
        return exponential(exponent);
    }
    let times = match &exponent.re {
        Value::Exact(times) if exponent.is_real() => times.to_i64().filter(|t| t.abs() <= MAX_EXPONENT)?,
        _ => return None,
    };
    point.work.spend(times.unsigned_abs() as usize)?;
    let one = Complex::real(Value::integer(1));
    let product = (0..times.abs()).try_fold(one.clone(), |product, _| product.multiply(base))?;
    if times < 0 { one.divide(&product) } else { Some(product) }
}

/// e to the power of a complex number.
fn exponential(exponent: &Complex) -> Option<Complex> {
    let size = apply(Function::Exp, &exponent.re)?;
    let part = |function| multiply(&size, &apply(function, &exponent.im)?);
    Some(Complex { re: part(Function::Cos)?, im: part(Function::Sin)? })
}
