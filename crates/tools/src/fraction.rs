use num_bigint::{BigInt, Sign};

/// Most bits of a numerator or denominator: results beyond are refused.
const BITS: u64 = 1 << 14;

/// An exact rational number in lowest terms; the denominator is positive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fraction {
    numerator: BigInt,
    denominator: BigInt,
}

impl Fraction {
    /// A quotient; an error for a division by zero and for a result that is too large.
    pub(crate) fn new(numerator: BigInt, denominator: BigInt) -> Result<Self, &'static str> {
        if denominator.sign() == Sign::NoSign {
            return Err("division by zero");
        }
        if numerator.bits() > BITS || denominator.bits() > BITS {
            return Err("the number is too large");
        }
        let divisor = common_divisor(&numerator, &denominator);
        let divisor = if denominator.sign() == Sign::Minus { -divisor } else { divisor };
        Ok(Self { numerator: numerator / &divisor, denominator: denominator / divisor })
    }

    /// A number in decimal notation.
    pub(crate) fn decimal(text: &str) -> Result<Self, &'static str> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        if part.len() + whole.len() > 1000 {
            return Err("the number is too large");
        }
        let digits = format!("{whole}{part}").parse().map_err(|_| "a number was expected")?;
        Self::new(digits, BigInt::from(10).pow(part.len() as u32))
    }

    pub(crate) fn plus(&self, other: &Self) -> Result<Self, &'static str> {
        let numerator = &self.numerator * &other.denominator + &other.numerator * &self.denominator;
        Self::new(numerator, &self.denominator * &other.denominator)
    }

    pub(crate) fn minus(&self, other: &Self) -> Result<Self, &'static str> {
        self.plus(&other.negated())
    }

    pub(crate) fn negated(&self) -> Self {
        Self { numerator: -&self.numerator, denominator: self.denominator.clone() }
    }

    pub(crate) fn times(&self, other: &Self) -> Result<Self, &'static str> {
        Self::new(&self.numerator * &other.numerator, &self.denominator * &other.denominator)
    }

    pub(crate) fn over(&self, other: &Self) -> Result<Self, &'static str> {
        Self::new(&self.numerator * &other.denominator, &self.denominator * &other.numerator)
    }

    /// The quotient, rounded down.
    pub(crate) fn floored_over(&self, other: &Self) -> Result<Self, &'static str> {
        let Self { numerator, denominator } = self.over(other)?;
        let (quotient, rest) = (&numerator / &denominator, &numerator % &denominator);
        let below = if rest.sign() == Sign::Minus { quotient - 1 } else { quotient };
        Self::new(below, BigInt::from(1))
    }

    /// The remainder of the quotient that is rounded down.
    pub(crate) fn modulo(&self, other: &Self) -> Result<Self, &'static str> {
        self.minus(&self.floored_over(other)?.times(other)?)
    }

    /// A power with a whole exponent.
    pub(crate) fn power(&self, exponent: &Self) -> Result<Self, &'static str> {
        if exponent.denominator != BigInt::from(1) {
            return Err("an exponent must be a whole number");
        }
        let size: u32 = exponent.numerator.magnitude().try_into().map_err(|_| "the number is too large")?;
        let bits = self.numerator.bits().max(self.denominator.bits());
        if u64::from(size).saturating_mul(bits.max(1)) > 2 * BITS {
            return Err("the number is too large");
        }
        let (numerator, denominator) = (self.numerator.pow(size), self.denominator.pow(size));
        match exponent.numerator.sign() {
            Sign::Minus => Self::new(denominator, numerator),
            _ => Self::new(numerator, denominator),
        }
    }
}

/// A whole number, a decimal number if it ends, or a fraction with its first decimals.
impl std::fmt::Display for Fraction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { numerator, denominator } = self;
        let one = BigInt::from(1);
        if *denominator == one {
            return write!(f, "{numerator}");
        }
        let places =
            (1..=20u32).find(|places| BigInt::from(10).pow(*places) % denominator == BigInt::from(0));
        match places {
            Some(places) => f.write_str(&decimals(numerator, denominator, places)),
            None => write!(f, "{numerator}/{denominator} = {}...", decimals(numerator, denominator, 8)),
        }
    }
}

/// A quotient with a number of decimals, cut off.
fn decimals(numerator: &BigInt, denominator: &BigInt, places: u32) -> String {
    let scaled = numerator * BigInt::from(10).pow(places) / denominator;
    let (sign, digits) = (numerator.sign() == Sign::Minus, scaled.magnitude().to_string());
    let digits = format!("{digits:0>width$}", width = places as usize + 1);
    let (whole, part) = digits.split_at(digits.len() - places as usize);
    format!("{}{whole}.{part}", if sign { "-" } else { "" })
}

/// The greatest common divisor, which is positive: the second number is not 0.
fn common_divisor(a: &BigInt, b: &BigInt) -> BigInt {
    let (mut a, mut b) = (BigInt::from(a.magnitude().clone()), BigInt::from(b.magnitude().clone()));
    while b.sign() != Sign::NoSign {
        (a, b) = (b.clone(), a % b);
    }
    a
}
