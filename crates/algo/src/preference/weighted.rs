//! Lists of losses with weights.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value as Json};

use super::{PairLoss, PairLossKind};
use crate::Kind;
use crate::settings::keys::{KeyType, Setting, Value};
use crate::settings::kind::KindSettings;

const WEIGHT: &str = "weight";

/// Every list there is, kept for the life of the process like a [`Text`](crate::Text).
static LISTS: Mutex<Vec<&'static [WeightedLoss]>> = Mutex::new(Vec::new());

/// A loss of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightedLoss {
    /// Factor of the loss.
    pub weight: f64,
    /// The loss with its settings.
    pub loss: PairLoss,
}

/// Losses whose weighted sum is one loss. Equal lists share memory that is never freed.
#[derive(Clone, Copy, PartialEq)]
pub struct WeightedLosses(&'static [WeightedLoss]);

impl WeightedLosses {
    /// The list of these losses.
    pub fn new(losses: &[WeightedLoss]) -> Self {
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lists.iter().find(|known| **known == losses) {
            return Self(known);
        }
        let kept: &'static [WeightedLoss] = Box::leak(losses.into());
        lists.push(kept);
        Self(kept)
    }

    /// The losses, in order.
    pub fn iter(self) -> std::slice::Iter<'static, WeightedLoss> {
        self.0.iter()
    }
}

/// The weights of the paper.
impl Default for WeightedLosses {
    fn default() -> Self {
        let of = |weight, kind: PairLossKind| WeightedLoss { weight, loss: kind.loss() };
        Self::new(&[
            of(0.8, PairLossKind::Dpo),
            of(0.2, PairLossKind::BcoPair),
            of(1.0, PairLossKind::ChosenNll),
        ])
    }
}

impl WeightedLoss {
    /// The keys of its table with their values.
    fn entries(&self) -> Vec<(&'static str, Value)> {
        let settings = self.loss.settings();
        let mut entries =
            vec![("kind", Value::Name(self.loss.kind().name())), (WEIGHT, Value::Number(self.weight))];
        entries.extend(settings.values());
        entries
    }
}

impl fmt::Debug for WeightedLosses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A sum of kinds with their weights, for tables.
impl fmt::Display for WeightedLosses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let term = |loss: &WeightedLoss| format!("{:?}·{}", loss.weight, loss.loss.kind().name());
        f.write_str(&self.iter().map(term).collect::<Vec<_>>().join(" + "))
    }
}

impl Serialize for WeightedLoss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.entries();
        let mut map = serializer.serialize_map(Some(entries.len()))?;
        for (key, value) in entries {
            map.serialize_entry(key, &value)?;
        }
        map.end()
    }
}

impl Serialize for WeightedLosses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0)
    }
}

impl<'de> Deserialize<'de> for WeightedLoss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Map::deserialize(deserializer)?;
        let weight = match table.remove(WEIGHT) {
            Some(weight) => f64::deserialize(weight).map_err(D::Error::custom)?,
            None => 1.0,
        };
        let settings: KindSettings<PairLossKind> =
            serde_json::from_value(Json::Object(table)).map_err(D::Error::custom)?;
        let Some(kind) = settings.kind else { return Err(D::Error::missing_field("kind")) };
        let known = |key: &str| kind.keys().iter().any(|own| own.name == key);
        if let Some((key, _)) = settings.values().find(|(key, _)| !known(key)) {
            let name = kind.name();
            return Err(D::Error::custom(format_args!("`{key}` is not a setting of the loss \"{name}\"")));
        }
        Ok(Self { weight, loss: settings.loss(kind) })
    }
}

impl<'de> Deserialize<'de> for WeightedLosses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(&Vec::deserialize(deserializer)?))
    }
}

impl JsonSchema for WeightedLosses {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Cow::Borrowed("WeightedLosses")
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = PairLossKind::NAMES;
        json_schema!({
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "kind": { "enum": names, "description": "A loss of pairs, or `sft`, the likelihood of the chosen completion." },
                    "weight": { "type": "number", "default": 1.0, "description": "Factor of the loss in the sum, 0 or more." },
                },
                "required": ["kind"],
            },
        })
    }
}

impl From<WeightedLosses> for Value {
    fn from(losses: WeightedLosses) -> Self {
        Self::Losses(losses)
    }
}

impl Setting for WeightedLosses {
    const TYPE: KeyType = KeyType::Losses;

    fn read(value: Value) -> Option<Self> {
        if let Value::Losses(losses) = value { Some(losses) } else { None }
    }

    fn write(self) -> Option<Value> {
        Some(Value::Losses(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<WeightedLosses, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_round_trip_and_are_kept_once() {
        let one = parse(r#"[{"kind": "dpo", "beta": 0.3, "weight": 2}, {"kind": "sft"}]"#).unwrap();
        assert_eq!(one.iter().map(|loss| loss.weight).collect::<Vec<_>>(), [2.0, 1.0]);
        let again: WeightedLosses = serde_json::from_value(serde_json::to_value(one).unwrap()).unwrap();
        assert!(std::ptr::eq(one.0, again.0));
        assert_eq!(one.to_string(), "2.0·dpo + 1.0·sft");
    }

    #[test]
    fn entries_are_checked() {
        for (json, message) in [
            (r#"[{"weight": 1.0}]"#, "kind"),
            (r#"[{"kind": "kto"}]"#, "kto"),
            (r#"[{"kind": "dpo", "gamma": 1.0}]"#, "`gamma` is not a setting of the loss \"dpo\""),
            (r#"[{"kind": "dpo", "betta": 1.0}]"#, "betta"),
            (r#"[{"kind": "dpo", "weight": "much"}]"#, "much"),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(message), "{json}: {error}");
        }
    }
}
