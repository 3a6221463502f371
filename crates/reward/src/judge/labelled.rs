//! Labelled responses: one JSON object a line.

use rloom_core::PromptSource;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::calibration::CalibrationError;
use super::prompt::Shown;
use super::reward::question;

/// Responses to a question, with a label each: true for a good one. Of a pair, the better one has the label true.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Labelled {
    pub(crate) question: String,
    /// Empty if there is none.
    pub(crate) reference: String,
    pub(crate) responses: Vec<String>,
    pub(crate) labels: Vec<bool>,
    /// Instructions of the row.
    pub(crate) rubric: Option<String>,
}

/// Fields that all rows have. Further fields are not read.
#[derive(Deserialize)]
struct Row {
    prompt: Prompt,
    #[serde(default)]
    answer: String,
    #[serde(flatten)]
    own: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Messages(Vec<rloom_core::ChatMessage>),
}

#[derive(Deserialize)]
struct Single {
    response: String,
    label: Label,
}

#[derive(Deserialize)]
struct Pair {
    response_a: String,
    response_b: String,
    label: Better,
}

#[derive(Deserialize)]
struct Group {
    responses: Vec<String>,
    labels: Vec<Label>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Label {
    Truth(bool),
    Number(u8),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Better {
    A,
    B,
    Tie,
}

impl Label {
    fn read(&self) -> Result<bool, String> {
        match self {
            Self::Truth(label) => Ok(*label),
            Self::Number(label @ (0 | 1)) => Ok(*label == 1),
            Self::Number(_) => Err("`label` must be true, false, 1 or 0".to_owned()),
        }
    }
}

/// Reads the rows for a judge that sees these responses.
pub(crate) fn read(
    text: &str,
    shown: Shown,
    rubric_field: Option<&str>,
) -> Result<Vec<Labelled>, CalibrationError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let rows = lines.map(|(index, line)| {
        row(line, shown, rubric_field).map_err(|reason| CalibrationError::Row { line: index + 1, reason })
    });
    let rows: Vec<Labelled> = rows.collect::<Result<_, _>>()?;
    if rows.is_empty() { Err(CalibrationError::NoRows) } else { Ok(rows) }
}

fn row(line: &str, shown: Shown, rubric_field: Option<&str>) -> Result<Labelled, String> {
    let Row { prompt, answer, own } = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let rubric = match rubric_field {
        None => None,
        Some(field) => {
            let text = own.get(field).and_then(Value::as_str);
            Some(
                text.ok_or_else(|| format!("no text in the field `{field}`, which `rubric_field` names"))?
                    .to_owned(),
            )
        }
    };
    let own = Value::Object(own);
    let (responses, labels) = match shown {
        Shown::One => {
            let Single { response, label } = fields(own)?;
            (vec![response], vec![label.read()?])
        }
        Shown::Pair => {
            let Pair { response_a, response_b, label } = fields(own)?;
            let labels = vec![matches!(label, Better::A), matches!(label, Better::B)];
            (vec![response_a, response_b], labels)
        }
        Shown::Group => {
            let Group { responses, labels } = fields(own)?;
            if responses.len() != labels.len() || responses.is_empty() {
                return Err("`responses` and `labels` must be lists of the same length".to_owned());
            }
            (responses, labels.iter().map(Label::read).collect::<Result<_, _>>()?)
        }
    };
    let prompt = match prompt {
        Prompt::Text(text) => PromptSource::Text(text),
        Prompt::Messages(messages) => PromptSource::Messages(messages),
    };
    let reference = answer.trim().to_owned();
    Ok(Labelled { question: question(&prompt), reference, responses, labels, rubric })
}

fn fields<T: serde::de::DeserializeOwned>(own: Value) -> Result<T, String> {
    serde_json::from_value(own).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read() {
        let one =
            r#"{"prompt": "1+1", "response": "2", "label": 1, "answer": " 2 ", "guide": "g", "source": "x"}"#;
        let rows = read(&format!("\n{one}\n"), Shown::One, Some("guide")).unwrap();
        let expected = Labelled {
            question: "1+1".into(),
            reference: "2".into(),
            responses: vec!["2".into()],
            labels: vec![true],
            rubric: Some("g".into()),
        };
        assert_eq!(rows, [expected]);
        let pair = r#"{"prompt": [{"role": "user", "content": "q"}], "response_a": "x", "response_b": "y", "label": "tie"}"#;
        assert_eq!(read(pair, Shown::Pair, None).unwrap()[0].labels, [false, false]);
        let group = r#"{"prompt": "q", "responses": ["x", "y"], "labels": [false, true]}"#;
        assert_eq!(read(group, Shown::Group, None).unwrap()[0].labels, [false, true]);
    }

    #[test]
    fn bad_rows_name_their_line() {
        let good = r#"{"prompt": "q", "response": "r", "label": true}"#;
        for (bad, expected) in [
            (r#"{"prompt": "q", "label": true}"#, "missing field `response`"),
            (r#"{"prompt": "q", "response": "r", "label": 2}"#, "`label` must be"),
            (r#"{"prompt": "q", "response": "r"}"#, "missing field `label`"),
            (r#"{"response": "r", "label": 1}"#, "missing field `prompt`"),
            ("{", "EOF"),
        ] {
            let error = read(&format!("{good}\n{bad}"), Shown::One, None).unwrap_err().to_string();
            assert!(
                error.starts_with("line 2 of the labelled data: ") && error.contains(expected),
                "{error}"
            );
        }
        assert_eq!(read(" \n", Shown::One, None), Err(CalibrationError::NoRows));
        assert!(read(good, Shown::One, Some("guide")).is_err());
        assert!(read(r#"{"prompt": "q", "responses": ["x"], "labels": []}"#, Shown::Group, None).is_err());
    }
}
