use std::collections::BTreeSet;

use super::rational::Rational;
use super::token::Function;

/// Name of the imaginary unit.
pub(crate) const IMAGINARY: &str = "i";

/// A mathematical expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expression {
    Number(Rational),
    Variable(String),
    Pi,
    Euler,
    Infinity,
    Negate(Box<Expression>),
    Add(Box<Expression>, Box<Expression>),
    Subtract(Box<Expression>, Box<Expression>),
    Multiply(Box<Expression>, Box<Expression>),
    Divide(Box<Expression>, Box<Expression>),
    Power(Box<Expression>, Box<Expression>),
    /// Degree and radicand.
    Root(Box<Expression>, Box<Expression>),
    Apply(Function, Box<Expression>),
    /// Base and argument.
    Logarithm(Box<Expression>, Box<Expression>),
    Absolute(Box<Expression>),
    Floor(Box<Expression>),
    Ceiling(Box<Expression>),
    Factorial(Box<Expression>),
    Binomial(Box<Expression>, Box<Expression>),
}

impl Expression {
    pub(crate) fn integer(value: i64) -> Self {
        Self::Number(Rational::integer(value))
    }

    /// True for a literal number, without anything to compute: `-3`, `7/2`, `1.5·10^3`.
    pub(crate) fn is_literal(&self) -> bool {
        match self {
            Self::Number(_) => true,
            Self::Negate(inner) => inner.is_literal(),
            Self::Divide(left, right) => left.is_literal() && right.is_literal(),
            Self::Multiply(left, right) => {
                let ten = |base: &Self| *base == Self::integer(10);
                left.is_literal()
                    && matches!(right.as_ref(), Self::Power(base, exponent) if ten(base) && exponent.is_literal())
            }
            _ => false,
        }
    }

    /// True if it can be the name of an answer: `x`, `f(x)` or `f(3)`.
    pub(crate) fn is_name(&self) -> bool {
        match self {
            Self::Variable(_) => true,
            Self::Multiply(left, right) => {
                matches!(
                    (left.as_ref(), right.as_ref()),
                    (Self::Variable(_), Self::Variable(_) | Self::Number(_))
                )
            }
            _ => false,
        }
    }

    /// True if it has no variables.
    pub(crate) fn is_constant(&self) -> bool {
        self.variables().is_empty()
    }

    /// True if it contains the imaginary unit.
    pub(crate) fn is_complex(&self) -> bool {
        self.variables().contains(IMAGINARY)
    }

    /// Names of the variables.
    pub(crate) fn variables(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        self.collect(&mut names);
        names
    }

    fn collect<'a>(&'a self, names: &mut BTreeSet<&'a str>) {
        match self {
            Self::Variable(name) => {
                names.insert(name);
            }
            Self::Number(_) | Self::Pi | Self::Euler | Self::Infinity => {}
            Self::Negate(a)
            | Self::Apply(_, a)
            | Self::Absolute(a)
            | Self::Floor(a)
            | Self::Ceiling(a)
            | Self::Factorial(a) => a.collect(names),
            Self::Add(a, b)
            | Self::Subtract(a, b)
            | Self::Multiply(a, b)
            | Self::Divide(a, b)
            | Self::Power(a, b)
            | Self::Root(a, b)
            | Self::Logarithm(a, b)
            | Self::Binomial(a, b) => {
                a.collect(names);
                b.collect(names);
            }
        }
    }
}
