//! A serde deserializer over [`Node`]s with structured errors.
//!
//! Unlike `toml::Value`, every error carries the path to the value, from which the reader finds its origin; and the kinds
//! of serde's errors (unknown key, missing key, wrong type …) are kept instead of being formatted as text, so that hints
//! can be derived from them.

use std::fmt;

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor, value::StrDeserializer};

use super::source::Sources;
use super::tree::{Entry, Node, Step, Value};

/// Kind of an error of deserialisation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    UnknownKey { key: String, known: &'static [&'static str] },
    MissingKey { key: &'static str },
    UnknownName { given: String, known: &'static [&'static str] },
    WrongType { expected: String },
    BadValue { expected: String },
    Custom(String),
}

/// A fault with the path to the value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReadError {
    pub(super) fault: Fault,
    pub(super) path: Vec<Step>,
}

impl ReadError {
    fn new(fault: Fault) -> Self {
        Self { fault, path: Vec::new() }
    }

    fn inside(mut self, step: Step) -> Self {
        self.path.insert(0, step);
        self
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Fault::Custom(message.to_string()))
    }

    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(Fault::WrongType { expected: expected.to_string() })
    }

    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(Fault::BadValue { expected: expected.to_string() })
    }

    fn invalid_length(_: usize, expected: &dyn de::Expected) -> Self {
        Self::new(Fault::BadValue { expected: expected.to_string() })
    }

    fn unknown_variant(given: &str, known: &'static [&'static str]) -> Self {
        Self::new(Fault::UnknownName { given: given.to_owned(), known })
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::new(Fault::UnknownKey { key: key.to_owned(), known })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(Fault::MissingKey { key })
    }

    fn duplicate_field(key: &'static str) -> Self {
        Self::new(Fault::Custom(format!("`{key}` occurs twice")))
    }
}

/// Reads one value.
#[derive(Clone, Copy)]
pub(super) struct NodeReader<'a> {
    pub(super) node: &'a Node,
    pub(super) sources: &'a Sources,
}

impl<'a> NodeReader<'a> {
    fn of(self, node: &'a Node) -> Self {
        Self { node, ..self }
    }

    /// The text of an unquoted override, for settings that take a string: `--set run.name=7`.
    fn bare_override(self) -> Option<&'a str> {
        let scalar = matches!(
            self.node.value,
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_)
        );
        (scalar && self.sources.is_override(self.node.origin)).then(|| self.sources.text(self.node.origin))
    }
}

impl<'de> de::Deserializer<'de> for NodeReader<'de> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::String(text) | Value::Datetime(text) => visitor.visit_borrowed_str(text),
            Value::Integer(i) => visitor.visit_i64(*i),
            Value::Float(x) => visitor.visit_f64(*x),
            Value::Boolean(b) => visitor.visit_bool(*b),
            Value::Array(items) => visitor.visit_seq(Items { reader: self, all: items, next: 0 }),
            Value::Table(table) => visitor.visit_map(Entries { reader: self, all: &table.entries, next: 0 }),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.bare_override() {
            Some(text) => visitor.visit_borrowed_str(text),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::String(name) => visitor.visit_enum(Named(name)),
            Value::Table(table) => match table.entries.as_slice() {
                [entry] => visitor.visit_enum(Keyed { reader: self, entry }),
                _ => Err(ReadError::new(Fault::WrongType {
                    expected: format!("a table with one of {}", super::suggest::list(variants)),
                })),
            },
            _ => Err(ReadError::new(Fault::WrongType {
                expected: format!("one of {}", super::suggest::list(variants)),
            })),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct Items<'a> {
    reader: NodeReader<'a>,
    all: &'a [Node],
    next: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'de> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ReadError> {
        let Some(item) = self.all.get(self.next) else { return Ok(None) };
        self.next += 1;
        let read = seed.deserialize(self.reader.of(item));
        read.map(Some).map_err(|e| e.inside(Step::Index(self.next - 1)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.all.len() - self.next)
    }
}

struct Entries<'a> {
    reader: NodeReader<'a>,
    all: &'a [Entry],
    next: usize,
}

impl<'de> de::MapAccess<'de> for Entries<'de> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        let Some(entry) = self.all.get(self.next) else { return Ok(None) };
        let key: StrDeserializer<'de, ReadError> = entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let entry = &self.all[self.next];
        self.next += 1;
        seed.deserialize(self.reader.of(&entry.node)).map_err(|e| e.inside(Step::Key(entry.key.clone())))
    }
}

/// An enum written as a string: a variant without content.
struct Named<'a>(&'a str);

impl<'de> de::EnumAccess<'de> for Named<'de> {
    type Error = ReadError;
    type Variant = NoContent;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, NoContent), ReadError> {
        let name: StrDeserializer<'de, ReadError> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, NoContent))
    }
}

struct NoContent;

impl NoContent {
    fn wants<T>(what: &str) -> Result<T, ReadError> {
        Err(ReadError::new(Fault::WrongType { expected: format!("a table with {what}") }))
    }
}

impl<'de> de::VariantAccess<'de> for NoContent {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, ReadError> {
        Self::wants("its settings")
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, ReadError> {
        Self::wants("its settings")
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, ReadError> {
        Self::wants(&super::suggest::list(fields))
    }
}

/// An enum written as a table of one key: the variant's name and its content.
struct Keyed<'a> {
    reader: NodeReader<'a>,
    entry: &'a Entry,
}

impl<'de> de::EnumAccess<'de> for Keyed<'de> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let name: StrDeserializer<'de, ReadError> = self.entry.key.as_str().into_deserializer();
        let variant = seed.deserialize(name).map_err(|mut e: ReadError| {
            // The name of a variant in key position is reported as a key.
            if let Fault::UnknownName { given, known } = e.fault {
                e.fault = Fault::UnknownKey { key: given, known };
            }
            e
        })?;
        Ok((variant, self))
    }
}

impl Keyed<'_> {
    fn inside<T>(&self, read: Result<T, ReadError>) -> Result<T, ReadError> {
        read.map_err(|e| e.inside(Step::Key(self.entry.key.clone())))
    }
}

impl<'de> de::VariantAccess<'de> for Keyed<'de> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Err(ReadError::new(Fault::WrongType { expected: format!("the string \"{}\"", self.entry.key) }))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        self.inside(seed.deserialize(self.reader.of(&self.entry.node)))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.inside(de::Deserializer::deserialize_any(self.reader.of(&self.entry.node), visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.inside(de::Deserializer::deserialize_any(self.reader.of(&self.entry.node), visitor))
    }
}
