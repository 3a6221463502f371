//! Adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Adapter, AdapterError, LoraConfig, LoraTarget, Magnitudes, PREFIX};
use crate::checkpoint::{Checkpoint, CheckpointError, TensorFile, write_tensors};
use crate::model::tensors_out;
use crate::{ModelConfig, OutputHeads};

/// End of the name of a vector of magnitudes.
const MAGNITUDE: &str = "lora_magnitude_vector";
const CONFIG: &str = "adapter_config.json";
pub(crate) const TENSORS: &str = "adapter_model.safetensors";
/// Entry of the tensors' metadata with the digest of the base.
const BASE_DIGEST: &str = "base_digest";

/// The configuration and the tensors of an adapter.
pub(crate) const FILES: [&str; 2] = [CONFIG, TENSORS];

/// True if a folder holds an adapter and no model.
pub(crate) fn is_adapter(folder: &Path) -> bool {
    folder.join(CONFIG).is_file() && !Checkpoint::exists(folder)
}

/// Fields of `adapter_config.json` that decide what the adapter computes. Others describe its training.
#[derive(Debug, Deserialize)]
struct File {
    peft_type: String,
    base_model_name_or_path: Option<String>,
    r: usize,
    lora_alpha: f64,
    target_modules: Option<Targets>,
    #[serde(default)]
    use_rslora: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Targets {
    Text(String),
    List(Vec<String>),
}

/// Settings that change what an adapter computes, in the state in which they do not. Absent and empty ones do not either.
fn neutral() -> [(&'static str, Value); 13] {
    [
        ("bias", json!("none")),
        (DORA, json!(false)),
        ("fan_in_fan_out", json!(false)),
        ("lora_bias", json!(false)),
        ("layers_to_transform", Value::Null),
        ("layer_replication", Value::Null),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
        ("exclude_modules", Value::Null),
        ("target_parameters", Value::Null),
        ("trainable_token_indices", Value::Null),
        ("use_qalora", json!(false)),
        ("alora_invocation_tokens", Value::Null),
    ]
}

/// The setting of DoRA.
const DORA: &str = "use_dora";

/// Modules that are trained as a whole: value heads.
const SAVED: &str = "modules_to_save";
/// Names of value heads that PEFT lists for every classifier.
const VALUE_HEADS: [&str; 2] = ["classifier", "score"];

/// Number of the settings of [`neutral`] that every version of PEFT has.
const ALWAYS_WRITTEN: usize = 3;

/// The configuration of a stored adapter.
pub(crate) struct StoredAdapter {
    folder: PathBuf,
    config: LoraConfig,
    base: PathBuf,
    is_dora: bool,
    /// The adapter has a value head: it is that of a reward model.
    has_value: bool,
}

impl StoredAdapter {
    /// Reads `adapter_config.json` of a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, AdapterError> {
        let (path, file) = read_config(folder)?;
        let unsupported = |what: String| AdapterError::Unsupported { path: path.clone(), what };
        if file.peft_type != "LORA" {
            return Err(unsupported(format!("`peft_type` {:?}", file.peft_type)));
        }
        for (key, neutral) in neutral() {
            let value = file.others.get(key).unwrap_or(&Value::Null);
            let is_empty = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty);
            // Its magnitudes are read as well.
            let is_read = key == DORA && value.is_boolean();
            if !is_empty && !is_read && *value != neutral {
                return Err(unsupported(format!("`{key}` {value}")));
            }
        }
        let targets = match &file.target_modules {
            Some(Targets::Text(text)) if text == "all-linear" => LoraTarget::LAYER.to_vec(),
            Some(Targets::List(names)) => names
                .iter()
                .map(|name| {
                    LoraTarget::from_name(name)
                        .ok_or_else(|| unsupported(format!("the target module {name:?}")))
                })
                .collect::<Result<_, _>>()?,
            Some(Targets::Text(text)) => return Err(unsupported(format!("`target_modules` {text:?}"))),
            None => return Err(unsupported("an adapter without `target_modules`".to_owned())),
        };
        let saved = file.others.get(SAVED).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if let Some(other) = saved.iter().find(|name| !VALUE_HEADS.iter().any(|known| *name == known)) {
            return Err(unsupported(format!("`{SAVED}` {other}")));
        }
        let has_value = saved.iter().any(|name| name == "score");
        if file.r == 0 || targets.is_empty() {
            return Err(unsupported("an adapter without parameters".to_owned()));
        }
        Ok(Self {
            base: recorded_base(folder, path, &file)?,
            config: LoraConfig::new(file.r, file.lora_alpha, file.use_rslora, &targets),
            folder: folder.to_owned(),
            is_dora: file.others.get(DORA) == Some(&json!(true)),
            has_value,
        })
    }

    /// Shape of an adapter that is computed over its base: DoRA's are added to it when they are read.
    pub(crate) fn config(&self) -> Result<&LoraConfig, AdapterError> {
        if self.is_dora {
            let (path, what) = (self.folder.join(CONFIG), format!("`{DORA}` true"));
            return Err(AdapterError::Unsupported { path, what });
        }
        Ok(&self.config)
    }

    /// Configuration of the base with the heads of the adapter. That of a reward model is in the adapter's folder, if it was trained
    /// by this program; of adapters of other programs, the base's is read.
    pub(crate) fn model(&self, base: &ModelConfig, heads: OutputHeads) -> Result<ModelConfig, AdapterError> {
        let path = || self.folder.join(CONFIG);
        match (self.has_value, heads.rewards()) {
            (true, false) => return Err(AdapterError::RewardModel { path: path() }),
            (false, true) => return Err(AdapterError::NoRewardModel { path: path() }),
            (false, false) => return Ok(base.clone()),
            (true, true) => {}
        }
        let mut config = base.clone();
        config.output_heads = heads;
        let file = self.folder.join("config.json");
        if !file.is_file() {
            return Ok(config);
        }
        let own = ModelConfig::from_file_as(&file, heads)?;
        if own.parameter_count() != config.parameter_count() {
            return Err(AdapterError::OtherShape { path: self.folder.clone() });
        }
        Ok(config.with_settings_of(own))
    }

    /// True for DoRA.
    pub(crate) fn is_dora(&self) -> bool {
        self.is_dora
    }

    /// Folder of the base.
    pub(crate) fn base(&self) -> Result<&Path, AdapterError> {
        check_base(&self.folder, &self.base)?;
        Ok(&self.base)
    }

    /// Reads the tensors of the adapter for a base with this configuration; `digest` is that of the base's weights.
    pub(crate) fn read(
        &self,
        model: &ModelConfig,
        digest: impl FnOnce() -> u64,
    ) -> Result<Adapter, AdapterError> {
        let path = self.folder.join(TENSORS);
        let file = TensorFile::open(&path)?;
        let mut adapter = Adapter::zeros(model, self.config.clone());
        let expected = adapter.specs.iter().map(|spec| spec.name.as_str()).collect();
        let names = file.names();
        let names = names.iter().map(String::as_str);
        let of_factors = names.filter(|name| !(self.is_dora && name.ends_with(MAGNITUDE)));
        let names: BTreeSet<&str> = of_factors.collect();
        if let Some(name) = names.difference(&expected).next() {
            let more = names.difference(&expected).count() - 1;
            return Err(CheckpointError::UnexpectedTensor { path, name: (*name).to_owned(), more }.into());
        }
        let specs = std::sync::Arc::clone(&adapter.specs);
        let mut bufs = adapter.tensors.bufs_mut();
        for spec in specs.iter() {
            let to = &mut bufs[spec.buffer].as_mut_slice()[spec.offset..][..spec.len()];
            file.read_into(&spec.name, &spec.shape, to)?;
        }
        // Adapters of other programs have no digest.
        let recorded = file.metadata_entry(BASE_DIGEST).and_then(|text| u64::from_str_radix(text, 16).ok());
        if recorded.is_some_and(|recorded| recorded != digest()) {
            return Err(AdapterError::OtherBase { path, base: self.base.clone() });
        }
        Ok(adapter)
    }

    /// Reads the magnitudes of DoRA; `None` for another adapter.
    pub(crate) fn magnitudes(&self, model: &ModelConfig) -> Result<Option<Magnitudes>, AdapterError> {
        if !self.is_dora {
            return Ok(None);
        }
        let file = TensorFile::open(&self.folder.join(TENSORS))?;
        let mut read = |prefix: &str, target: LoraTarget| {
            let mut values = vec![0.0; target.features(model)];
            let name = format!("{PREFIX}{prefix}{}.{MAGNITUDE}", target.module());
            file.read_into(&name, &[values.len()], &mut values)?;
            Ok(values)
        };
        Magnitudes::of(model, &self.config, &mut read).map(Some)
    }
}

/// Heads of the adapter in a folder by the task that PEFT names; `None` without one.
pub(crate) fn heads_of(folder: &Path) -> Option<OutputHeads> {
    if !is_adapter(folder) {
        return None;
    }
    let (_, file) = read_config(folder).ok()?;
    [OutputHeads::Reward, OutputHeads::ProcessReward]
        .into_iter()
        .find(|heads| file.others.get("task_type").and_then(Value::as_str) == Some(heads.peft_task()))
}

/// Folder of the base of an adapter of any kind, also of one that this process does not compute.
pub(crate) fn base_of(folder: &Path) -> Result<PathBuf, AdapterError> {
    let (path, file) = read_config(folder)?;
    let base = recorded_base(folder, path, &file)?;
    check_base(folder, &base)?;
    Ok(base)
}

fn read_config(folder: &Path) -> Result<(PathBuf, File), AdapterError> {
    let path = folder.join(CONFIG);
    let text =
        std::fs::read_to_string(&path).map_err(|source| AdapterError::Read { path: path.clone(), source })?;
    let file =
        serde_json::from_str(&text).map_err(|source| AdapterError::Json { path: path.clone(), source })?;
    Ok((path, file))
}

fn recorded_base(folder: &Path, path: PathBuf, file: &File) -> Result<PathBuf, AdapterError> {
    let recorded = Path::new(file.base_model_name_or_path.as_deref().unwrap_or_default());
    base_folder(folder, recorded).ok_or_else(|| AdapterError::BaseMissing { path, base: recorded.to_owned() })
}

fn check_base(folder: &Path, base: &Path) -> Result<(), AdapterError> {
    if is_adapter(base) {
        return Err(AdapterError::Nested { path: folder.join(CONFIG), base: base.to_owned() });
    }
    Ok(())
}

/// The folder of an adapter's base: as recorded, or next to the adapter's folder if the run was moved.
fn base_folder(adapter: &Path, recorded: &Path) -> Option<PathBuf> {
    // Another checkpoint of the same run, or its initial model.
    let moved = adapter.ancestors().skip(1).take(2).zip(std::iter::repeat(recorded.file_name()));
    let moved = moved.filter_map(|(parent, name)| Some(parent.join(name?)));
    [recorded.to_owned(), adapter.join(recorded)]
        .into_iter()
        .chain(moved)
        .filter(|base| base != adapter)
        .find(|folder| folder.join("config.json").is_file())
}

/// Writes an adapter on a base in a folder, whose weights have this digest.
pub(crate) fn save(adapter: &Adapter, folder: &Path, base: &Path, digest: u64) -> Result<(), AdapterError> {
    let base =
        std::path::absolute(base).map_err(|source| AdapterError::Read { path: base.to_owned(), source })?;
    let LoraConfig { rank, alpha, rslora, targets } = &adapter.config;
    let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
    let heads = adapter.model.output_heads;
    let saved = if heads.rewards() { json!(["score"]) } else { Value::Null };
    let settings = [
        ("peft_type", json!("LORA")),
        ("task_type", json!(heads.peft_task())),
        ("base_model_name_or_path", json!(base.display().to_string())),
        ("r", json!(rank)),
        ("lora_alpha", json!(alpha)),
        ("lora_dropout", json!(0.0)),
        ("use_rslora", json!(rslora)),
        ("target_modules", json!(names)),
        ("inference_mode", json!(true)),
        (SAVED, saved),
    ];
    let config = settings
        .into_iter()
        .chain(neutral().into_iter().take(ALWAYS_WRITTEN))
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    crate::generation::write_json(&folder.join(CONFIG), &config)?;
    let notes = [("format", "pt".to_owned()), (BASE_DIGEST, format!("{digest:016x}"))];
    let bufs = adapter.tensors.bufs();
    // The value head of a policy has a file of its own.
    let specs = adapter.specs.iter().filter(|spec| heads.rewards() || !spec.is_value_head());
    let named = specs.map(|spec| (spec, &bufs[spec.buffer].as_slice()[spec.offset..][..spec.len()]));
    write_tensors(&folder.join(TENSORS), &notes, tensors_out(named, ""))?;
    Ok(())
}
