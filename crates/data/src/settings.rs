use serde::de::Error as _;
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    ArithmeticSettings, CountdownSettings, DataError, DigitOrder, Digits, FileSettings, GuessSettings,
    HeldOut, Operation, Paths, Presentation, SortingSettings, Style, Wording,
};

/// A source of tasks and how its prompts are presented.
///
/// In a configuration it is one flat table: `generator = "arithmetic"` with that generator's keys, or `path =
/// "…"` with the keys of [`FileSettings`]; the keys of [`Presentation`] go with either. A key that the chosen
/// source does not read is an error.
///
/// ```
/// # use rloom_data::{DataSettings, Source};
/// let settings: DataSettings = serde_json::from_str(r#"{ "generator": "arithmetic", "max_digits": 3 }"#).unwrap();
/// assert!(matches!(settings.source, Source::Arithmetic(s) if s.max_digits == 3));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct DataSettings {
    /// Where tasks come from.
    pub source: Source,
    /// How prompts are put before the policy.
    pub presentation: Presentation,
}

/// Where tasks come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// JSONL or Parquet files.
    Files(FileSettings),
    /// Two operands and an operation.
    Arithmetic(ArithmeticSettings),
    /// Numbers and a target.
    Countdown(CountdownSettings),
    /// Secrets to guess, in several turns.
    Guess(GuessSettings),
    /// Lists to sort.
    Sorting(SortingSettings),
}

impl Source {
    /// Its name in messages; for a generator also the domain of its tasks.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Files(_) => "files",
            Self::Arithmetic(_) => "arithmetic",
            Self::Countdown(_) => "countdown",
            Self::Guess(_) => "guess",
            Self::Sorting(_) => "sorting",
        }
    }

    pub(crate) fn files(&self) -> Option<&FileSettings> {
        match self {
            Self::Files(files) => Some(files),
            _ => None,
        }
    }
}

impl From<Source> for DataSettings {
    fn from(source: Source) -> Self {
        Self { source, presentation: Presentation::default() }
    }
}

impl DataSettings {
    /// Checks the settings against each other, without touching a file.
    pub fn validate(&self) -> Result<(), DataError> {
        self.presentation.validate()?;
        match &self.source {
            Source::Files(s) => s.validate(),
            Source::Arithmetic(s) => s.validate(),
            Source::Countdown(s) => s.validate(),
            Source::Guess(s) => s.validate(),
            Source::Sorting(s) => s.validate(),
        }
    }

    /// Whether there is a held-out split.
    pub fn has_held_out(&self) -> bool {
        self.source.files().is_none_or(|f| f.eval_path.is_some() || f.eval_rows.is_some())
    }

    /// The characters that a generator's tasks are made of, with those of the template and the system
    /// message: what a tokenizer made from nothing needs. `None` for files, which may hold anything.
    pub fn alphabet(&self) -> Option<String> {
        let own = match &self.source {
            Source::Files(_) => return None,
            Source::Arithmetic(s) => s.alphabet(),
            Source::Countdown(s) => s.alphabet(),
            Source::Guess(s) => s.alphabet(),
            Source::Sorting(s) => s.alphabet(),
        };
        let around = [&self.presentation.system, &self.presentation.template];
        let around = around.into_iter().flatten().map(|t| t.replace("{prompt}", ""));
        let mut characters: Vec<char> = own.chars().chain(around.collect::<String>().chars()).collect();
        characters.sort_unstable();
        characters.dedup();
        Some(characters.into_iter().collect())
    }
}

/// Every key that some source reads, with its type. Reading into this first lets the configuration reader
/// point at the very key that is misspelt or of the wrong type, which a buffered enum could not; the chosen
/// source then refuses the keys that are not its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    generator: Option<GeneratorName>,
    // Files
    path: Option<Paths>,
    eval_path: Option<Paths>,
    eval_rows: Option<u64>,
    limit: Option<u64>,
    prompt_field: Option<String>,
    messages_field: Option<String>,
    answer_field: Option<String>,
    demonstration_field: Option<String>,
    domain_field: Option<String>,
    domain: Option<String>,
    answer_marker: Option<String>,
    // Presentation
    system: Option<String>,
    template: Option<String>,
    chat: Option<bool>,
    // Generators
    operations: Option<Vec<Operation>>,
    min_digits: Option<u32>,
    max_digits: Option<u32>,
    digits: Option<Digits>,
    style: Option<Style>,
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
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GeneratorName {
    Arithmetic,
    Countdown,
    Guess,
    Sorting,
}

const PRESENTATION_KEYS: [&str; 3] = ["system", "template", "chat"];

impl<'de> Deserialize<'de> for DataSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_keys(&Keys::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn from_keys(keys: &Keys) -> Result<DataSettings, String> {
    let generator = keys.generator;
    let Ok(Value::Object(mut given)) = serde_json::to_value(keys) else {
        return Err("the data settings are not a table".into());
    };
    given.retain(|_, value| !value.is_null());
    let mut presentation = Map::new();
    for key in PRESENTATION_KEYS {
        if let Some(value) = given.shift_remove(key) {
            presentation.insert(key.to_owned(), value);
        }
    }
    let presentation = own(presentation, "presentation")?;
    given.shift_remove("generator");
    let source = match (generator, given.contains_key("path")) {
        (Some(_), true) => {
            return Err("`generator` and `path` exclude each other: the tasks come from one of them".into());
        }
        (None, false) => {
            return Err(
                "the data needs a `generator` (arithmetic, countdown, guess, sorting) or a `path`".into()
            );
        }
        (None, true) => Source::Files(own(given, "files")?),
        (Some(GeneratorName::Arithmetic), _) => Source::Arithmetic(own(given, "arithmetic")?),
        (Some(GeneratorName::Countdown), _) => Source::Countdown(own(given, "countdown")?),
        (Some(GeneratorName::Guess), _) => Source::Guess(own(given, "guess")?),
        (Some(GeneratorName::Sorting), _) => Source::Sorting(own(given, "sorting")?),
    };
    Ok(DataSettings { source, presentation })
}

/// Reads a source's own keys; any other is one that it does not read.
fn own<T: serde::de::DeserializeOwned>(given: Map<String, Value>, source: &str) -> Result<T, String> {
    serde_json::from_value(Value::Object(given)).map_err(|e| format!("{e} (keys of `{source}` data)"))
}

impl Serialize for DataSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let source = match &self.source {
            Source::Files(s) => serde_json::to_value(s),
            Source::Arithmetic(s) => serde_json::to_value(s),
            Source::Countdown(s) => serde_json::to_value(s),
            Source::Guess(s) => serde_json::to_value(s),
            Source::Sorting(s) => serde_json::to_value(s),
        };
        let presentation = serde_json::to_value(&self.presentation);
        let mut map = serializer.serialize_map(None)?;
        if self.source.files().is_none() {
            map.serialize_entry("generator", self.source.name())?;
        }
        for part in [source, presentation] {
            if let Value::Object(keys) = part.map_err(S::Error::custom)? {
                for (key, value) in keys {
                    map.serialize_entry(&key, &value)?;
                }
            }
        }
        map.end()
    }
}
