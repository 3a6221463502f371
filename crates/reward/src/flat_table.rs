//! A component as a flat table: `kind`, `name`, `weight` and `domains`, and the keys of the kind.
//!
//! The keys of the kind are read by its own settings, from the table itself, so that an error is reported at the key. A key
//! of another kind and one of none are different mistakes: one has no effect, the other is misspelt.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::{Error as Message, MapAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::kind::{KindName, KindTable, key_lists, read};
use crate::{ComponentSettings, DomainSet};

/// Keys that all kinds share.
const COMMON: [&str; 4] = ["kind", "name", "weight", "domains"];

/// The keys of all kinds, each once.
static ALL: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut all = COMMON.to_vec();
    for key in key_lists().into_iter().flatten() {
        if !all.contains(key) {
            all.push(key);
        }
    }
    all
});

impl<'de> Deserialize<'de> for ComponentSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = ComponentSettings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ComponentSettings, A::Error> {
        let mut common = Common::default();
        // Keys before `kind` wait for the kind.
        let mut early = Vec::new();
        let kind: KindName = loop {
            match map.next_key::<String>()? {
                None => return Err(A::Error::missing_field("kind")),
                Some(key) if key == "kind" => break map.next_value()?,
                Some(key) if common.read(&key, &mut map)? => {}
                Some(key) if ALL.contains(&key.as_str()) => early.push((key, map.next_value()?)),
                Some(key) => return Err(unknown(&key)),
            }
        };
        early.reverse();
        let kind = read(kind, OwnKeys { map, early, given: None, common: &mut common, kind: "", keys: &[] })?;
        Ok(ComponentSettings {
            name: common.name.unwrap_or_else(|| kind.name().to_owned()),
            weight: common.weight.unwrap_or(1.0),
            domains: common.domains.unwrap_or_default(),
            kind,
        })
    }
}

fn unknown<E: Error>(key: &str) -> E {
    E::unknown_field(key, ALL.as_slice())
}

/// The values of the keys that all kinds share.
#[derive(Default)]
struct Common {
    name: Option<String>,
    weight: Option<f64>,
    domains: Option<DomainSet>,
}

impl Common {
    /// Reads the value of a key; false if it belongs to the kind.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "name" => self.name = map.next_value()?,
            "weight" => self.weight = map.next_value()?,
            "domains" => self.domains = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The keys of a table that belong to its kind.
pub(crate) struct OwnKeys<'c, A> {
    map: A,
    /// Keys that were read before the kind was known, last one first.
    early: Vec<(String, Value)>,
    /// Key and value of the early key that is being read.
    given: Option<(String, Value)>,
    common: &'c mut Common,
    kind: &'static str,
    keys: &'static [&'static str],
}

impl<'de, A: MapAccess<'de>> OwnKeys<'_, A> {
    /// Reads the settings of a kind.
    pub(crate) fn read<T: Deserialize<'de>>(
        self,
        kind: &'static str,
        keys: &'static [&'static str],
    ) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(Self { kind, keys, ..self }))
    }

    /// The error for a key of another kind.
    fn check(&self, key: &str) -> Result<(), A::Error> {
        if self.keys.contains(&key) {
            return Ok(());
        }
        if !ALL.contains(&key) {
            return Err(unknown(key));
        }
        let message = Message::unknown_field(key, self.keys);
        Err(A::Error::custom(format_args!("{message} (keys of the `{}` reward)", self.kind)))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for OwnKeys<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.given = self.early.pop();
        let key = match &self.given {
            Some((key, _)) => key.clone(),
            None => loop {
                let Some(key) = self.map.next_key::<String>()? else { return Ok(None) };
                if !self.common.read(&key, &mut self.map)? {
                    break key;
                }
            },
        };
        self.check(&key)?;
        let key: StrDeserializer<'_, A::Error> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        match self.given.take() {
            Some((key, value)) => {
                seed.deserialize(value).map_err(|e| A::Error::custom(format_args!("`{key}`: {e}")))
            }
            None => self.map.next_value_seed(seed),
        }
    }
}

impl Serialize for ComponentSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind.name())?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("weight", &self.weight)?;
        if self.domains != DomainSet::All {
            map.serialize_entry("domains", &self.domains)?;
        }
        if let Value::Object(keys) = self.kind.to_value().map_err(S::Error::custom)? {
            for (key, value) in keys {
                map.serialize_entry(&key, &value)?;
            }
        }
        map.end()
    }
}

/// The flat table as a schema: one alternative per kind.
impl JsonSchema for ComponentSettings {
    fn schema_name() -> Cow<'static, str> {
        "ComponentSettings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Table::json_schema(generator)
    }
}

/// One component of the reward.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Table {
    /// Name, as in the metric `reward/<name>`. Default: the kind.
    name: Option<String>,
    /// Weight in the sum. Default: 1. With 0 the component is reported without effect on the reward.
    weight: Option<f64>,
    /// Domains of the tasks that it judges, such as `["math", "gsm8k"]`. Default: all.
    domains: Option<Vec<String>>,
    #[serde(flatten)]
    kind: KindTable,
}
