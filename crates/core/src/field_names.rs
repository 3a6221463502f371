//! The keys of a settings type, from its `Deserialize` implementation.

use std::fmt;

use serde::de::{self, Deserialize, Visitor};

/// Returns the keys of a settings struct in declaration order; empty for types that are not structs.
pub fn field_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    match T::deserialize(Probe) {
        Err(FieldNames(names)) => names,
        Ok(_) => &[],
    }
}

/// A deserializer that returns the names of the fields as its error. A derived `Deserialize` of a struct passes them
/// before it reads a value.
struct Probe;

#[derive(Debug)]
struct FieldNames(&'static [&'static str]);

impl fmt::Display for FieldNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for FieldNames {}

impl de::Error for FieldNames {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self(&[])
    }
}

impl<'de> de::Deserializer<'de> for Probe {
    type Error = FieldNames;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, FieldNames> {
        Err(FieldNames(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, FieldNames> {
        Err(FieldNames(fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
