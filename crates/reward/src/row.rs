//! Fields of a task's row that components read.

use serde_json::Value;

use crate::{Completion, JudgeError};

/// A row that a component cannot use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowProblem {
    /// A field that the row does not have.
    #[error("its row has no field `{field}`")]
    NoField {
        /// The field.
        field: String,
    },
    /// Text that is not JSON.
    #[error("{text:?} is not JSON: {reason}")]
    NotJson {
        /// Beginning of the text.
        text: String,
        /// The parser's error.
        reason: String,
    },
    /// Checks of another form.
    #[error("checks are an object with `func_name`, or a list of them")]
    NotChecks,
    /// A check that does not exist.
    #[error("no check is named {name:?}; the checks are {}", known.join(", "))]
    UnknownCheck {
        /// The name.
        name: String,
        /// Names of all checks.
        known: Vec<&'static str>,
    },
    /// An argument of a check that is missing or wrong.
    #[error("`{argument}` of check `{check}` must be {expected}, but is {found}")]
    Argument {
        /// The check.
        check: &'static str,
        /// The argument.
        argument: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The value.
        found: String,
    },
    /// A schema that cannot be used.
    #[error("its schema: {0}")]
    Schema(#[from] crate::SchemaError),
}

impl RowProblem {
    /// The error of the component.
    pub(crate) fn of(self, completion: &Completion<'_>) -> JudgeError {
        JudgeError::Row { task: completion.task.index, problem: Box::new(self) }
    }
}

/// Reads JSON from a text.
pub(crate) fn json(text: &str) -> Result<Value, RowProblem> {
    serde_json::from_str(text).map_err(|error| RowProblem::NotJson {
        text: text.chars().take(60).collect(),
        reason: error.to_string(),
    })
}

/// The value of a field; text is read as JSON.
pub(crate) fn json_field(completion: &Completion<'_>, field: &str) -> Result<Value, RowProblem> {
    match completion.task.extra.get(field) {
        None | Some(Value::Null) => Err(RowProblem::NoField { field: field.to_owned() }),
        Some(Value::String(text)) => json(text),
        Some(value) => Ok(value.clone()),
    }
}
