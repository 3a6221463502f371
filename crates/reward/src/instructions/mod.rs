//! Instructions whose observance a program can check, as in IFEval.

mod check;
mod text;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::extract::after_reasoning;
use crate::row::{RowProblem, json, json_field};
use crate::verifier::{Truncated, reference};
use crate::{Assessment, Completion, JudgeError, Reward, Score};
use check::Check;

/// Verifies that an answer observes instructions, such as its number of words: the 25 checks of IFEval.
///
/// The checks of a task are an object such as `{"func_name": "validate_word_constraint", "N": 50, "quantifier": "at most"}`, or a list of
/// them. An empty answer observes none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Instructions {
    /// Field of the row with the checks. Default: the reference answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<String>,
    /// Value of an answer that observes some of the instructions.
    pub score: Score,
    /// Treatment of truncated completions.
    pub truncated: Truncated,
}

impl Instructions {
    fn checks(&self, completion: &Completion<'_>) -> Result<Vec<Check>, JudgeError> {
        let given = match &self.checks {
            Some(field) => json_field(completion, field),
            None => json(reference(completion)?),
        };
        given.and_then(|given| checks(&given)).map_err(|problem| problem.of(completion))
    }
}

/// Reads a check or a list of checks.
fn checks(given: &Value) -> Result<Vec<Check>, RowProblem> {
    match given {
        Value::Object(arguments) => Ok(vec![Check::read(arguments)?]),
        Value::Array(list) if !list.is_empty() => {
            list.iter().map(|check| Check::read(check.as_object().ok_or(RowProblem::NotChecks)?)).collect()
        }
        _ => Err(RowProblem::NotChecks),
    }
}

impl Reward for Instructions {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let checks = self.checks(completion)?;
        let answer = after_reasoning(completion.text).map_or("", str::trim);
        let passed =
            if answer.is_empty() { 0 } else { checks.iter().filter(|check| check.accepts(answer)).count() };
        let is_solved = passed == checks.len();
        let fails = self.truncated == Truncated::Fail && completion.stop.is_truncated();
        if fails {
            return Ok(Assessment::outcome(false, !answer.is_empty()));
        }
        Ok(Assessment {
            value: Some(self.score.of(passed, checks.len())),
            solved: Some(is_solved),
            parsed: Some(!answer.is_empty()),
        })
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn reads_answer(&self) -> bool {
        self.checks.is_none()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_checks_are_errors_that_name_them() {
        for (given, expected) in [
            (
                json!({"func_name": "validate_rhyme"}),
                "no check is named \"validate_rhyme\"; the checks are verify_keywords,",
            ),
            (json!([{"func_name": "validate_title"}, {"func_name": "x"}]), "no check is named \"x\""),
            (json!({"N": 3}), "checks are an object with `func_name`"),
            (json!([]), "checks are an object with `func_name`"),
            (json!(["validate_title"]), "checks are an object with `func_name`"),
            (json!(3), "checks are an object with `func_name`"),
            (
                json!({"func_name": "verify_bullet_points", "N": null}),
                "`N` of check `verify_bullet_points` must be a whole number, 0 or larger, but is missing",
            ),
            (json!({"func_name": "verify_bullet_points", "N": -1}), "but is -1"),
            (
                json!({"func_name": "verify_letter_frequency", "letter": "ab", "N": 1}),
                "must be one character, but is \"ab\"",
            ),
            (
                json!({"func_name": "validate_word_constraint", "N": 1, "quantifier": "exactly"}),
                "must be \"at least\", \"around\" or \"at most\", but is \"exactly\"",
            ),
            (json!({"func_name": "validate_response_language", "language": "so"}), "but is \"so\""),
            (
                json!({"func_name": "validate_paragraphs", "N": 2, "first_word": "a", "i": 3}),
                "`i` of check `validate_paragraphs` must be from 1 to `N`, but is 3",
            ),
            (
                json!({"func_name": "verify_keywords", "keyword_list": []}),
                "must be a list of texts, but is []",
            ),
        ] {
            let error = checks(&given).unwrap_err().to_string();
            assert!(error.contains(expected), "{given}: {error}");
        }
    }
}
