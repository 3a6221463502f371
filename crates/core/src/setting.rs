use std::fmt;
use std::ops::Bound;

/// A configuration key with an invalid value.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
#[error("`{key}`: {problem}")]
#[diagnostic(forward(problem))]
pub struct SettingError {
    /// The key, relative to the table that holds it.
    pub key: &'static str,
    /// The reason.
    pub problem: SettingProblem,
}

/// Reasons for rejecting a value of any setting.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum SettingProblem {
    /// A list without an entry.
    #[error("the list is empty")]
    Empty,
    /// A list with an entry that may occur only once.
    #[error("lists {value} more than once")]
    Repeated {
        /// The entry, as the configuration writes it.
        value: String,
    },
    /// A number outside its range.
    #[error("must be {range}, but is {value}")]
    OutOfRange {
        /// The number.
        value: f64,
        /// The accepted values.
        range: ValueRange,
    },
    /// A value outside a set that is not a range of numbers.
    #[error("must be {expected}, but is {value}")]
    Invalid {
        /// The value.
        value: String,
        /// Description of the accepted values.
        expected: &'static str,
    },
    /// A table of roles that does not fit its environment.
    #[error("{problem}")]
    Roles {
        /// What is wrong.
        problem: String,
    },
    /// A key that cannot be set together with another one.
    #[error("cannot be combined with `{other}`")]
    #[diagnostic(help("remove one of the two"))]
    Conflict {
        /// The other key.
        other: &'static str,
    },
    /// A key that has no effect under the present value of another one.
    #[error("has no effect unless `{other} = {value}`")]
    #[diagnostic(help("remove it, or set `{other} = {value}`"))]
    Unused {
        /// The other key.
        other: &'static str,
        /// The value of the other key that would give this one an effect.
        value: &'static str,
    },
}

impl SettingProblem {
    /// Reports the problem for a key.
    pub fn at(self, key: &'static str) -> SettingError {
        SettingError { key, problem: self }
    }
}

/// A range of accepted numbers, for checks and for their messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueRange {
    min: Bound<f64>,
    max: Bound<f64>,
    /// The key whose value is the upper bound, if any.
    max_key: Option<&'static str>,
}

impl ValueRange {
    /// `min..=max`.
    pub fn between(min: f64, max: f64) -> Self {
        Self { min: Bound::Included(min), max: Bound::Included(max), max_key: None }
    }

    /// `min..`.
    pub fn at_least(min: f64) -> Self {
        Self { min: Bound::Included(min), max: Bound::Unbounded, max_key: None }
    }

    /// `..=max`.
    pub fn at_most(max: f64) -> Self {
        Self { min: Bound::Unbounded, max: Bound::Included(max), max_key: None }
    }

    /// `min..max`, without the upper bound itself.
    pub fn from_below(min: f64, max: f64) -> Self {
        Self { min: Bound::Included(min), max: Bound::Excluded(max), max_key: None }
    }

    /// Greater than `min`, and at most `max`.
    pub fn above(min: f64, max: f64) -> Self {
        Self { min: Bound::Excluded(min), max: Bound::Included(max), max_key: None }
    }

    /// The same range, whose upper bound is the value of another key.
    #[must_use]
    pub fn max_from(self, key: &'static str) -> Self {
        Self { max_key: Some(key), ..self }
    }

    /// Checks a value. NaN is in no range.
    pub fn check(self, key: &'static str, value: f64) -> Result<(), SettingError> {
        let above = match self.min {
            Bound::Included(min) => value >= min,
            Bound::Excluded(min) => value > min,
            Bound::Unbounded => !value.is_nan(),
        };
        let below = match self.max {
            Bound::Included(max) => value <= max,
            Bound::Excluded(max) => value < max,
            Bound::Unbounded => !value.is_nan(),
        };
        if above && below { Ok(()) } else { Err(SettingProblem::OutOfRange { value, range: self }.at(key)) }
    }
}

impl fmt::Display for ValueRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (Bound::Included(min), Bound::Included(max)) => match self.max_key {
                Some(key) => write!(f, "between {min} and `{key}` ({max})"),
                None => write!(f, "between {min} and {max}"),
            },
            (min, max) => {
                let joint = match (min, max) {
                    (Bound::Unbounded, _) | (_, Bound::Unbounded) => "",
                    _ => " and ",
                };
                match min {
                    Bound::Included(min) => write!(f, "at least {min}{joint}")?,
                    Bound::Excluded(min) => write!(f, "above {min}{joint}")?,
                    Bound::Unbounded => {}
                }
                match max {
                    Bound::Included(max) => write!(f, "at most {max}"),
                    Bound::Excluded(max) => write!(f, "below {max}"),
                    Bound::Unbounded => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(range: ValueRange, value: f64) -> Option<String> {
        range.check("key", value).err().map(|error| error.to_string())
    }

    #[test]
    fn messages_name_key_range_and_value() {
        let said = |range, value| message(range, value).unwrap_or_default();
        assert_eq!(said(ValueRange::between(1.0, 8.0), 9.0), "`key`: must be between 1 and 8, but is 9");
        let limited = ValueRange::between(1.0, 2.0).max_from("max_digits");
        assert_eq!(said(limited, 3.0), "`key`: must be between 1 and `max_digits` (2), but is 3");
        assert_eq!(said(ValueRange::at_least(1.0), 0.0), "`key`: must be at least 1, but is 0");
        assert_eq!(said(ValueRange::at_most(8.0), 9.0), "`key`: must be at most 8, but is 9");
        assert_eq!(
            said(ValueRange::from_below(0.0, 1.0), 1.0),
            "`key`: must be at least 0 and below 1, but is 1"
        );
        assert_eq!(
            said(ValueRange::above(0.0, 60.0), 0.0),
            "`key`: must be above 0 and at most 60, but is 0"
        );
        assert_eq!(said(ValueRange::at_least(0.0), f64::NAN), "`key`: must be at least 0, but is NaN");
    }

    #[test]
    fn bounds_are_in_the_range_unless_excluded() {
        assert_eq!(message(ValueRange::between(1.0, 8.0), 8.0), None);
        assert_eq!(message(ValueRange::from_below(0.0, 1.0), 0.0), None);
        assert_eq!(message(ValueRange::above(0.0, 60.0), 60.0), None);
        assert!(message(ValueRange::at_most(1.0), f64::NAN).is_some());
    }
}
