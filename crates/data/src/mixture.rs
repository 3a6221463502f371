//! Several sources with weights.

use rloom_core::ValueRange;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::settings::{Keys, NamedGeneratorTable, from_keys as data_from_keys};
use crate::{DataError, DataSettings, FileSettings, PromptFormat, Source};

/// A source of a mixture. In a configuration it has the keys of a source and `weight`.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedSource {
    /// Weight among the sources: its share of the tasks is the weight divided by the sum of all. Default: 1.
    pub weight: f64,
    /// The source.
    pub data: DataSettings,
}

impl<'de> Deserialize<'de> for WeightedSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Keys::deserialize(deserializer)?;
        let data: DataSettings = data_from_keys(&keys)?;
        if matches!(data.source, Source::Mixture(_)) {
            return Err(D::Error::custom("`sources` cannot contain other `sources`"));
        }
        Ok(Self { weight: keys.weight.unwrap_or(1.0), data })
    }
}

impl Serialize for WeightedSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("weight", &self.weight)?;
        let data = serde_json::to_value(&self.data).map_err(serde::ser::Error::custom)?;
        if let Value::Object(keys) = data {
            for (key, value) in keys {
                map.serialize_entry(&key, &value)?;
            }
        }
        map.end()
    }
}

/// A mixture from its keys; keys of a single source together with `sources` are errors.
pub(crate) fn from_keys<E: Error>(sources: &[WeightedSource], keys: &Keys) -> Result<DataSettings, E> {
    let given = serde_json::to_value(keys).map_err(E::custom)?;
    let others = given.as_object().into_iter().flatten();
    let mut others =
        others.filter(|(key, value)| !value.is_null() && !matches!(key.as_str(), "sources" | "weight"));
    if let Some((key, _)) = others.next() {
        return Err(E::custom(format_args!("`{key}` belongs to an entry of `sources`")));
    }
    if sources.is_empty() {
        return Err(E::custom("`sources` is empty"));
    }
    let prompt_format = PromptFormat::default();
    Ok(DataSettings { source: Source::Mixture(sources.to_vec()), prompt_format, domain: None })
}

/// Checks a mixture without reading files.
pub(crate) fn validate(sources: &[WeightedSource]) -> Result<(), DataError> {
    for source in sources {
        ValueRange::above(0.0, 1e9)
            .check("weight", source.weight)
            .map_err(|error| DataError::Setting { key: "weight", problem: error.problem.into() })?;
        source.data.validate()?;
    }
    Ok(())
}

/// Schema of a source of a mixture: that of all sources, and `weight`.
impl JsonSchema for WeightedSource {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WeightedSource".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        WeightedTable::json_schema(generator)
    }
}

/// A source of a mixture.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct WeightedTable {
    /// Weight among the sources: its share of the tasks is the weight divided by the sum of all. Above 0 and at most
    /// 1000000000. Default: 1.
    weight: Option<f64>,
    #[serde(flatten)]
    source: SingleSourceTable,
    #[serde(flatten)]
    prompt_format: PromptFormat,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
#[expect(clippy::large_enum_variant, reason = "a recipe has few of them")]
enum SingleSourceTable {
    Generator(NamedGeneratorTable),
    Files(FileSettings),
}

/// A mixture.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct MixtureTable {
    /// Sources of the tasks, each a table with the keys of `[data]` and `weight`. Their tasks follow each other so that
    /// every source has its share exactly over time.
    sources: Vec<WeightedSource>,
}
