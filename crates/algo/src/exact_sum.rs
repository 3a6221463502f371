use serde::{Deserialize, Serialize};

/// A sum of `f64` that does not depend on the order or grouping of its terms.
///
/// Stores the exact sum as a list of non-overlapping floats, smallest first (Shewchuk, "Adaptive precision
/// floating-point arithmetic and fast robust geometric predicates", 1997), and rounds it on reading. Metrics are
/// therefore bitwise identical for any split of an optimiser step. The terms must be finite and their sum must not
/// overflow.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ExactSum {
    parts: Vec<f64>,
}

impl ExactSum {
    /// An empty sum.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one term.
    pub fn add(&mut self, term: f64) {
        let mut x = term;
        let mut kept = 0;
        for i in 0..self.parts.len() {
            let mut y = self.parts[i];
            if x.abs() < y.abs() {
                (x, y) = (y, x);
            }
            let high = x + y;
            let low = y - (high - x);
            if low != 0.0 {
                self.parts[kept] = low;
                kept += 1;
            }
            x = high;
        }
        self.parts.truncate(kept);
        if x != 0.0 {
            self.parts.push(x);
        }
    }

    /// Adds x·y without rounding it.
    pub(crate) fn add_product(&mut self, x: f64, y: f64) {
        let product = x * y;
        self.add(product);
        self.add(x.mul_add(y, -product));
    }

    /// Floats whose exact sum is this sum.
    pub(crate) fn parts(&self) -> &[f64] {
        &self.parts
    }

    /// Adds all terms of another sum.
    pub fn merge(&mut self, other: &Self) {
        for &part in &other.parts {
            self.add(part);
        }
    }

    /// The exact sum, rounded to nearest, ties to even.
    pub fn value(&self) -> f64 {
        let Some((&last, rest)) = self.parts.split_last() else { return 0.0 };
        let mut high = last;
        let mut low = 0.0;
        let mut below = rest.len();
        while below > 0 {
            below -= 1;
            let x = high;
            let y = rest[below];
            high = x + y;
            low = y - (high - x);
            if low != 0.0 {
                break;
            }
        }
        // If `low` is exactly half an ulp of `high`, the parts below it determine the rounding.
        if below > 0 && ((low < 0.0 && rest[below - 1] < 0.0) || (low > 0.0 && rest[below - 1] > 0.0)) {
            let twice = low * 2.0;
            let rounded = high + twice;
            if twice == rounded - high {
                high = rounded;
            }
        }
        high
    }
}

impl Extend<f64> for ExactSum {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, terms: I) {
        for term in terms {
            self.add(term);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(terms: &[f64]) -> f64 {
        let mut s = ExactSum::new();
        s.extend(terms.iter().copied());
        s.value()
    }

    #[test]
    fn cancellation_is_exact() {
        assert_eq!(sum(&[]), 0.0);
        assert_eq!(sum(&[1e100, 1.0, -1e100]), 1.0);
        assert_eq!(sum(&[0.1; 10]), 1.0);
        assert_eq!(sum(&[1.0, 1e-16, 1e-16]), 1.000_000_000_000_000_2);
    }

    /// A tie that is decided by a much smaller part.
    #[test]
    fn ties_look_at_what_is_below() {
        let half_ulp = f64::EPSILON / 2.0;
        assert_eq!(sum(&[1.0, half_ulp]), 1.0);
        assert_eq!(sum(&[1.0, half_ulp, 1e-60]), 1.0 + f64::EPSILON);
    }

    proptest! {
        #[test]
        fn order_and_grouping_do_not_matter(
            terms in prop::collection::vec((-1.0f64..1.0, -60i32..60), 0..60),
            cut in 0usize..60,
        ) {
            let terms: Vec<f64> = terms.iter().map(|&(m, e)| m * f64::from(e).exp2()).collect();
            let mut backwards = terms.clone();
            backwards.reverse();
            prop_assert_eq!(sum(&terms).to_bits(), sum(&backwards).to_bits());
            let (left, right) = terms.split_at(cut.min(terms.len()));
            let mut merged = ExactSum::new();
            merged.extend(left.iter().copied());
            let mut other = ExactSum::new();
            other.extend(right.iter().copied());
            merged.merge(&other);
            prop_assert_eq!(merged.value().to_bits(), sum(&terms).to_bits());
        }
    }
}
