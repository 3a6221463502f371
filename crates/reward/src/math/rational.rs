use std::cmp::Ordering;

use num_bigint::{BigInt, BigUint, Sign};

/// Maximum bits of numerator and denominator. The limit bounds the time of the verifier for any numbers in a
/// completion.
pub(super) const MAX_BITS: u64 = 2048;

/// An exact fraction in lowest terms, with a positive denominator. Operations return `None` if the result would be too
/// large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rational {
    numerator: BigInt,
    denominator: BigInt,
}

impl Rational {
    pub(crate) fn integer(value: i64) -> Self {
        Self { numerator: value.into(), denominator: 1.into() }
    }

    /// `numerator / denominator`; `None` for a zero denominator.
    pub(crate) fn fraction(numerator: BigInt, denominator: BigInt) -> Option<Self> {
        if denominator.sign() == Sign::NoSign || numerator.bits() > MAX_BITS || denominator.bits() > MAX_BITS
        {
            return None;
        }
        if denominator.magnitude().bits() == 1 && denominator.sign() == Sign::Plus {
            return Some(Self { numerator, denominator });
        }
        let divisor = greatest_common_divisor(numerator.magnitude(), denominator.magnitude());
        let divisor = BigInt::from_biguint(denominator.sign(), divisor);
        Some(Self { numerator: numerator / &divisor, denominator: denominator / divisor })
    }

    /// The number `digits` with `decimals` of them after the point, times 10^`exponent`.
    pub(crate) fn decimal(digits: &str, decimals: usize, exponent: i64) -> Option<Self> {
        if digits.len() > 1000 || exponent.abs() > 1000 {
            return None;
        }
        let value: BigInt = digits.parse().ok()?;
        let shift = exponent - decimals as i64;
        let ten = BigInt::from(10).pow(shift.unsigned_abs() as u32);
        if shift < 0 { Self::fraction(value, ten) } else { Self::fraction(value * ten, 1.into()) }
    }

    /// Relative cost of reducing it: zero for small numbers, quadratic in the length of large ones.
    pub(crate) fn cost(&self) -> usize {
        let words = self.numerator.bits().min(self.denominator.bits()) / 64;
        usize::try_from(words * words).unwrap_or(usize::MAX)
    }

    pub(crate) fn is_integer(&self) -> bool {
        *self.denominator.magnitude() == BigUint::from(1u32)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.numerator.sign() == Sign::NoSign
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.numerator.sign() == Sign::Minus
    }

    /// The value, if it is an integer that fits.
    pub(crate) fn to_i64(&self) -> Option<i64> {
        if self.is_integer() { i64::try_from(&self.numerator).ok() } else { None }
    }

    /// The nearest double, within one unit in the last place; infinite beyond the range of doubles.
    pub(crate) fn to_f64(&self) -> f64 {
        let (n, n_shift) = leading(self.numerator.magnitude());
        let (d, d_shift) = leading(self.denominator.magnitude());
        let shift = n_shift - d_shift;
        // Two factors, so that neither overflows unless the product does.
        let half = shift / 2;
        let value = n / d * 2f64.powi(half as i32) * 2f64.powi((shift - half) as i32);
        if self.is_negative() { -value } else { value }
    }

    pub(crate) fn negate(&self) -> Self {
        Self { numerator: -&self.numerator, denominator: self.denominator.clone() }
    }

    pub(crate) fn add(&self, other: &Self) -> Option<Self> {
        let left = &self.numerator * &other.denominator;
        let right = &other.numerator * &self.denominator;
        Self::fraction(left + right, &self.denominator * &other.denominator)
    }

    pub(crate) fn multiply(&self, other: &Self) -> Option<Self> {
        Self::fraction(&self.numerator * &other.numerator, &self.denominator * &other.denominator)
    }

    /// The quotient; `None` also for a division by zero.
    pub(crate) fn divide(&self, other: &Self) -> Option<Self> {
        Self::fraction(&self.numerator * &other.denominator, &self.denominator * &other.numerator)
    }

    /// An integer power; `None` also for a negative power of zero.
    pub(crate) fn power(&self, exponent: i64) -> Option<Self> {
        let unit = |value: &BigInt| value.bits() <= 1;
        let times = if unit(&self.numerator) && unit(&self.denominator) {
            // Powers of 0, 1 and −1 depend only on the parity.
            if exponent == 0 { 0 } else { 2 - u32::from(exponent % 2 != 0) }
        } else {
            let times = u32::try_from(exponent.unsigned_abs()).ok()?;
            let bits = self.numerator.bits().max(self.denominator.bits());
            if (bits - 1).saturating_mul(u64::from(times)) > MAX_BITS {
                return None;
            }
            times
        };
        let (n, d) = (self.numerator.pow(times), self.denominator.pow(times));
        if exponent < 0 { Self::fraction(d, n) } else { Self::fraction(n, d) }
    }

    /// The real root, if it is rational; odd roots of negative numbers are negative.
    pub(crate) fn root(&self, degree: u32) -> Option<Self> {
        if degree == 0 || (self.is_negative() && degree.is_multiple_of(2)) {
            return None;
        }
        let exact = |value: &BigInt| {
            let root = value.nth_root(degree);
            (root.pow(degree) == *value).then_some(root)
        };
        // Roots of a higher degree than the number of bits are not rational, except those of 0, 1 and −1.
        if u64::from(degree) > MAX_BITS {
            return None;
        }
        Some(Self { numerator: exact(&self.numerator)?, denominator: exact(&self.denominator)? })
    }

    /// n over k, for 0 ≤ k ≤ n.
    pub(crate) fn binomial(n: u64, k: u64) -> Option<Self> {
        let mut value = BigInt::from(1);
        for i in 1..=k.min(n - k) {
            // Whole after every step: i consecutive factors are divisible by i!.
            value = value * (n - k.min(n - k) + i) / i;
            if value.bits() > MAX_BITS {
                return None;
            }
        }
        Some(Self { numerator: value, denominator: 1.into() })
    }

    /// The largest integer that is not above it.
    pub(crate) fn floor(&self) -> Self {
        let quotient = &self.numerator / &self.denominator;
        let below = self.is_negative() && !self.is_integer();
        let numerator = if below { quotient - BigInt::from(1) } else { quotient };
        Self { numerator, denominator: 1.into() }
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        (&self.numerator * &other.denominator).cmp(&(&other.numerator * &self.denominator))
    }

    pub(crate) fn magnitude(&self) -> Self {
        if self.is_negative() { self.negate() } else { self.clone() }
    }
}

/// The leading 64 bits as a number, and the number of omitted bits.
fn leading(value: &BigUint) -> (f64, i64) {
    let shift = value.bits().saturating_sub(64);
    let top = (value >> shift).to_u64_digits().first().copied().unwrap_or(0);
    (top as f64, shift as i64)
}

fn greatest_common_divisor(a: &BigUint, b: &BigUint) -> BigUint {
    let (mut a, mut b) = (a.clone(), b.clone());
    while b.bits() > 0 {
        (a, b) = (b.clone(), a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(n: i64, d: i64) -> Rational {
        Rational::fraction(n.into(), d.into()).unwrap()
    }

    #[test]
    fn lowest_terms_with_a_positive_denominator() {
        assert_eq!(ratio(6, -4), ratio(-3, 2));
        assert_eq!(ratio(0, -7), Rational::integer(0));
        assert_eq!(Rational::fraction(1.into(), 0.into()), None);
    }

    #[test]
    fn arithmetic() {
        assert_eq!(ratio(1, 3).add(&ratio(1, 6)), Some(ratio(1, 2)));
        assert_eq!(ratio(2, 3).multiply(&ratio(9, 4)), Some(ratio(3, 2)));
        assert_eq!(ratio(2, 3).divide(&ratio(0, 1)), None);
        assert_eq!(ratio(-2, 3).power(-3), Some(ratio(-27, 8)));
        assert_eq!(ratio(0, 1).power(-1), None);
        assert_eq!(ratio(0, 1).power(0), Some(ratio(1, 1)));
        assert_eq!(ratio(-1, 1).power(4_000_000_001), Some(ratio(-1, 1)));
        assert_eq!(ratio(10, 1).power(2_000_000_000), None);
        assert_eq!(ratio(8, 27).root(3), Some(ratio(2, 3)));
        assert_eq!(ratio(-8, 1).root(3), Some(ratio(-2, 1)));
        assert_eq!(ratio(-4, 1).root(2), None);
        assert_eq!(ratio(2, 1).root(2), None);
        assert_eq!(Rational::binomial(5, 2), Some(ratio(10, 1)));
        assert_eq!(Rational::binomial(5, 5), Some(ratio(1, 1)));
        assert_eq!(Rational::binomial(60, 30), Some(ratio(118_264_581_564_861_424, 1)));
        assert_eq!(Rational::binomial(100_000, 50_000), None);
        assert_eq!(ratio(-7, 2).floor(), ratio(-4, 1));
        assert_eq!(ratio(-8, 2).floor(), ratio(-4, 1));
        assert_eq!(ratio(7, 2).floor(), ratio(3, 1));
        assert_eq!(ratio(1, 3).compare(&ratio(2, 5)), Ordering::Less);
    }

    #[test]
    fn decimals() {
        assert_eq!(Rational::decimal("1250", 3, 0), Some(ratio(5, 4)));
        assert_eq!(Rational::decimal("15", 1, 3), Some(ratio(1500, 1)));
        assert_eq!(Rational::decimal("1", 0, 5000), None);
    }

    #[test]
    fn conversion_to_doubles_is_accurate_over_the_whole_range() {
        assert_eq!(ratio(1, 3).to_f64(), 1.0 / 3.0);
        assert_eq!(ratio(-5, 2).to_f64(), -2.5);
        let huge = Rational::integer(10).power(300).unwrap();
        assert!((huge.to_f64() / 1e300 - 1.0).abs() < 1e-15);
        let tiny = Rational::integer(1).divide(&huge).unwrap();
        assert!((tiny.to_f64() / 1e-300 - 1.0).abs() < 1e-15);
        let beyond = Rational::integer(10).power(500).unwrap();
        assert_eq!(beyond.to_f64(), f64::INFINITY);
        assert_eq!(beyond.divide(&beyond).unwrap().to_f64(), 1.0);
    }
}
