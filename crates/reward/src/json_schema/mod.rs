//! Documents in JSON that satisfy a schema.

mod compile;
mod validate;

pub use compile::SchemaError;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::extract::{Extract, after_reasoning};
use crate::fence::last_block;
use crate::row::json_field;
use crate::verifier::Truncated;
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward, RowProblem};
use compile::Schema;

/// Verifies that an answer is JSON that satisfies a schema. The JSON is the whole answer, else its last fenced block, else the text
/// between `<answer>` and `</answer>`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JsonDocument {
    /// The schema, for all tasks. Default: that of the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Map<String, Value>>,
    /// Field of the row with the schema, as an object or as text. Default: `schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_field: Option<String>,
    /// Treatment of truncated completions.
    pub truncated: Truncated,
}

/// Default of `schema_field`.
const FIELD: &str = "schema";

impl JsonDocument {
    pub(crate) fn validate(&self) -> Result<(), ComponentError> {
        if self.schema.is_some() && self.schema_field.is_some() {
            return Err(ComponentError::TwoSchemas);
        }
        self.compiled().map(|_| ())
    }

    fn compiled(&self) -> Result<Option<Schema>, ComponentError> {
        let Some(schema) = &self.schema else { return Ok(None) };
        Ok(Some(Schema::compile(&Value::Object(schema.clone()))?))
    }

    pub(crate) fn reward(&self) -> Result<JsonReward, ComponentError> {
        Ok(JsonReward {
            schema: self.compiled()?,
            field: self.schema_field.clone().unwrap_or_else(|| FIELD.to_owned()),
            truncated: self.truncated,
        })
    }
}

/// A reward with its compiled schema.
#[derive(Debug)]
pub(crate) struct JsonReward {
    schema: Option<Schema>,
    field: String,
    truncated: Truncated,
}

impl JsonReward {
    fn accepts(&self, document: &Value, completion: &Completion<'_>) -> Result<bool, JudgeError> {
        if let Some(schema) = &self.schema {
            return Ok(schema.accepts(document));
        }
        let own = json_field(completion, &self.field)
            .and_then(|schema| Schema::compile(&schema).map_err(RowProblem::from))
            .map_err(|problem| problem.of(completion))?;
        Ok(own.accepts(document))
    }
}

impl Reward for JsonReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let document = document(completion.text);
        let is_solved = self.accepts(document.as_ref().unwrap_or(&Value::Null), completion)?;
        let verdict = Assessment::outcome(is_solved && document.is_some(), document.is_some());
        Ok(self.truncated.apply(completion, verdict))
    }

    fn is_verifier(&self) -> bool {
        true
    }
}

/// The document in a completion.
fn document(text: &str) -> Option<Value> {
    let answer = after_reasoning(text)?;
    let parse = |text: &str| serde_json::from_str(text.trim()).ok();
    parse(answer).or_else(|| parse(last_block(answer).or_else(|| Extract::AnswerTag.find(answer))?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents() {
        for (text, expected) in [
            (r#" {"a": 1} "#, Some(json!({"a": 1}))),
            ("Here:\n```json\n{\"a\": 1}\n```\nDone.", Some(json!({"a": 1}))),
            ("```json\n1\n```\n```\n2\n```", Some(json!(2))),
            ("<think>1</think> <answer>[2]</answer>", Some(json!([2]))),
            // The last block decides, even if it is not JSON.
            ("```json\n1\n```\n```\nx\n```", None),
            ("{\"a\": 1", None),
            ("{\"a\": 1} and more", None),
            ("{'a': 1}", None),
            ("NaN", None),
            ("1e999", None),
            ("<think>1", None),
            ("", None),
        ] {
            assert_eq!(document(text), expected, "{text}");
        }
        // Nesting has a limit, so that no completion overflows the stack.
        assert_eq!(document(&"[".repeat(1_000_000)), None);
        assert_eq!(document(&format!("{}{}", "[".repeat(200), "]".repeat(200))), None);
    }
}
