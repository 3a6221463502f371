use std::fmt;
use std::path::PathBuf;

use rloom_hub::{DatasetReference, DefaultSplit, Hub, ReferenceError};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::DataError;

/// File name extensions of the data files that can be read.
pub(crate) const FORMATS: [&str; 7] =
    ["parquet", "jsonl", "ndjson", "jsonl.gz", "jsonl.zst", "ndjson.gz", "ndjson.zst"];

/// A local file or folder, or a split of a data set on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataPath {
    /// A data file, or a folder with data files.
    Local(PathBuf),
    /// `hf:organisation/name[/subset][:split][@revision]`.
    Hub(DatasetReference),
}

impl DataPath {
    /// Reads a path; one that starts with `hf:` is on a hub.
    pub fn parse(path: &str) -> Result<Self, ReferenceError> {
        if path.starts_with(DatasetReference::PREFIX) {
            path.parse().map(Self::Hub)
        } else {
            Ok(Self::Local(path.into()))
        }
    }
}

impl From<PathBuf> for DataPath {
    fn from(path: PathBuf) -> Self {
        Self::Local(path)
    }
}

impl Serialize for DataPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Local(path) => path.serialize(serializer),
            Self::Hub(dataset) => serializer.collect_str(dataset),
        }
    }
}

impl<'de> Deserialize<'de> for DataPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path = String::deserialize(deserializer)?;
        Self::parse(&path).map_err(|error| D::Error::custom(format_args!("`{path}`: {error}")))
    }
}

/// One path, or a list of paths that are read in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths(pub Vec<DataPath>);

impl Paths {
    /// Replaces the revisions of data sets on a hub with their commits.
    pub(crate) fn pin(&mut self, hub: &Hub, default: DefaultSplit) -> Result<(), DataError> {
        for path in &mut self.0 {
            if let DataPath::Hub(dataset) = path {
                *dataset = hub.pin_dataset(dataset, default, &FORMATS)?;
            }
        }
        Ok(())
    }

    /// Takes over the commits of `pinned`, for data sets that are the same but for the revision.
    pub(crate) fn pin_as(&mut self, pinned: &Self) {
        for (path, pinned) in self.0.iter_mut().zip(&pinned.0) {
            if let (DataPath::Hub(dataset), DataPath::Hub(pinned)) = (path, pinned)
                && dataset.repository == pinned.repository
                && dataset.subset.as_ref().is_none_or(|subset| pinned.subset.as_ref() == Some(subset))
                && dataset.split.as_ref().is_none_or(|split| pinned.split.as_ref() == Some(split))
                && !dataset.is_pinned()
            {
                dataset.clone_from(pinned);
            }
        }
    }
}

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Paths;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or a list of paths")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<Paths, E> {
                let path = DataPath::parse(path);
                path.map(|path| Paths(vec![path])).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut paths: A) -> Result<Paths, A::Error> {
                let mut all = Vec::new();
                while let Some(path) = paths.next_element()? {
                    all.push(path);
                }
                Ok(Paths(all))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// A string, or an array of strings.
impl JsonSchema for Paths {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Paths".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (one, many) = (generator.subschema_for::<String>(), generator.subschema_for::<Vec<String>>());
        schemars::json_schema!({ "anyOf": [one, many] })
    }
}
