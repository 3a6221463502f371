//! Estimate of a run's size and memory before it starts.

use std::fmt::Write as _;
use std::num::NonZero;
use std::path::Path;

use rloom_config::{Config, ModelSource, Stage};
use rloom_engine::{RolloutEngineSettings, RolloutError, RolloutSettings, sizing};
use rloom_model::ModelConfig;
use rloom_run::assembly::{self, Offer, Placement};
use rloom_telemetry::PromptSummary;
use rloom_text::Tokenizer;
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::event_text;
use crate::progress::numbers::{bytes, count, thousands};

mod placement;

use placement::Processes;

const F32: u64 = 4;

/// Estimate of a whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) run_directory: String,
    /// `None` for a hub model that is not available locally; nothing is downloaded for an estimate.
    pub(crate) parameters: Option<u64>,
    pub(crate) stages: Vec<StagePlan>,
    /// Lengths of the prompts; `None` if model or data are not available locally.
    pub(crate) prompts: Option<Vec<PromptSummary>>,
    /// Memory of the most demanding stage, in bytes.
    pub(crate) memory: Option<u64>,
}

/// Estimate of one stage.
#[derive(Debug, Serialize)]
pub(crate) struct StagePlan {
    pub(crate) name: String,
    pub(crate) method: String,
    pub(crate) steps: u64,
    /// Sequences trained on per step.
    pub(crate) sequences_per_step: u64,
    /// New tokens per step if every completion has full length; `None` for supervised stages.
    pub(crate) new_tokens_per_step: Option<u64>,
    /// Tokens trained on per step if every sequence fills the context.
    pub(crate) max_tokens_per_step: Option<u64>,
    /// Maximum number of versions by which rollouts may lag behind training.
    pub(crate) max_staleness: u64,
    /// Of this process; `None` if others train or the model is not available.
    pub(crate) memory: Option<Memory>,
    /// Processes of outside engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) processes: Option<Processes>,
}

/// Memory of one stage by purpose, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Memory {
    pub(crate) weights: u64,
    pub(crate) gradients: u64,
    pub(crate) optimizer: u64,
    pub(crate) reference: u64,
    /// Separate critic and process-reward model: weights, gradients, moments and activations.
    pub(crate) auxiliary_models: u64,
    pub(crate) activations: u64,
    pub(crate) cache: u64,
}

impl Memory {
    pub(crate) fn total(&self) -> u64 {
        self.weights
            + self.gradients
            + self.optimizer
            + self.reference
            + self.auxiliary_models
            + self.activations
            + self.cache
    }
}

impl Plan {
    /// Estimates a run and checks its data.
    pub(crate) fn of(config: &Config) -> Result<Self, Failure> {
        let model = shape(config)?;
        let stages = config.stages.iter().map(|s| stage(config, s, model.as_ref()));
        let stages = stages.collect::<Result<Vec<StagePlan>, Failure>>()?;
        Ok(Self {
            run_directory: config.run_directory().display().to_string(),
            parameters: model.as_ref().map(ModelConfig::parameter_count),
            memory: stages.iter().filter_map(|s| s.memory).map(|m| m.total()).max(),
            stages,
            prompts: match &model {
                Some(model) => {
                    rloom_run::measure_prompts_of(config, model.max_positions).map_err(Failure::from_run)?
                }
                None => None,
            },
        })
    }

    /// Formats the estimate as text.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![format!("run         {}", self.run_directory)];
        lines.push(match self.parameters {
            Some(parameters) => format!("model       {} parameters", thousands(parameters)),
            None => "model       not available locally; its size cannot be estimated".to_owned(),
        });
        for stage in &self.stages {
            let mut text =
                format!("stage       {}: {}, {} steps of ", stage.name, stage.method, thousands(stage.steps));
            let _ = match stage.new_tokens_per_step {
                Some(tokens) => {
                    write!(
                        text,
                        "{} completions, at most {} new tokens",
                        stage.sequences_per_step,
                        count(tokens)
                    )
                }
                None => write!(text, "{} demonstrations", stage.sequences_per_step),
            };
            if let Some(max) = stage.max_tokens_per_step {
                let _ = write!(text, ", at most {} tokens trained on", count(max));
            }
            if stage.max_staleness > 0 {
                let versions = if stage.max_staleness == 1 { "version" } else { "versions" };
                let _ = write!(text, ", up to {} {versions} stale", thousands(stage.max_staleness));
            }
            lines.push(text);
            if let Some(memory) = stage.memory {
                let parts = [
                    ("weights", memory.weights),
                    ("gradients", memory.gradients),
                    ("optimiser", memory.optimizer),
                    ("reference", memory.reference),
                    ("critic or reward model", memory.auxiliary_models),
                    ("activations", memory.activations),
                    ("key-value cache", memory.cache),
                ];
                let parts: Vec<String> = parts
                    .iter()
                    .filter(|(_, b)| *b > 0)
                    .map(|(name, b)| format!("{name} {}", bytes(*b)))
                    .collect();
                lines.push(format!("  memory    about {}: {}", bytes(memory.total()), parts.join(", ")));
            }
            lines.extend(stage.processes.iter().flat_map(Processes::lines));
        }
        lines.extend(self.prompts.iter().flatten().map(event_text::prompts));
        lines.join("\n")
    }
}

/// The configuration of the model, if it is available without a download.
pub(crate) fn shape(config: &Config) -> Result<Option<ModelConfig>, Failure> {
    let mut shape = match &config.model {
        ModelSource::New { model, tokenizer } => {
            let tokenizer = Tokenizer::characters(tokenizer).map_err(Failure::usage)?;
            model.config(tokenizer.vocab_size()).map_err(Failure::usage)?
        }
        ModelSource::Path(path) if Path::new(path).is_dir() => {
            ModelConfig::from_json_file(&Path::new(path).join("config.json")).map_err(Failure::usage)?
        }
        ModelSource::Path(_) => return Ok(None),
    };
    shape.dtype = config.dtype;
    Ok(Some(shape))
}

fn stage(config: &Config, stage: &Stage, model: Option<&ModelConfig>) -> Result<StagePlan, Failure> {
    let sequences = stage.groups_per_batch * u64::from(stage.algorithm.group_size);
    let new_tokens =
        stage.rollout.as_ref().map(|r| (r.sampling.max_new_tokens * stage.environment.max_turns()) as u64);
    let algorithm = &stage.algorithm;
    let episodes = u64::from(algorithm.group_size) + u64::from(algorithm.needs_baseline_episode());
    // Includes groups that are replaced.
    let sampled = stage.groups_per_batch * episodes * u64::from(algorithm.filters.max_draws.max(1));
    let eval = config.eval.as_ref().filter(|_| stage.samples_held_out());
    let engine = stage.rollout.as_ref().map(|r| &r.engine).or(eval.map(|e| &e.rollout));
    let memory = match model {
        Some(model) => {
            // Servers have the keys and values in memory of their own.
            let engine = engine.and_then(RolloutEngineSettings::embedded);
            let cache = engine.map_or(Ok(0), |engine| cache_bytes(model, engine, threads(config)));
            let cache = cache.map_err(Failure::usage)?;
            Some(memory(stage, model, model.max_positions as u64 * sequences, cache))
        }
        None => None,
    };
    let placement = Placement::of(config, stage, &Offer::expected(config)).map_err(Failure::usage)?;
    Ok(StagePlan {
        name: stage.name.clone(),
        method: stage.algorithm.method.name().to_owned(),
        steps: stage.steps,
        sequences_per_step: sequences,
        new_tokens_per_step: new_tokens.map(|n| n * sampled),
        max_staleness: stage.schedule().max_trained_age(),
        max_tokens_per_step: model.map(|m| m.max_positions as u64 * sequences),
        memory: memory.filter(|_| !stage.trains_outside()),
        processes: placement.map(|placement| Processes::of(stage, placement, model)),
    })
}

/// Number of compute threads of a run.
fn threads(config: &Config) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, NonZero::get);
    if config.run.threads == 0 { available() } else { config.run.threads }
}

/// Key-value cache of the rollout engine in bytes when it is full.
fn cache_bytes(model: &ModelConfig, settings: &RolloutSettings, threads: usize) -> Result<u64, RolloutError> {
    let threads = if settings.threads == 0 { threads } else { settings.threads };
    let lanes = sizing::lanes(model.parameter_count() * F32, threads, settings);
    assembly::cache_shape(model).bytes(lanes, settings)
}

/// Estimates the memory of a stage. Each model is stored twice, as f32 and packed for the kernels in the model's dtype;
/// there is one set of gradients and two of AdamW moments.
fn memory(stage: &Stage, model: &ModelConfig, max_tokens: u64, cache: u64) -> Memory {
    let weights = model.parameter_count() * F32;
    let held = weights + model.parameter_count() * model.dtype.bytes() as u64;
    let tokens = (stage.trainer.micro_batch_tokens as u64).min(max_tokens);
    let activations =
        tokens * assembly::activation_bytes_per_token(model, stage.trainer.activation_checkpointing);
    let algorithm = &stage.algorithm;
    // The process-reward model is compared with its initial weights, which are those of the policy.
    let references = u64::from(algorithm.needs_reference() || algorithm.prm.is_some());
    let auxiliary =
        u64::from(algorithm.critic.is_some_and(|c| !c.is_shared())) + u64::from(algorithm.prm.is_some());
    // Overlapping rollouts keep a copy of the weights; pinned groups keep one per version still being sampled from.
    let schedule = stage.schedule();
    let kept = match (schedule.max_staleness, schedule.pin_version) {
        (0, _) => 0,
        (_, false) => 1,
        (versions, true) => versions + 1,
    };
    // One byte for each weight that completions are sampled from, for one version more than is kept.
    let is_quantized = stage.rollout.as_ref().is_some_and(|rollout| rollout.engine.quantize().is_some());
    let quantized = if is_quantized { model.parameter_count() * (1 + kept) } else { 0 };
    Memory {
        weights: held * (1 + kept) + quantized,
        gradients: weights,
        optimizer: 2 * weights,
        reference: references * held,
        auxiliary_models: auxiliary * (held + 3 * weights + activations),
        activations,
        cache,
    }
}

#[cfg(test)]
mod tests {
    use rloom_model::NewModel;

    use super::*;

    #[test]
    fn every_lane_has_its_own_cache() {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": "qwen3", "layers": 2, "hidden_size": 16, "heads": 2, "intermediate_size": 16,
            "max_positions": 100,
        }))
        .unwrap();
        let model = new.config(12).unwrap();
        let context = 112 * model.kv_bytes_per_token(); // in whole blocks
        let bytes = |settings: &RolloutSettings| cache_bytes(&model, settings, 2).unwrap();
        let automatic = RolloutSettings { max_batch: 3, ..RolloutSettings::default() };
        assert_eq!(bytes(&automatic), 2 * 3 * context, "a lane for each thread of the run");
        assert_eq!(bytes(&RolloutSettings { threads: 5, ..automatic.clone() }), 5 * 3 * context);
        assert_eq!(bytes(&RolloutSettings { lanes: 4, ..automatic.clone() }), 4 * 3 * context);
        let limited = RolloutSettings { kv_memory_mib: 1, ..automatic };
        assert!((0..1 << 20).contains(&((1 << 20) - bytes(&limited))), "whole blocks within the limit");
    }
}
