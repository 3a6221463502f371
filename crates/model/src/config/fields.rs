//! Typed access to the fields of a JSON object, with errors that name file, field and value.

use std::path::Path;

use serde_json::{Map, Value};

use super::ConfigError;

/// Fields of one JSON object of a file. Absent and `null` are equivalent, as in `transformers`.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) map: &'a Map<String, Value>,
    pub(crate) path: &'a Path,
    /// Prefix of field names in errors: empty, or `rope_scaling.`.
    pub(crate) prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn wrong(&self, name: &str, expected: &'static str, value: &Value) -> ConfigError {
        ConfigError::Type {
            path: self.path.to_owned(),
            field: format!("{}{name}", self.prefix),
            expected,
            value: excerpt(value),
        }
    }

    pub(crate) fn missing(&self, name: &str) -> ConfigError {
        ConfigError::Missing { path: self.path.to_owned(), field: format!("{}{name}", self.prefix) }
    }

    pub(crate) fn unsupported(
        &self,
        name: &str,
        value: &Value,
        reason: &'static str,
        hint: &'static str,
    ) -> ConfigError {
        ConfigError::Unsupported {
            path: self.path.to_owned(),
            field: format!("{}{name}", self.prefix),
            value: excerpt(value),
            reason,
            hint,
        }
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &'static str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        self.get(name)
            .map(|value| convert(value).ok_or_else(|| self.wrong(name, expected, value)))
            .transpose()
    }

    pub(crate) fn count(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        self.read(name, "a whole number", |v| v.as_u64().and_then(|v| usize::try_from(v).ok()))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        self.read(name, "a number", Value::as_f64)
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ConfigError> {
        self.read(name, "a string", Value::as_str)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
        self.read(name, "an object", Value::as_object)
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ConfigError> {
        self.read(name, "a list", Value::as_array)
    }

    pub(crate) fn token_id(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        self.read(name, "a token id", token_id)
    }

    /// A single id, a list of ids, or none.
    pub(crate) fn token_ids(&self, name: &str) -> Result<Vec<u32>, ConfigError> {
        let ids = self.read(name, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(token_id).collect(),
            id => token_id(id).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

/// A value for a message: at most this many characters, since a file may contain anything.
const EXCERPT: usize = 200;

fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}
