use rloom_core::LossOn;
use rloom_hub::Hub;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::mixture::{self, MixtureTable, WeightedSource};
use crate::source::{GeneratorName, GeneratorTable};
use crate::{
    DataError, DataPath, DigitOrder, Digits, FileSettings, GradedRows, HeldOut, Notation, Operation, Paths,
    PromptFormat, Seat, Source, Split, Style, TooLong, Wording,
};

/// A source of tasks and the format of its prompts.
///
/// In a configuration it is one flat table: `generator = "arithmetic"` with the keys of that generator, or `path = "…"`
/// with the keys of [`FileSettings`]; both also accept the keys of [`PromptFormat`]. A key of another source is an
/// error. `sources` is a list of such tables with weights.
///
/// ```
/// # use rloom_data::{DataSettings, Source};
/// let settings: DataSettings = serde_json::from_str(r#"{ "generator": "arithmetic", "max_digits": 3 }"#).unwrap();
/// assert!(matches!(settings.source, Source::Arithmetic(s) if s.max_digits == 3));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct DataSettings {
    /// Source of the tasks.
    pub source: Source,
    /// Format of the prompts.
    pub prompt_format: PromptFormat,
    /// Domain of a generator's tasks. Default: the generator's name.
    pub domain: Option<String>,
}

impl From<Source> for DataSettings {
    fn from(source: Source) -> Self {
        Self { source, prompt_format: PromptFormat::default(), domain: None }
    }
}

impl DataSettings {
    /// True if there is a generator of games with this name, which the environment of the same name plays.
    pub fn is_game(name: &str) -> bool {
        serde_json::from_value::<Self>(serde_json::json!({ "generator": name }))
            .is_ok_and(|settings| settings.source.is_game())
    }

    /// Checks the settings without reading files.
    pub fn validate(&self) -> Result<(), DataError> {
        self.prompt_format.validate()?;
        self.source.validate()
    }

    /// Replaces the revisions of data sets on a hub with their commits, so that later runs read the same rows. Checks that
    /// the splits exist; downloads no data.
    pub fn pin(&mut self, hub: &Hub) -> Result<(), DataError> {
        match &mut self.source {
            Source::Files(files) => files.pin(hub),
            Source::Mixture(sources) => sources.iter_mut().try_for_each(|source| source.data.pin(hub)),
            _ => Ok(()),
        }
    }

    /// Downloads the files of a split, as far as they are on a hub and not in its cache.
    pub fn download(&self, split: Split, hub: &Hub) -> Result<(), DataError> {
        self.parts().filter_map(|part| part.source.files()).try_for_each(|files| files.download(split, hub))
    }

    /// Takes over the commits of `pinned`, for data sets that are the same but for the revision.
    pub fn pin_as(&mut self, pinned: &Self) {
        match (&mut self.source, &pinned.source) {
            (Source::Files(files), Source::Files(pinned)) => files.pin_as(pinned),
            (Source::Mixture(own), Source::Mixture(pinned)) => {
                own.iter_mut().zip(pinned).for_each(|(own, pinned)| own.data.pin_as(&pinned.data));
            }
            _ => {}
        }
    }

    /// True if some of the data is on a hub.
    pub fn is_on_a_hub(&self) -> bool {
        let files = self.parts().filter_map(|part| part.source.files());
        let paths = files.flat_map(|files| std::iter::once(&files.path).chain(&files.eval_path));
        paths.flat_map(|paths| &paths.0).any(|path| matches!(path, DataPath::Hub(_)))
    }

    /// True if there is a held-out split.
    pub fn has_held_out(&self) -> bool {
        let has = |files: &FileSettings| files.eval_path.is_some() || files.eval_rows.is_some();
        self.parts().all(|part| part.source.files().is_none_or(has))
    }

    /// The sources: those of a mixture, or these settings themselves.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        let sources: &[WeightedSource] =
            if let Source::Mixture(sources) = &self.source { sources } else { &[] };
        let alone = sources.is_empty().then_some(self);
        alone.into_iter().chain(sources.iter().map(|source| &source.data))
    }

    /// All characters of a generator's tasks, the template and the system message: the alphabet of a character tokenizer.
    /// `None` for files, whose characters are unknown.
    pub fn alphabet(&self) -> Option<String> {
        let own = self.source.alphabet()?;
        let texts = [&self.prompt_format.system, &self.prompt_format.template];
        let texts = texts.into_iter().flatten().map(|t| t.replace("{prompt}", ""));
        let mut characters: Vec<char> = own.chars().chain(texts.collect::<String>().chars()).collect();
        characters.sort_unstable();
        characters.dedup();
        Some(characters.into_iter().collect())
    }
}

/// The keys of all sources, with their types. Deserialising this first reports misspelt keys and wrong types at the
/// right place in the file, which a buffered enum could not; the selected source then rejects the keys of the others.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keys {
    // Mixtures
    sources: Option<Vec<WeightedSource>>,
    pub(crate) weight: Option<f64>,
    generator: Option<GeneratorName>,
    // Files
    path: Option<Paths>,
    eval_path: Option<Paths>,
    eval_rows: Option<u64>,
    limit: Option<u64>,
    max_prompt_tokens: Option<u64>,
    prompt_field: Option<String>,
    messages_field: Option<String>,
    answer_field: Option<String>,
    demonstration_field: Option<String>,
    text_field: Option<String>,
    chosen_field: Option<String>,
    rejected_field: Option<String>,
    margin_field: Option<String>,
    label_field: Option<String>,
    steps_field: Option<String>,
    step_labels_field: Option<String>,
    step_separator: Option<String>,
    loss_on: Option<LossOn>,
    max_tokens: Option<u64>,
    too_long: Option<TooLong>,
    domain_field: Option<String>,
    domain: Option<String>,
    answer_marker: Option<String>,
    // Prompt format
    system: Option<String>,
    template: Option<String>,
    chat: Option<bool>,
    template_variables: Option<Map<String, Value>>,
    // Generators
    operations: Option<Vec<Operation>>,
    min_digits: Option<u32>,
    max_digits: Option<u32>,
    digits: Option<Digits>,
    style: Option<Style>,
    rows: Option<GradedRows>,
    worked_share: Option<f64>,
    digit_order: Option<DigitOrder>,
    held_out: Option<HeldOut>,
    held_out_share: Option<f64>,
    demonstration_share: Option<f64>,
    size: Option<u64>,
    eval_size: Option<u64>,
    min_numbers: Option<u32>,
    max_numbers: Option<u32>,
    max_number: Option<u64>,
    max_target: Option<u64>,
    wording: Option<Wording>,
    min_length: Option<u32>,
    max_length: Option<u32>,
    careless_share: Option<f64>,
    map_size: Option<u32>,
    ice_share: Option<f64>,
    seat: Option<Seat>,
    opening: Option<u32>,
    notation: Option<Notation>,
    arms: Option<u32>,
    boxes: Option<u32>,
    wall_share: Option<f64>,
    min_blanks: Option<u32>,
    max_blanks: Option<u32>,
    words: Option<u32>,
}

const FORMAT_KEYS: [&str; 4] = ["system", "template", "chat", "template_variables"];

impl<'de> Deserialize<'de> for DataSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Keys::deserialize(deserializer)?;
        if keys.weight.is_some() {
            return Err(D::Error::custom("`weight` belongs to an entry of `sources`"));
        }
        from_keys(&keys)
    }
}

pub(crate) fn from_keys<E: Error>(keys: &Keys) -> Result<DataSettings, E> {
    let generator = keys.generator;
    let Value::Object(mut given) = serde_json::to_value(keys).map_err(E::custom)? else {
        return Err(E::custom("the data settings are not a table"));
    };
    given.retain(|_, value| !value.is_null());
    let mut format = Map::new();
    for key in FORMAT_KEYS {
        if let Some(value) = given.shift_remove(key) {
            format.insert(key.to_owned(), value);
        }
    }
    let prompt_format = from_own_keys(format, "prompt format")?;
    given.shift_remove("generator");
    given.shift_remove("weight");
    if let Some(sources) = &keys.sources {
        return mixture::from_keys(sources, keys);
    }
    let domain = match generator {
        Some(_) => given.shift_remove("domain").and_then(|domain| domain.as_str().map(str::to_owned)),
        None => None,
    };
    let source = match (generator, given.contains_key("path")) {
        (Some(_), true) => {
            return Err(E::custom("`generator` and `path` cannot be combined; remove one of the two"));
        }
        (None, false) => {
            let names = GeneratorName::NAMES.join(", ");
            return Err(E::custom(format_args!(
                "the data needs a `generator` ({names}), a `path` or `sources`"
            )));
        }
        (None, true) => Source::Files(from_own_keys(given, "files")?),
        (Some(generator), _) => Source::from_given(generator, given)?,
    };
    Ok(DataSettings { source, prompt_format, domain })
}

/// Deserialises the keys of one source; keys of other sources are errors.
pub(crate) fn from_own_keys<T: DeserializeOwned, E: Error>(
    given: Map<String, Value>,
    source: &str,
) -> Result<T, E> {
    serde_json::from_value(Value::Object(given))
        .map_err(|e| E::custom(format_args!("{e} (keys of `{source}` data)")))
}

impl Serialize for DataSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Source::Mixture(sources) = &self.source {
            let mut map = serializer.serialize_map(None)?;
            map.serialize_entry("sources", sources)?;
            return map.end();
        }
        let source = self.source.to_json();
        let prompt_format = serde_json::to_value(&self.prompt_format);
        let mut map = serializer.serialize_map(None)?;
        if self.source.files().is_none() {
            map.serialize_entry("generator", self.source.name())?;
        }
        if let Some(domain) = &self.domain {
            map.serialize_entry("domain", domain)?;
        }
        for part in [source, prompt_format] {
            if let Value::Object(keys) = part.map_err(S::Error::custom)? {
                for (key, value) in keys {
                    map.serialize_entry(&key, &value)?;
                }
            }
        }
        map.end()
    }
}

/// The flat table as a schema: one alternative per source, each with the keys of the prompt format.
impl JsonSchema for DataSettings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DataSettings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Table::json_schema(generator)
    }
}

/// Data of a stage: a generator or files, and the format of the prompts.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Table {
    #[serde(flatten)]
    source: SourceTable,
    #[serde(flatten)]
    prompt_format: PromptFormat,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
#[expect(clippy::large_enum_variant, reason = "a recipe has few of them")]
pub(crate) enum SourceTable {
    Generator(NamedGeneratorTable),
    Files(FileSettings),
    Mixture(MixtureTable),
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct NamedGeneratorTable {
    /// Domain of the generator's tasks. Default: the generator's name.
    domain: Option<String>,
    #[serde(flatten)]
    generator: GeneratorTable,
}
