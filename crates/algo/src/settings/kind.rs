//! A choice among kinds with settings: `loss = "cispo"`, `loss = { kind = "cispo", weight_cap = 5.0 }`, or
//! `loss = { weight_cap = 4.0 }` to keep the preset's kind.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, MapAccess, Visitor},
    ser::SerializeMap,
};

use super::{
    Text,
    keys::{KeyInfo, KeyType, OutOfRange, Settings, Value},
    layer::Layer,
};
use crate::{AlgoError, WeightedLosses};

/// The key that names the kind.
const KIND: &str = "kind";
/// Capacity of the settings, above the number of keys of any kind.
const CAPACITY: usize = 16;

/// A closed set of kinds, each with its settings.
pub trait Kind: JsonSchema + Copy + PartialEq + fmt::Debug + 'static {
    /// The table's key below `[stage.algorithm]`.
    const TABLE: &'static str;
    /// Names of all kinds.
    const NAMES: &'static [&'static str];
    /// The kind of that name.
    fn named(name: &str) -> Option<Self>;
    /// Its name in a recipe.
    fn name(self) -> &'static str;
    /// Its settings.
    fn keys(self) -> &'static [KeyInfo];
    /// The kind with its default settings written out.
    fn defaults(self) -> KindSettings<Self>;
    /// The keys of all kinds, each once.
    fn all_keys() -> &'static AllKeys;
}

/// The keys of all kinds of a table.
#[derive(Debug)]
pub struct AllKeys {
    names: Vec<&'static str>,
    keys: Vec<TableKey>,
}

#[derive(Debug)]
struct TableKey {
    name: &'static str,
    /// Dotted, below `[stage.algorithm]`.
    path: String,
    value_type: KeyType,
}

impl AllKeys {
    pub(crate) fn new(table: &str, kinds: &[&'static [KeyInfo]]) -> Self {
        let mut keys: Vec<TableKey> = Vec::new();
        for key in kinds.iter().copied().flatten() {
            if !keys.iter().any(|known| known.name == key.name) {
                let path = format!("{table}.{}", key.name);
                keys.push(TableKey { name: key.name, path, value_type: key.value_type });
            }
        }
        let names = std::iter::once(KIND).chain(keys.iter().map(|key| key.name)).collect();
        Self { names, keys }
    }

    /// The names of all keys, `kind` first.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    fn get(&self, name: &str) -> Option<&TableKey> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// The dotted path of a key of `K`'s table.
pub(crate) fn path<K: Kind>(key: &str) -> &'static str {
    K::all_keys().get(key).map_or(K::TABLE, |key| &key.path)
}

/// The error for a setting of a kind in `K`'s table.
pub(crate) fn out_of_range<K: Kind>(OutOfRange { key, value, must, hint }: OutOfRange) -> AlgoError {
    AlgoError::out_of_range(path::<K>(key), value, must, hint)
}

/// Defines the kinds of a table: an enum whose variants have the names of their settings types. `$defaults` returns a kind
/// with its default settings written out.
macro_rules! kinds {
    (
        $(#[$about:meta])*
        $kinds:ident of $table:literal, $defaults:expr => { $($(#[doc = $doc:literal])+ $kind:ident = $name:literal,)+ }
    ) => {
        $crate::settings::choices::choices! {
            $(#[$about])*
            $kinds { $($(#[doc = $doc])+ $kind = $name,)+ }
        }

        impl $crate::settings::kind::Kind for $kinds {
            const TABLE: &'static str = $table;
            const NAMES: &'static [&'static str] = Self::NAMES;

            fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.name() == name)
            }

            fn name(self) -> &'static str {
                self.name()
            }

            fn keys(self) -> &'static [$crate::settings::keys::KeyInfo] {
                match self { $(Self::$kind => <$kind as $crate::settings::keys::Settings>::KEYS,)+ }
            }

            fn defaults(self) -> $crate::settings::kind::KindSettings<Self> {
                let defaults: fn(Self) -> $crate::settings::kind::KindSettings<Self> = $defaults;
                defaults(self)
            }

            fn all_keys() -> &'static $crate::settings::kind::AllKeys {
                static KEYS: std::sync::LazyLock<$crate::settings::kind::AllKeys> =
                    std::sync::LazyLock::new(|| $crate::settings::kind::AllKeys::new(
                        $table,
                        &[$(<$kind as $crate::settings::keys::Settings>::KEYS,)+],
                    ));
                &KEYS
            }
        }
    };
}
pub(crate) use kinds;

/// A kind and the settings that a recipe or a preset gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KindSettings<K> {
    /// The kind; `None` keeps that of the preset.
    pub kind: Option<K>,
    values: [Option<(&'static str, Value)>; CAPACITY],
}

impl<K: Kind> Default for KindSettings<K> {
    fn default() -> Self {
        Self { kind: None, values: [None; CAPACITY] }
    }
}

impl<K: Kind> From<K> for KindSettings<K> {
    fn from(kind: K) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }
}

impl<K: Kind> KindSettings<K> {
    /// The settings that are given, in order.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.values.iter().map_while(|entry| *entry)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.values().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Sets a key and returns the settings; a key of no kind is ignored.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        if let Some(known) = K::all_keys().get(key) {
            self.set(known.name, value.into());
        }
        self
    }

    /// Sets a key; false if there is no room.
    fn set(&mut self, key: &'static str, value: Value) -> bool {
        let slot = self.values.iter().position(|entry| entry.is_none_or(|(name, _)| name == key));
        let Some(slot) = slot else { return false };
        self.values[slot] = Some((key, value));
        true
    }

    /// The settings of a kind: its defaults with the given values over them.
    pub(crate) fn apply<S: Settings>(&self) -> S {
        let mut settings = S::default();
        for (key, value) in self.values() {
            settings.set(key, value);
        }
        settings
    }

    /// A kind with all settings that it reads.
    pub(crate) fn resolved<S: Settings>(kind: K, settings: &S, ignored: &[&str]) -> Self {
        let mut resolved = Self::from(kind);
        for key in S::KEYS.iter().filter(|key| !ignored.contains(&key.name)) {
            if let Some(value) = settings.get(key.name) {
                resolved.set(key.name, value);
            }
        }
        resolved
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl<K: Kind> Layer for KindSettings<K> {
    /// Another kind has its own defaults: nothing of the one below applies to it.
    fn over(self, below: Self) -> Self {
        if self.kind.is_some() && self.kind != below.kind {
            return self;
        }
        let mut merged = below;
        for (key, value) in self.values() {
            merged.set(key, value);
        }
        merged
    }

    fn collect(&self, name: &'static str, keys: &mut Vec<(&'static str, Value)>) {
        if let Some(kind) = self.kind {
            keys.push((name, Value::Name(kind.name())));
        }
        keys.extend(self.values().map(|(key, value)| (path::<K>(key), value)));
    }

    fn only(self, name: &'static str, wanted: &str) -> Option<Self> {
        if name == wanted {
            return self.kind.map(Self::from);
        }
        let (key, value) = self.values().find(|(key, _)| path::<K>(key) == wanted)?;
        Some(Self::default().with(key, value))
    }
}

impl<K: Kind> Serialize for KindSettings<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let (Some(kind), None) = (self.kind, self.values[0]) {
            return serializer.serialize_str(kind.name());
        }
        let mut map = serializer.serialize_map(None)?;
        if let Some(kind) = self.kind {
            map.serialize_entry(KIND, kind.name())?;
        }
        for (key, value) in self.values() {
            map.serialize_entry(key, &value)?;
        }
        map.end()
    }
}

/// A name, or a table of one kind. Without `kind` the table may hold the keys of any.
impl<K: Kind> JsonSchema for KindSettings<K> {
    fn schema_name() -> Cow<'static, str> {
        Cow::Borrowed(K::TABLE)
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let kinds = K::NAMES.iter().filter_map(|name| K::named(name)).map(|kind| {
            let defaults = kind.defaults();
            let keys = kind.keys().iter().map(|key| (key.name, key_schema(key, defaults.get(key.name))));
            let name = (KIND, json_schema!({ "const": kind.name() }));
            let properties: BTreeMap<&str, Schema> = std::iter::once(name).chain(keys).collect();
            json_schema!({ "type": "object", "properties": properties, "additionalProperties": false })
        });
        let named = K::json_schema(generator);
        let schemas: Vec<Schema> = std::iter::once(named).chain(kinds).collect();
        json_schema!({ "anyOf": schemas })
    }
}

fn key_schema(key: &KeyInfo, default: Option<Value>) -> Schema {
    // A key without a default may be left out.
    match key.value_type {
        KeyType::Number => json_schema!({ "type": "number", "description": key.doc, "default": default }),
        KeyType::Integer => {
            json_schema!({ "type": "integer", "minimum": 0, "description": key.doc, "default": default })
        }
        KeyType::Flag => json_schema!({ "type": "boolean", "description": key.doc, "default": default }),
        KeyType::Name(names) => json_schema!({ "enum": names, "description": key.doc, "default": default }),
        KeyType::Text => json_schema!({ "type": "string", "description": key.doc, "default": default }),
        KeyType::Losses => {
            let mut schema = WeightedLosses::json_schema(&mut SchemaGenerator::default());
            schema.insert("description".to_owned(), key.doc.into());
            schema.insert("default".to_owned(), serde_json::to_value(default).unwrap_or_default());
            schema
        }
    }
}

impl<'de, K: Kind> Deserialize<'de> for KindSettings<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor(PhantomData))
    }
}

struct KindVisitor<K>(PhantomData<K>);

impl<'de, K: Kind> Visitor<'de> for KindVisitor<K> {
    type Value = KindSettings<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the name of a kind, or a table with `{KIND}` and its settings")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        K::named(name).map(KindSettings::from).ok_or_else(|| E::unknown_variant(name, K::NAMES))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let known = K::all_keys();
        let mut settings = KindSettings::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == KIND {
                let name = map.next_value_seed(ValueSeed(KeyType::Name(K::NAMES)))?;
                settings.kind = if let Value::Name(name) = name { K::named(name) } else { None };
                continue;
            }
            let Some(key) = known.get(&key) else {
                return Err(A::Error::unknown_field(&key, known.names()));
            };
            let value = map.next_value_seed(ValueSeed(key.value_type))?;
            if !settings.set(key.name, value) {
                return Err(A::Error::custom(format!("more than {CAPACITY} settings of one `{}`", K::TABLE)));
            }
        }
        Ok(settings)
    }
}

/// Reads a value of a known type, so that another one is an error at its place.
struct ValueSeed(KeyType);

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.0 {
            KeyType::Number => f64::deserialize(deserializer).map(Value::Number),
            KeyType::Integer => u64::deserialize(deserializer).map(Value::Integer),
            KeyType::Flag => bool::deserialize(deserializer).map(Value::Flag),
            KeyType::Text => Text::deserialize(deserializer).map(Value::Text),
            KeyType::Losses => WeightedLosses::deserialize(deserializer).map(Value::Losses),
            KeyType::Name(names) => {
                let given = String::deserialize(deserializer)?;
                let name = names.iter().copied().find(|name| *name == given);
                name.map(Value::Name).ok_or_else(|| D::Error::unknown_variant(&given, names))
            }
        }
    }
}
