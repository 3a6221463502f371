//! Keys of settings types, by which a flat table of several kinds is read.

use serde::de::{Deserializer, Error};
use serde_json::Value;

/// A settings type whose keys can be read one by one.
pub(crate) trait Keys {
    /// Names of the keys.
    const KEYS: &'static [&'static str];

    /// Reads the value of a key as its type and returns it in JSON; `null` for a key without a value.
    fn read<'de, D: Deserializer<'de>>(key: &str, value: D) -> Result<Value, D::Error>;
}

/// The JSON of a value that was read.
pub(crate) fn to_json<T: serde::Serialize, E: Error>(value: &T) -> Result<Value, E> {
    serde_json::to_value(value).map_err(E::custom)
}

/// Implements [`Keys`] for a struct: `keys!(GuessSettings { max_turns: u32 });`. The compiler checks that all fields are
/// listed with their types.
macro_rules! keys {
    ($settings:ident { $($key:ident: $type:ty),* $(,)? }) => {
        impl $crate::keys::Keys for $settings {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            fn read<'de, D: serde::Deserializer<'de>>(
                key: &str,
                value: D,
            ) -> Result<serde_json::Value, D::Error> {
                match key {
                    $(stringify!($key) => {
                        let value = <Option<$type> as serde::Deserialize>::deserialize(value)?;
                        $crate::keys::to_json(&value)
                    })*
                    _ => Err(serde::de::Error::unknown_field(key, Self::KEYS)),
                }
            }
        }

        const _: fn(&$settings) = |$settings { $($key),* }| { $(let _: &$type = $key;)* };
    };
}
pub(crate) use keys;
