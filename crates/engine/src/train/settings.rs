use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::lora::{LoraModule, LoraSettings};
use super::parallel::{DeepspeedSettings, MegatronSettings, ParallelSizes};
use super::reference::ReferenceSettings;

/// Activations that the backward pass recomputes instead of keeping them (Chen et al., 2016, arXiv:1604.06174): trades
/// compute for memory. Scores and gradients are bitwise identical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivationCheckpointing {
    /// Keeps all activations that are expensive to compute.
    #[default]
    None,
    /// Recomputes attention. The PyTorch backend does not have it.
    Attention,
    /// Keeps only each layer's input.
    Block,
}

/// Settings of the training engine, `[stage.trainer]` in a recipe: a flat table with `backend` and the keys of that
/// backend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainSettings {
    /// Implementation, with its own settings.
    #[serde(flatten)]
    pub backend: Backend,
    /// Maximum number of tokens (prompt and completion; a shared prompt counts once) per forward and backward pass of a
    /// rank.
    pub micro_batch_tokens: usize,
    /// Activations to recompute in the backward pass.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Trains a LoRA adapter instead of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSettings>,
    /// The reference policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceSettings>,
    /// Threads for training.
    pub threads: usize,
    /// Maximum number of optimiser steps of a stage that are skipped because a number is not finite.
    pub max_skipped_steps: u64,
}

/// Implementation of training.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "backend", rename_all = "snake_case")]
pub enum Backend {
    /// The engine of this process.
    Embedded(EmbeddedSettings),
    /// PyTorch ranks in processes of their own, which divide a model by FSDP2.
    Torch(TorchSettings),
    /// PyTorch ranks in processes of their own, which divide a model by DeepSpeed's ZeRO-3.
    Deepspeed(DeepspeedSettings),
    /// PyTorch ranks in processes of their own, which divide a model by Megatron-Core.
    Megatron(MegatronSettings),
}

impl Default for Backend {
    fn default() -> Self {
        Self::Embedded(EmbeddedSettings::default())
    }
}

/// Keys of the embedded backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedSettings {
    /// Computes a group's common prompt once for all of its completions. Scores are bitwise identical; gradients change
    /// by rounding only.
    pub share_prompts: bool,
    /// Number type of the weights in `model.safetensors` of a checkpoint. With `"bf16"` other programs read half the bytes; the
    /// bits that rounding loses are in a second file, so that a resumed run continues exactly. Adapters and critics are in f32.
    pub save_dtype: SaveDtype,
}

impl Default for EmbeddedSettings {
    fn default() -> Self {
        Self { share_prompts: true, save_dtype: SaveDtype::F32 }
    }
}

/// Number type of saved weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaveDtype {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16, with the bits that it loses in a second file.
    Bf16,
}

/// Keys of the backends with PyTorch ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TorchSettings {
    /// Processes that train. Micro-batches are divided among them; results change by rounding only.
    pub ranks: usize,
    /// Ranks that share one copy of weights, gradients and optimiser state; 0 for all. 1 gives every rank a whole copy. Must
    /// divide `ranks`. DeepSpeed and Megatron share among all.
    pub shard: usize,
    /// Ranks that divide the tokens of a micro-batch among themselves, for sequences whose activations do not fit one
    /// device. Must divide `ranks` and the attention heads of the model. Not with Megatron.
    pub sequence_parallel: usize,
    /// Ranks of the critic and of the process-reward model use the devices of the policy's ranks, in turn. With false each
    /// model has as many devices of its own: other GPUs, or other machines or cores.
    pub colocate_critic: bool,
    /// Keeps weights, gradients and optimiser state in the memory of the host while they are not used. PyTorch alone.
    pub offload: bool,
    /// Uses deterministic kernels alone, so that two runs give the same bits. On CPUs they always do.
    pub deterministic: bool,
    /// Python interpreter of an environment with `torch`, `transformers` and the package `rloom`; empty for the one that
    /// `rloom engines install` made.
    pub python: String,
    /// Timeout of one call to all ranks, such as an optimiser step or a checkpoint, in seconds. A rank that does not answer
    /// in time is lost like one that has died.
    pub step_timeout_seconds: f64,
    /// Maximum number of times that the stage restarts from the same checkpoint after a rank was lost. All ranks are
    /// started again, and the recorded batches after the checkpoint are trained again. With 0 the first loss ends the run.
    pub restarts: u32,
}

impl Default for TorchSettings {
    fn default() -> Self {
        Self {
            ranks: 1,
            shard: 0,
            sequence_parallel: 1,
            colocate_critic: true,
            offload: false,
            deterministic: false,
            python: String::new(),
            step_timeout_seconds: 1800.0,
            restarts: 3,
        }
    }
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            micro_batch_tokens: 4096,
            activation_checkpointing: ActivationCheckpointing::None,
            lora: None,
            reference: None,
            threads: 0,
            max_skipped_steps: 0,
        }
    }
}

/// Most ranks; larger numbers are typing errors.
const MAX_RANKS: f64 = 65_536.0;
/// A year, which clocks can add without overflow.
const MAX_SECONDS: f64 = 31_536_000.0;

impl TrainSettings {
    /// Keys of every backend.
    pub const COMMON_KEYS: [&str; 7] = [
        "backend",
        "micro_batch_tokens",
        "activation_checkpointing",
        "lora",
        "reference",
        "threads",
        "max_skipped_steps",
    ];

    /// Settings of the ranks, if processes of their own train.
    pub fn ranks(&self) -> Option<&TorchSettings> {
        match &self.backend {
            Backend::Embedded(_) => None,
            Backend::Torch(ranks) => Some(ranks),
            Backend::Deepspeed(settings) => Some(&settings.ranks),
            Backend::Megatron(settings) => Some(&settings.ranks),
        }
    }

    /// Sizes by which ranks divide a model; 1 where the backend does not have them.
    pub fn sizes(&self) -> ParallelSizes {
        match &self.backend {
            Backend::Embedded(_) | Backend::Torch(_) => ParallelSizes::default(),
            Backend::Deepspeed(settings) => {
                ParallelSizes { tensor_parallel: settings.tensor_parallel, ..ParallelSizes::default() }
            }
            Backend::Megatron(settings) => settings.sizes,
        }
    }

    /// Number type of the weights in checkpoints of the embedded backend.
    pub fn save_dtype(&self) -> SaveDtype {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.save_dtype,
            _ => SaveDtype::F32,
        }
    }

    /// Groups of ranks that compute different micro-batches.
    pub fn groups(&self) -> usize {
        self.ranks().map_or(1, |ranks| self.sizes().groups(ranks))
    }

    /// True if a group's common prompt is computed once.
    pub fn shares_prompts(&self) -> bool {
        matches!(&self.backend, Backend::Embedded(embedded) if embedded.share_prompts)
    }

    /// Maximum number of restarts from the same checkpoint after a process that trains was lost.
    pub fn restarts(&self) -> u32 {
        self.ranks().map_or(0, |ranks| ranks.restarts)
    }

    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), SettingError> {
        ValueRange::at_least(1.0).check("micro_batch_tokens", self.micro_batch_tokens as f64)?;
        if let Some(lora) = &self.lora {
            lora.validate()?;
        }
        if let Some(reference) = &self.reference {
            reference.validate()?;
            if self.lora.is_some() && reference.sync_every.is_some() {
                return Err(SettingProblem::Conflict { other: "lora" }.at("reference.sync_every"));
            }
        }
        if let Some(lora) = &self.lora {
            self.check_adapter(lora)?;
        }
        let Some(torch) = self.ranks() else { return Ok(()) };
        ValueRange::between(1.0, MAX_RANKS).check("ranks", torch.ranks as f64)?;
        let refuse = |key, value: String, expected| Err(SettingProblem::Invalid { value, expected }.at(key));
        if torch.shard > 0 && !torch.ranks.is_multiple_of(torch.shard) {
            return refuse("shard", torch.shard.to_string(), "a divisor of `ranks`, or 0 for all ranks");
        }
        self.check_backend(torch)?;
        self.sizes().check(torch)?;
        if self.activation_checkpointing == ActivationCheckpointing::Attention {
            let value = "\"attention\"".to_owned();
            return refuse("activation_checkpointing", value, "\"none\" or \"block\" with PyTorch ranks");
        }
        ValueRange::above(0.0, MAX_SECONDS).check("step_timeout_seconds", torch.step_timeout_seconds)
    }

    /// Refuses adapters that a backend does not train.
    fn check_adapter(&self, lora: &LoraSettings) -> Result<(), SettingError> {
        let refuse = |key, value: &str, expected| {
            Err(SettingProblem::Invalid { value: value.to_owned(), expected }.at(key))
        };
        match &self.backend {
            Backend::Embedded(_) if lora.dora => {
                refuse("lora.dora", "true", "false with the embedded backend; `torch` has it")
            }
            Backend::Embedded(_) if lora.quantize.is_some() => {
                refuse("lora.quantize", "\"nf4\"", "absent with the embedded backend; `torch` has it")
            }
            Backend::Torch(torch) if lora.quantize.is_some() && torch.ranks > 1 => refuse(
                "ranks",
                &torch.ranks.to_string(),
                "1 with `lora.quantize`; without it, ranks divide the base among themselves",
            ),
            Backend::Torch(torch) if lora.quantize.is_some() && torch.offload => {
                refuse("offload", "true", "false with `lora.quantize`")
            }
            Backend::Torch(_) if lora.targets.contains(&LoraModule::LmHead) => refuse(
                "lora.targets",
                "lm_head",
                "layers but the language head with PyTorch ranks; `embedded` adapts it",
            ),
            Backend::Embedded(_) | Backend::Torch(_) => Ok(()),
            Backend::Deepspeed(_) | Backend::Megatron(_) => {
                refuse("lora", "a table", "absent with this backend; `torch` and `embedded` train adapters")
            }
        }
    }

    /// Refuses what a backend does not have.
    fn check_backend(&self, torch: &TorchSettings) -> Result<(), SettingError> {
        let refuse = |key, value: String, expected| Err(SettingProblem::Invalid { value, expected }.at(key));
        let sequence_parallel = torch.sequence_parallel > 1;
        let expected = match &self.backend {
            Backend::Megatron(_) => Some("1 with the Megatron backend, which has `context_parallel` instead"),
            Backend::Deepspeed(own) if own.tensor_parallel > 1 => Some("1 with `tensor_parallel` above 1"),
            _ => None,
        };
        if let (true, Some(expected)) = (sequence_parallel, expected) {
            return refuse("sequence_parallel", torch.sequence_parallel.to_string(), expected);
        }
        if matches!(self.backend, Backend::Torch(_)) {
            return Ok(());
        }
        if torch.shard > 0 {
            return refuse(
                "shard",
                torch.shard.to_string(),
                "0 with this backend, which shares among all ranks",
            );
        }
        if torch.offload {
            return refuse("offload", "true".to_owned(), "false with this backend");
        }
        Ok(())
    }
}

/// The keys of all backends, with their types. Deserialising this first reports misspelt keys and wrong types at the right
/// place in the file; the selected backend then rejects the keys of the others.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    backend: Option<BackendName>,
    micro_batch_tokens: Option<usize>,
    activation_checkpointing: Option<ActivationCheckpointing>,
    lora: Option<LoraSettings>,
    reference: Option<ReferenceSettings>,
    threads: Option<usize>,
    max_skipped_steps: Option<u64>,
    share_prompts: Option<bool>,
    save_dtype: Option<SaveDtype>,
    ranks: Option<usize>,
    shard: Option<usize>,
    sequence_parallel: Option<usize>,
    tensor_parallel: Option<usize>,
    pipeline_parallel: Option<usize>,
    context_parallel: Option<usize>,
    expert_parallel: Option<usize>,
    colocate_critic: Option<bool>,
    offload: Option<bool>,
    deterministic: Option<bool>,
    python: Option<String>,
    step_timeout_seconds: Option<f64>,
    restarts: Option<u32>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BackendName {
    #[default]
    Embedded,
    Torch,
    Deepspeed,
    Megatron,
}

impl<'de> Deserialize<'de> for TrainSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Keys::deserialize(deserializer)?;
        let Value::Object(mut own) = serde_json::to_value(&keys).map_err(D::Error::custom)? else {
            return Err(D::Error::custom("the trainer is not a table"));
        };
        own.retain(|key, value| !value.is_null() && !Self::COMMON_KEYS.contains(&key.as_str()));
        let backend = match keys.backend.unwrap_or_default() {
            BackendName::Embedded => Backend::Embedded(from_own_keys(own, "embedded")?),
            BackendName::Torch => Backend::Torch(from_own_keys(own, "torch")?),
            BackendName::Deepspeed => {
                let sizes: ParallelSizes = taken(&mut own, &["tensor_parallel"])?;
                let ranks = from_own_keys(own, "deepspeed")?;
                Backend::Deepspeed(DeepspeedSettings { ranks, tensor_parallel: sizes.tensor_parallel })
            }
            BackendName::Megatron => {
                let sizes = taken(&mut own, &ParallelSizes::KEYS)?;
                Backend::Megatron(MegatronSettings { ranks: from_own_keys(own, "megatron")?, sizes })
            }
        };
        let default = Self::default();
        Ok(Self {
            backend,
            micro_batch_tokens: keys.micro_batch_tokens.unwrap_or(default.micro_batch_tokens),
            activation_checkpointing: keys.activation_checkpointing.unwrap_or_default(),
            lora: keys.lora,
            reference: keys.reference,
            threads: keys.threads.unwrap_or(default.threads),
            max_skipped_steps: keys.max_skipped_steps.unwrap_or(default.max_skipped_steps),
        })
    }
}

/// Deserialises some of the keys and removes them.
fn taken<T: DeserializeOwned, E: Error>(own: &mut Map<String, Value>, keys: &[&str]) -> Result<T, E> {
    let taken = keys.iter().filter_map(|key| own.remove_entry(*key)).collect();
    serde_json::from_value(Value::Object(taken)).map_err(E::custom)
}

/// Deserialises the keys of one backend; keys of others are errors.
fn from_own_keys<T: DeserializeOwned, E: Error>(own: Map<String, Value>, backend: &str) -> Result<T, E> {
    let readers =
        ParallelSizes::KEYS.iter().find(|key| own.contains_key(**key)).map_or("", |key| match *key {
            "tensor_parallel" => "; `deepspeed` and `megatron` have it",
            _ => "; `megatron` has it",
        });
    serde_json::from_value(Value::Object(own))
        .map_err(|e| E::custom(format_args!("{e} (keys of the backend `{backend}`{readers})")))
}

/// The flat table as a schema: one alternative per backend.
impl JsonSchema for TrainSettings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TrainSettings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Table::json_schema(generator)
    }
}

/// The training engine of a stage.
#[derive(JsonSchema)]
#[serde(default)]
#[expect(dead_code, reason = "only its schema is used")]
struct Table {
    #[serde(flatten)]
    backend: BackendTable,
    /// Maximum number of tokens (prompt and completion; a shared prompt counts once) per forward and backward pass. A
    /// longer sequence is a micro-batch of its own. Bounds the memory of activations; results change by rounding only.
    micro_batch_tokens: usize,
    /// Activations to recompute in the backward pass: none, attention, or all of a layer but its input. Trades compute
    /// for memory; results are bitwise identical.
    activation_checkpointing: ActivationCheckpointing,
    /// Trains a LoRA adapter over the weights that the stage starts from, which stay as they are. Default: all weights are
    /// trained. The backends `embedded` and `torch` have it; `torch` needs the package `peft`.
    lora: Option<LoraSettings>,
    /// The reference policy of methods that have one. Default: the policy at the start of the stage.
    reference: Option<ReferenceSettings>,
    /// Threads for training; 0 for all threads of the run, also if rollouts run at the same time. PyTorch ranks divide them.
    threads: usize,
    /// Maximum number of optimiser steps of a stage that are skipped because a score, the loss or the gradient is not
    /// finite: the weights stay as they are, and training continues. One more ends the run. 0 ends it at the first.
    max_skipped_steps: u64,
}

impl Default for Table {
    fn default() -> Self {
        let TrainSettings {
            micro_batch_tokens,
            activation_checkpointing,
            lora,
            reference,
            threads,
            max_skipped_steps,
            ..
        } = TrainSettings::default();
        let backend = BackendTable::Embedded(EmbeddedSettings::default());
        Self {
            backend,
            micro_batch_tokens,
            activation_checkpointing,
            lora,
            reference,
            threads,
            max_skipped_steps,
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "backend", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum BackendTable {
    /// The engine of this process. The default.
    Embedded(EmbeddedSettings),
    /// PyTorch ranks in processes of their own, for any causal language model that `transformers` opens.
    Torch(TorchSettings),
    /// The same, with DeepSpeed's ZeRO-3 instead of FSDP2, in an environment that has `deepspeed`. No mixtures of experts.
    Deepspeed(DeepspeedSettings),
    /// Ranks that divide a model by Megatron-Core, in an environment that has `megatron-bridge`, for the families that it
    /// converts. Policies without a value head. It was not run on GPUs.
    Megatron(MegatronSettings),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<TrainSettings, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_selects_its_backend() {
        assert_eq!(parse("{}").unwrap(), TrainSettings::default());
        let torch = parse(r#"{ "backend": "torch", "ranks": 4, "shard": 2, "threads": 8 }"#).unwrap();
        let expected = TorchSettings { ranks: 4, shard: 2, ..TorchSettings::default() };
        assert_eq!((torch.backend.clone(), torch.threads), (Backend::Torch(expected), 8));
        let text = serde_json::to_string(&torch).unwrap();
        assert_eq!(parse(&text).unwrap(), torch);
    }

    #[test]
    fn keys_of_another_backend_are_refused() {
        let error = parse(r#"{ "ranks": 2 }"#).unwrap_err();
        assert!(error.contains("unknown field `ranks`") && error.contains("backend `embedded`"), "{error}");
        let error = parse(r#"{ "backend": "torch", "share_prompts": true }"#).unwrap_err();
        assert!(error.contains("unknown field `share_prompts`"), "{error}");
        for (backend, key, readers) in [
            ("torch", "tensor_parallel", "`torch`; `deepspeed` and `megatron` have it"),
            ("torch", "expert_parallel", "`torch`; `megatron` has it"),
            ("deepspeed", "context_parallel", "`deepspeed`; `megatron` has it"),
        ] {
            let error = parse(&format!(r#"{{ "backend": "{backend}", "{key}": 1 }}"#)).unwrap_err();
            assert!(error.contains(&format!("unknown field `{key}`")) && error.contains(readers), "{error}");
        }
    }

    #[test]
    fn a_table_has_the_keys_of_its_backend() {
        let keys = |backend: &str| {
            let settings = parse(&format!(r#"{{ "backend": "{backend}" }}"#)).unwrap();
            let text = serde_json::to_string(&settings).unwrap();
            assert_eq!(parse(&text).unwrap(), settings);
            ParallelSizes::KEYS.map(|key| text.contains(&format!("\"{key}\"")))
        };
        assert_eq!(keys("torch"), [false; 4]);
        assert_eq!(keys("deepspeed"), [true, false, false, false]);
        assert_eq!(keys("megatron"), [true; 4]);
    }

    #[test]
    fn ranges_are_checked() {
        for (json, key) in [
            (r#"{ "backend": "torch", "ranks": 0 }"#, "ranks"),
            (r#"{ "backend": "torch", "ranks": 4, "shard": 3 }"#, "shard"),
            (r#"{ "backend": "torch", "ranks": 4, "sequence_parallel": 3 }"#, "sequence_parallel"),
            (r#"{ "backend": "torch", "sequence_parallel": 0 }"#, "sequence_parallel"),
            (r#"{ "backend": "deepspeed", "ranks": 4, "shard": 2 }"#, "shard"),
            (r#"{ "backend": "deepspeed", "offload": true }"#, "offload"),
            (r#"{ "backend": "deepspeed", "ranks": 0 }"#, "ranks"),
            (r#"{ "backend": "deepspeed", "ranks": 4, "tensor_parallel": 3 }"#, "tensor_parallel"),
            (
                r#"{ "backend": "deepspeed", "ranks": 4, "tensor_parallel": 2, "sequence_parallel": 2 }"#,
                "sequence_parallel",
            ),
            (r#"{ "backend": "megatron", "ranks": 4, "sequence_parallel": 2 }"#, "sequence_parallel"),
            (r#"{ "backend": "megatron", "ranks": 4, "shard": 2 }"#, "shard"),
            (r#"{ "backend": "megatron", "ranks": 4, "tensor_parallel": 3 }"#, "tensor_parallel"),
            (r#"{ "backend": "megatron", "ranks": 4, "context_parallel": 0 }"#, "context_parallel"),
            (
                r#"{ "backend": "megatron", "ranks": 4, "tensor_parallel": 4, "pipeline_parallel": 2 }"#,
                "pipeline_parallel",
            ),
            (
                r#"{ "backend": "megatron", "ranks": 8, "pipeline_parallel": 2, "expert_parallel": 8 }"#,
                "expert_parallel",
            ),
            (r#"{ "backend": "torch", "step_timeout_seconds": 0 }"#, "step_timeout_seconds"),
            (r#"{ "lora": { "dora": true } }"#, "lora.dora"),
            (r#"{ "backend": "torch", "lora": { "targets": ["q_proj", "lm_head"] } }"#, "lora.targets"),
            (r#"{ "lora": { "quantize": "nf4" } }"#, "lora.quantize"),
            (r#"{ "backend": "torch", "ranks": 2, "lora": { "quantize": "nf4" } }"#, "ranks"),
            (r#"{ "backend": "torch", "offload": true, "lora": { "quantize": "nf4" } }"#, "offload"),
            (r#"{ "backend": "deepspeed", "lora": { "quantize": "nf4" } }"#, "lora"),
            (r#"{ "backend": "megatron", "lora": { "quantize": "nf4" } }"#, "lora"),
            (r#"{ "backend": "deepspeed", "lora": {} }"#, "lora"),
            (r#"{ "backend": "megatron", "lora": {} }"#, "lora"),
            (
                r#"{ "backend": "torch", "activation_checkpointing": "attention" }"#,
                "activation_checkpointing",
            ),
            (r#"{ "micro_batch_tokens": 0 }"#, "micro_batch_tokens"),
        ] {
            let error = parse(json).unwrap().validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{key}`:")), "{error}");
        }
        for json in [
            r#"{ "backend": "torch", "ranks": 4, "shard": 4, "sequence_parallel": 2 }"#,
            r#"{ "backend": "torch", "lora": { "dora": true, "dropout": 0.1 } }"#,
            r#"{ "backend": "torch", "lora": { "quantize": "nf4", "dora": true } }"#,
        ] {
            parse(json).unwrap().validate().unwrap();
        }
        let megatron = r#"{ "backend": "megatron", "ranks": 16, "tensor_parallel": 2, "pipeline_parallel": 2,
            "context_parallel": 2, "expert_parallel": 4 }"#;
        let megatron = parse(megatron).unwrap();
        megatron.validate().unwrap();
        assert_eq!(megatron.groups(), 2);
        let deepspeed = parse(r#"{ "backend": "deepspeed", "ranks": 4, "tensor_parallel": 2 }"#).unwrap();
        deepspeed.validate().unwrap();
        assert_eq!((deepspeed.groups(), deepspeed.sizes().tensor_parallel), (2, 2));
    }
}
