use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A test case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Case {
    /// The program reads and writes text.
    Text {
        /// Standard input.
        #[serde(default)]
        stdin: String,
        /// Expected standard output.
        stdout: String,
    },
    /// A function of the program is called.
    Call {
        /// Its name, or that of a method of class `Solution`.
        call: String,
        /// Its arguments.
        arguments: Vec<Value>,
        /// Expected result.
        expected: Value,
    },
    /// Statements, of which none may fail.
    Assertion {
        /// Python code, such as `assert f(2) == 4`.
        assertion: String,
    },
    /// Functions whose names begin with `test`, of which none may fail.
    Pytest {
        /// Python code. The program is module `solution`, and its names are known.
        pytest: String,
    },
}

/// Tests of a row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// A value that is not a list.
    #[error("the tests are not a list")]
    NotAList,
    /// An empty list.
    #[error("there are no tests")]
    Empty,
    /// A test without the fields of any kind.
    #[error("test {index} is not a test case: {text}")]
    Unknown {
        /// Index in the list.
        index: usize,
        /// Its beginning.
        text: String,
    },
}

/// Reads the test cases of a row: a list, or its JSON as text.
pub fn cases(value: &Value) -> Result<Vec<Case>, CaseError> {
    let parsed = match value {
        Value::String(text) => serde_json::from_str(text).map_err(|_| CaseError::NotAList)?,
        value => value.clone(),
    };
    let Value::Array(list) = parsed else { return Err(CaseError::NotAList) };
    if list.is_empty() {
        return Err(CaseError::Empty);
    }
    let read = |(index, value): (usize, Value)| {
        let text = value.to_string().chars().take(100).collect();
        serde_json::from_value(value).map_err(|_| CaseError::Unknown { index, text })
    };
    list.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_told_by_their_fields() {
        let list = json!([
            {"stdin": "1", "stdout": "2"},
            {"stdout": "2"},
            {"call": "f", "arguments": [1], "expected": 2},
            {"assertion": "assert f(1) == 2"},
            {"pytest": "def test(): pass"},
        ]);
        let read = cases(&list).unwrap();
        assert_eq!(read[1], Case::Text { stdin: String::new(), stdout: "2".to_owned() });
        assert!(matches!(&read[2], Case::Call { call, .. } if call == "f"));
        assert_eq!(cases(&json!(list.to_string())).unwrap(), read, "as text");
        assert_eq!(cases(&json!([])), Err(CaseError::Empty));
        assert_eq!(cases(&json!({"stdout": "2"})), Err(CaseError::NotAList));
        let unknown = cases(&json!([{"stdout": "2"}, {"stdout": "2", "other": 1}]));
        assert!(matches!(unknown, Err(CaseError::Unknown { index: 1, .. })), "{unknown:?}");
    }
}
