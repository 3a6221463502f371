//! Strict reading of JSON objects: every field is read, accepted by name or an error that names it.

use serde_json::{Map, Value};

use crate::problem::{Problem, shortened};

/// The fields of an object that have not been read yet. A field that is null counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    object: Map<String, Value>,
    /// Path of the object in the request, with a dot at its end; empty for the request itself.
    path: String,
}

impl Fields {
    /// The fields of a request.
    pub(crate) fn of_request(body: &[u8]) -> Result<Self, Problem> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok(Self { object, path: String::new() }),
            Ok(_) => Err(Problem::invalid("the body must be a JSON object")),
            Err(error) => Err(Problem::invalid(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The fields of a value at a path.
    pub(crate) fn of(value: Value, path: &str) -> Result<Self, Problem> {
        match value {
            Value::Object(object) => Ok(Self { object, path: format!("{path}.") }),
            _ => Err(Problem::field(path, "must be an object")),
        }
    }

    /// Path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// An error of a field.
    pub(crate) fn problem(&self, name: &str, message: impl std::fmt::Display) -> Problem {
        Problem::field(&self.path(name), message)
    }

    /// Takes a field.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.object.remove(name).filter(|value| !value.is_null())
    }

    /// A field that has not been taken.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub(crate) fn require(&mut self, name: &str) -> Result<Value, Problem> {
        self.take(name).ok_or_else(|| self.problem(name, "is missing"))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.problem(name, "must be a string")),
        }
    }

    pub(crate) fn required_text(&mut self, name: &str) -> Result<String, Problem> {
        self.text(name)?.ok_or_else(|| self.problem(name, "is missing"))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.problem(name, "must be true or false")),
        }
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f32>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64().map(|number| number as f32)),
            Some(_) => Err(self.problem(name, "must be a number")),
        }
    }

    pub(crate) fn integer(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.problem(name, "must be an integer of at least 0")),
            },
        }
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(self.problem(name, "must be an array")),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(self.problem(name, "must be an object")),
        }
    }

    /// The fields of an object in a field.
    pub(crate) fn fields(&mut self, name: &str) -> Result<Option<Self>, Problem> {
        let path = self.path(name);
        self.take(name).map(|value| Self::of(value, &path)).transpose()
    }

    /// Accepts fields without effect on the answer.
    pub(crate) fn accept(&mut self, names: &[&str]) {
        for name in names {
            self.object.remove(*name);
        }
    }

    /// Accepts a field with one of the values that ask for what happens anyway.
    pub(crate) fn only(&mut self, name: &str, values: &[Value]) -> Result<(), Problem> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let number = value.as_f64();
        let is_same = |known: &Value| *known == value || (number.is_some() && known.as_f64() == number);
        if values.iter().any(is_same) {
            return Ok(());
        }
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        let expected = if values.is_empty() {
            "is not supported".to_owned()
        } else {
            format!("is only supported with {}", values.join(" or "))
        };
        Err(self.problem(name, expected))
    }

    /// Ends the reading: a field that is left is an error.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.object.iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => Err(self.problem(&shortened(name), "is not a field that this server knows")),
            None => Ok(()),
        }
    }
}
