//! Exact arithmetic.

use std::time::Duration;

use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value, json};

use crate::fraction::Fraction;
use crate::source::text;
use crate::{Output, Source, ToolError};

/// Longest expression in bytes.
const LONGEST: usize = 4096;
/// Most parentheses and signs around a number.
const DEPTH: usize = 64;
const PARAMETER: &str = "expression";

/// A calculator.
#[derive(Debug)]
pub(crate) struct Calculator {
    tool: ToolDeclaration,
}

impl Calculator {
    pub(crate) fn new(name: &str) -> Self {
        let description = "Computes an arithmetic expression exactly: + - * / // % ** and parentheses.";
        Self {
            tool: ToolDeclaration {
                name: name.to_owned(),
                description: description.to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": { PARAMETER: { "type": "string", "description": "The expression, such as (3 + 4) * 1.5" } },
                    "required": [PARAMETER],
                }),
            },
        }
    }
}

impl Source for Calculator {
    fn tools(&self) -> &[ToolDeclaration] {
        std::slice::from_ref(&self.tool)
    }

    fn call(&self, _: &str, arguments: &Map<String, Value>, _: Duration) -> Result<Output, ToolError> {
        Ok(match compute(text(arguments, PARAMETER)) {
            Ok(value) => Output::ok(value.to_string()),
            Err(problem) => Output::error(format!("error: {problem}")),
        })
    }
}

/// Computes an expression.
fn compute(expression: &str) -> Result<Fraction, &'static str> {
    if expression.len() > LONGEST {
        return Err("the expression is too long");
    }
    let mut parser = Parser { rest: expression, depth: 0 };
    let value = parser.sum()?;
    parser.skip_spaces();
    if parser.rest.is_empty() { Ok(value) } else { Err("an operator was expected") }
}

struct Parser<'t> {
    rest: &'t str,
    depth: usize,
}

impl Parser<'_> {
    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes one of the operators, longer ones first.
    fn take<'o>(&mut self, operators: &[&'o str]) -> Option<&'o str> {
        self.skip_spaces();
        let found = operators.iter().copied().find(|operator| self.rest.starts_with(operator))?;
        self.rest = &self.rest[found.len()..];
        Some(found)
    }

    fn sum(&mut self) -> Result<Fraction, &'static str> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(&["+", "-", "−"]) {
            let right = self.product()?;
            value = if operator == "+" { value.plus(&right)? } else { value.minus(&right)? };
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<Fraction, &'static str> {
        let mut value = self.signed()?;
        loop {
            // A power belongs to `power`.
            self.skip_spaces();
            if self.rest.starts_with("**") {
                return Ok(value);
            }
            let Some(operator) = self.take(&["//", "*", "/", "%", "×", "·", "÷"]) else {
                return Ok(value);
            };
            let right = self.signed()?;
            value = match operator {
                "//" => value.floored_over(&right)?,
                "%" => value.modulo(&right)?,
                "/" | "÷" => value.over(&right)?,
                _ => value.times(&right)?,
            };
        }
    }

    fn signed(&mut self) -> Result<Fraction, &'static str> {
        match self.take(&["-", "−", "+"]) {
            Some(sign) => {
                let value = self.nested(Self::signed)?;
                Ok(if sign == "+" { value } else { value.negated() })
            }
            None => self.power(),
        }
    }

    fn power(&mut self) -> Result<Fraction, &'static str> {
        let base = self.atom()?;
        match self.take(&["**", "^"]) {
            Some(_) => base.power(&self.nested(Self::signed)?),
            None => Ok(base),
        }
    }

    fn atom(&mut self) -> Result<Fraction, &'static str> {
        if self.take(&["("]).is_some() {
            let value = self.nested(Self::sum)?;
            return if self.take(&[")"]).is_some() {
                Ok(value)
            } else {
                Err("a closing parenthesis is missing")
            };
        }
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        if number.is_empty() { Err("a number was expected") } else { Fraction::decimal(number) }
    }

    fn nested(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<Fraction, &'static str>,
    ) -> Result<Fraction, &'static str> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err("the expression is nested too deeply");
        }
        let value = parse(self);
        self.depth -= 1;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::compute;

    /// Expected values from Python's `fractions`.
    #[test]
    fn expressions_are_computed_exactly() {
        for (expression, expected) in [
            ("12*34", "408"),
            (" ( 3 + 4 ) * 1.5 ", "10.5"),
            ("1/3", "1/3 = 0.33333333..."),
            ("-1/3", "-1/3 = -0.33333333..."),
            ("0.1+0.2", "0.3"),
            ("2**10", "1024"),
            ("2**-2", "0.25"),
            ("-2**2", "-4"),
            ("(-2)^2", "4"),
            ("2**3**2", "512"),
            ("7//2", "3"),
            ("-7//2", "-4"),
            ("-7 % 3", "2"),
            ("7.5 % 2", "1.5"),
            ("8 - 3 - 2", "3"),
            ("100/7/2", "50/7 = 7.14285714..."),
            ("--3", "3"),
            ("6×7÷2−1", "20"),
            ("99999999999*99999999999", "9999999999800000000001"),
        ] {
            assert_eq!(
                compute(expression).map(|value| value.to_string()).as_deref(),
                Ok(expected),
                "{expression}"
            );
        }
    }

    #[test]
    fn everything_else_is_a_result_that_says_so() {
        let (deep, long) = ("(".repeat(5000), "1+".repeat(4000));
        let signs = "-".repeat(1000);
        for (expression, problem) in [
            ("", "a number was expected"),
            ("1/0", "division by zero"),
            ("1 % 0", "division by zero"),
            ("0**-1", "division by zero"),
            ("2**0.5", "an exponent must be a whole number"),
            ("9**9**9", "the number is too large"),
            ("1..2", "a number was expected"),
            ("(1", "a closing parenthesis is missing"),
            ("1 2", "an operator was expected"),
            ("__import__('os')", "a number was expected"),
            (deep.as_str(), "the expression is too long"),
            (&deep[..200], "the expression is nested too deeply"),
            (signs.as_str(), "the expression is nested too deeply"),
            (long.as_str(), "the expression is too long"),
        ] {
            assert_eq!(compute(expression), Err(problem), "{expression:.20}");
        }
    }
}
