//! `run.keep_rollouts`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The rollout files that a run keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepRollouts {
    /// The files of all steps.
    #[default]
    All,
    /// The files of the last steps of each stage; 0 writes none.
    Last(u64),
}

impl KeepRollouts {
    /// Number of last steps whose files are kept; `None` for all.
    pub fn steps(self) -> Option<u64> {
        match self {
            Self::All => None,
            Self::Last(steps) => Some(steps),
        }
    }
}

impl Serialize for KeepRollouts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Last(steps) => serializer.serialize_u64(*steps),
        }
    }
}

impl<'de> Deserialize<'de> for KeepRollouts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AllOrNumber;
        impl Visitor<'_> for AllOrNumber {
            type Value = KeepRollouts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"all\" or a number of steps")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<KeepRollouts, E> {
                match text {
                    "all" => Ok(KeepRollouts::All),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
            fn visit_u64<E: Error>(self, steps: u64) -> Result<KeepRollouts, E> {
                Ok(KeepRollouts::Last(steps))
            }
            fn visit_i64<E: Error>(self, steps: i64) -> Result<KeepRollouts, E> {
                let invalid = |_| E::invalid_value(Unexpected::Signed(steps), &self);
                u64::try_from(steps).map(KeepRollouts::Last).map_err(invalid)
            }
        }
        deserializer.deserialize_any(AllOrNumber)
    }
}

impl JsonSchema for KeepRollouts {
    fn schema_name() -> Cow<'static, str> {
        "KeepRollouts".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "enum": ["all"] }, { "type": "integer", "minimum": 0 }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes/arithmetic.toml");

    fn kept(value: &str) -> Result<KeepRollouts, String> {
        let overrides = [format!("run.keep_rollouts={value}")];
        Config::load(&[RECIPE], &overrides).map(|c| c.run.keep_rollouts).map_err(|e| e.to_string())
    }

    #[test]
    fn all_or_a_number_of_steps() {
        assert_eq!(kept("all"), Ok(KeepRollouts::All));
        assert_eq!(kept("0"), Ok(KeepRollouts::Last(0)));
        assert_eq!(kept("20"), Ok(KeepRollouts::Last(20)));
        for wrong in ["some", "-1", "true"] {
            let message = kept(wrong).unwrap_err();
            assert!(message.contains("keep_rollouts"), "{message}");
        }
    }

    #[test]
    fn the_resolved_configuration_reads_back() {
        for value in ["all", "20"] {
            let overrides = [format!("run.keep_rollouts={value}")];
            let config = Config::load(&[RECIPE], &overrides).unwrap();
            let table: toml::Table = config.to_toml().parse().unwrap();
            let run: crate::settings::RunSettings = table["run"].clone().try_into().unwrap();
            assert_eq!(run.keep_rollouts, config.run.keep_rollouts);
        }
    }
}
