//! Reading and writing of the flat table.
//!
//! Each value is read as the type of its key before the kind is known, so that misspelt keys and wrong types are reported
//! at the right place in the file; the selected kind then rejects the keys of the others.

use std::fmt;
use std::sync::LazyLock;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, Visitor};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{EnvironmentSettings, KEYS, KindName, KindTable, from_given, read_value, to_given};

const KIND: &str = "kind";

/// `kind` and the keys of all kinds, each once.
static ALL_KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut keys = vec![KIND];
    for key in KEYS.iter().copied().flatten() {
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    keys
});

impl<'de> Deserialize<'de> for EnvironmentSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("EnvironmentSettings", &ALL_KEYS, Table)
    }
}

/// Reads the table.
struct Table;

impl<'de> Visitor<'de> for Table {
    type Value = EnvironmentSettings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EnvironmentSettings, A::Error> {
        let mut kind: Option<KindName> = None;
        let mut given = Map::new();
        while let Some(key) = map.next_key_seed(KnownKey)? {
            if given.contains_key(key) || (key == KIND && kind.is_some()) {
                return Err(A::Error::duplicate_field(key));
            }
            if key == KIND {
                kind = map.next_value()?;
            } else {
                let value = map.next_value_seed(ValueOf(key))?;
                given.insert(key.to_owned(), value);
            }
        }
        given.retain(|_, value| !value.is_null());
        from_given(kind.unwrap_or_default(), given)
    }
}

/// Reads one of [`ALL_KEYS`].
struct KnownKey;

impl<'de> DeserializeSeed<'de> for KnownKey {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for KnownKey {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<&'static str, E> {
        let known = ALL_KEYS.iter().copied().find(|key| *key == name);
        known.ok_or_else(|| E::unknown_field(name, &ALL_KEYS))
    }
}

/// Reads the value of a key.
struct ValueOf(&'static str);

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        read_value(self.0, deserializer)
    }
}

/// Deserialises the keys of one kind.
pub(super) fn from_own_keys<T: DeserializeOwned, E: Error>(
    given: Map<String, Value>,
    kind: &str,
) -> Result<T, E> {
    serde_json::from_value(Value::Object(given))
        .map_err(|e| E::custom(format_args!("{e} (keys of the `{kind}` environment)")))
}

impl Serialize for EnvironmentSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(KIND, self.name())?;
        if let Value::Object(keys) = to_given(self).map_err(S::Error::custom)? {
            for (key, value) in keys {
                map.serialize_entry(&key, &value)?;
            }
        }
        map.end()
    }
}

/// The flat table as a schema: one alternative per kind.
impl JsonSchema for EnvironmentSettings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EnvironmentSettings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        KindTable::json_schema(generator)
    }
}
