//! Equality of results.

use serde_json::Value;

/// Relative difference of numbers that count as equal.
const TOLERANCE: f64 = 1e-6;

/// True if the output is the expected one: line by line without spaces at the ends, or word by word where numbers with a
/// decimal point may differ slightly.
pub(super) fn same_text(found: &str, expected: &str) -> bool {
    let lines =
        |text: &str| text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    let (found, expected) = (lines(found), lines(expected));
    if found == expected {
        return true;
    }
    found.len() == expected.len()
        && found.iter().zip(&expected).all(|(found, expected)| same_line(found, expected))
}

fn same_line(found: &str, expected: &str) -> bool {
    let (mut found, mut expected) = (found.split_whitespace(), expected.split_whitespace());
    loop {
        match (found.next(), expected.next()) {
            (None, None) => return true,
            (Some(found), Some(expected)) if found == expected || same_decimal(found, expected) => {}
            _ => return false,
        }
    }
}

fn same_decimal(found: &str, expected: &str) -> bool {
    let is_decimal = |text: &str| text.contains('.') || text.contains('e') || text.contains('E');
    if !is_decimal(expected) {
        return false;
    }
    match (found.parse(), expected.parse()) {
        (Ok(found), Ok(expected)) => same_number(found, expected),
        _ => false,
    }
}

fn same_number(found: f64, expected: f64) -> bool {
    found == expected || (found - expected).abs() <= TOLERANCE * expected.abs().max(1.0)
}

/// True if the result is the expected one. Integers must be equal; if either is a decimal number, both may differ slightly.
pub(super) fn same_value(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Number(a), Value::Number(b)) => {
            if a.is_f64() || b.is_f64() {
                a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| same_number(a, b))
            } else {
                a == b
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same_value(a, b)))
        }
        (found, expected) => found == expected,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text() {
        assert!(same_text("1 2\n3", "1 2  \n3\n\n"));
        assert!(same_text("0.33333334", "0.3333333"));
        assert!(same_text("1  2", "1 2"));
        for (found, expected) in [
            ("1\n2", "1 2"),
            ("1", "1 2"),
            ("", "1"),
            ("1.0", "1"),
            ("0.34", "0.3333"),
            ("nan", "0.5"),
            ("12", "1"),
        ] {
            assert!(!same_text(found, expected), "{found} {expected}");
        }
        assert!(same_text("", ""));
    }

    #[test]
    fn values() {
        assert!(same_value(&json!([1, {"a": 0.1}]), &json!([1, {"a": 0.100_000_01}])));
        assert!(same_value(&json!(2), &json!(2.0)));
        for (found, expected) in [
            (json!(1), json!(2)),
            (json!([1]), json!([1, 2])),
            (json!(true), json!(1)),
            (json!("1"), json!(1)),
            (json!({"a": 1}), json!({"b": 1})),
            (json!(null), json!(0)),
        ] {
            assert!(!same_value(&found, &expected), "{found} {expected}");
        }
    }
}
