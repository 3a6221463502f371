//! Settings of one loss or advantage: a struct whose fields are its keys, described at run time.

use super::Text;
use crate::WeightedLosses;

/// Type of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// A number.
    Number,
    /// A whole number.
    Integer,
    /// `true` or `false`.
    Flag,
    /// One of these names.
    Name(&'static [&'static str]),
    /// A text.
    Text,
    /// A list of losses with weights.
    Losses,
}

/// A setting of a loss or an advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its key in the table of the loss or the advantage.
    pub name: &'static str,
    /// Documentation of the key.
    pub doc: &'static str,
    /// The type of its value.
    pub value_type: KeyType,
}

/// A setting's value.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A whole number.
    Integer(u64),
    /// A switch.
    Flag(bool),
    /// A name out of a closed set.
    Name(&'static str),
    /// A text.
    Text(Text),
    /// A list of losses with weights.
    Losses(WeightedLosses),
}

/// As in a recipe.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // `{:?}` keeps the `.0` of whole numbers and writes small ones as 1e-5.
            Self::Number(number) => write!(f, "{number:?}"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Name(name) => write!(f, "\"{name}\""),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Losses(losses) => write!(f, "{losses}"),
        }
    }
}

/// A type that a setting may have.
pub(crate) trait Setting: Copy {
    /// The type of its value in a recipe.
    const TYPE: KeyType;
    /// Converts from a recipe's value; `None` if it has another type.
    fn read(value: Value) -> Option<Self>;
    /// Converts to a recipe's value; `None` if the key is unset.
    fn write(self) -> Option<Value>;
}

impl Setting for f64 {
    const TYPE: KeyType = KeyType::Number;

    fn read(value: Value) -> Option<Self> {
        if let Value::Number(number) = value { Some(number) } else { None }
    }

    fn write(self) -> Option<Value> {
        Some(Value::Number(self))
    }
}

impl Setting for u64 {
    const TYPE: KeyType = KeyType::Integer;

    fn read(value: Value) -> Option<Self> {
        if let Value::Integer(number) = value { Some(number) } else { None }
    }

    fn write(self) -> Option<Value> {
        Some(Value::Integer(self))
    }
}

impl Setting for bool {
    const TYPE: KeyType = KeyType::Flag;

    fn read(value: Value) -> Option<Self> {
        if let Value::Flag(flag) = value { Some(flag) } else { None }
    }

    fn write(self) -> Option<Value> {
        Some(Value::Flag(self))
    }
}

impl<T: Setting> Setting for Option<T> {
    const TYPE: KeyType = T::TYPE;

    fn read(value: Value) -> Option<Self> {
        T::read(value).map(Some)
    }

    fn write(self) -> Option<Value> {
        self.and_then(T::write)
    }
}

/// The settings of one loss or advantage, with their defaults.
pub(crate) trait Settings: Copy + Default {
    /// Its keys, in order.
    const KEYS: &'static [KeyInfo];
    /// Sets a key. A value of another type is ignored, as the deserializer has checked the type.
    fn set(&mut self, key: &str, value: Value);
    /// Value of a key; `None` if unset.
    fn get(&self, key: &str) -> Option<Value>;
}

/// Declares the settings of one loss or advantage: `key: type = default`, each with its documentation.
macro_rules! settings {
    ($(#[doc = $about:literal])+ $name:ident {
        $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[doc = $doc])+ pub $key: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $crate::settings::keys::Settings for $name {
            const KEYS: &'static [$crate::settings::keys::KeyInfo] = &[$(
                $crate::settings::keys::KeyInfo {
                    name: stringify!($key),
                    doc: concat!($($doc,)+).trim_ascii(),
                    value_type: <$type as $crate::settings::keys::Setting>::TYPE,
                },
            )*];

            fn set(&mut self, key: &str, value: $crate::settings::keys::Value) {
                let _ = (key, value); // a struct without fields reads neither
                $(if key == stringify!($key) {
                    if let Some(value) = $crate::settings::keys::Setting::read(value) {
                        self.$key = value;
                    }
                })*
            }

            fn get(&self, key: &str) -> Option<$crate::settings::keys::Value> {
                let _ = key; // a struct without fields does not read it
                $(if key == stringify!($key) {
                    return $crate::settings::keys::Setting::write(self.$key);
                })*
                None
            }
        }
    };
}
pub(crate) use settings;

/// A setting whose value is out of range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OutOfRange {
    /// The key in its table.
    pub(crate) key: &'static str,
    pub(crate) value: f64,
    /// The values that are allowed, as in "must be …".
    pub(crate) must: &'static str,
    /// A usual value.
    pub(crate) hint: &'static str,
}

/// Checks a number against its range; `fits` is ignored for NaN and infinity, which are never in range.
pub(crate) fn check(
    key: &'static str,
    value: f64,
    fits: bool,
    must: &'static str,
    hint: &'static str,
) -> Result<(), OutOfRange> {
    if value.is_finite() && fits { Ok(()) } else { Err(OutOfRange { key, value, must, hint }) }
}
