//! Texts in settings, such as the name of a function.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::keys::{KeyType, Setting, Value};
use super::layer::plain;

/// Every text there is. Settings are few, so their texts are kept for the life of the process, which lets settings be
/// copied like numbers.
static TEXTS: LazyLock<Mutex<BTreeSet<&'static str>>> = LazyLock::new(Mutex::default);

/// A text of a recipe. Equal texts share memory that is never freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text(&'static str);

impl Text {
    /// The setting with this text.
    pub fn new(text: &str) -> Self {
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = texts.get(text) {
            return Self(known);
        }
        let kept: &'static str = Box::leak(text.into());
        texts.insert(kept);
        Self(kept)
    }

    /// The text.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(&String::deserialize(deserializer)?))
    }
}

impl JsonSchema for Text {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

plain!(Text, Value::Text);

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::Text(text)
    }
}

impl Setting for Text {
    const TYPE: KeyType = KeyType::Text;

    fn read(value: Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text) } else { None }
    }

    fn write(self) -> Option<Value> {
        Some(Value::Text(self))
    }
}
