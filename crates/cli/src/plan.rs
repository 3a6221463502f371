//! Estimate of a run's size and memory before it starts.

use std::fmt::Write as _;
use std::path::Path;

use rloom_config::{Config, ModelSource, Stage};
use rloom_engine::RolloutSettings;
use rloom_model::ModelConfig;
use rloom_run::assembly;
use rloom_text::Tokenizer;
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::numbers::{bytes, count, thousands};

const F32: u64 = 4;

/// Estimate of a whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) run_directory: String,
    /// `None` for a hub model that is not available locally; nothing is downloaded for an estimate.
    pub(crate) parameters: Option<u64>,
    pub(crate) stages: Vec<StagePlan>,
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
    pub(crate) memory: Option<Memory>,
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
    /// Estimates a run.
    pub(crate) fn of(config: &Config) -> Result<Self, Failure> {
        let model = shape(config)?;
        let stages: Vec<StagePlan> = config.stages.iter().map(|s| stage(config, s, model.as_ref())).collect();
        Ok(Self {
            run_directory: config.run_directory().display().to_string(),
            parameters: model.as_ref().map(ModelConfig::parameter_count),
            memory: stages.iter().filter_map(|s| s.memory).map(|m| m.total()).max(),
            stages,
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
        }
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

fn stage(config: &Config, stage: &Stage, model: Option<&ModelConfig>) -> StagePlan {
    let sequences = stage.groups_per_batch * u64::from(stage.algorithm.group_size);
    let new_tokens =
        stage.rollout.as_ref().map(|r| (r.sampling.max_new_tokens * stage.environment.max_turns()) as u64);
    let algorithm = &stage.algorithm;
    let episodes = u64::from(algorithm.group_size) + u64::from(algorithm.needs_baseline_episode());
    // Includes groups that are replaced.
    let sampled = stage.groups_per_batch * episodes * u64::from(algorithm.filters.max_draws.max(1));
    let eval = config.eval.as_ref().filter(|_| stage.eval_every > 0);
    let engine = stage.rollout.as_ref().map(|r| &r.engine).or(eval.map(|e| &e.rollout));
    StagePlan {
        name: stage.name.clone(),
        method: stage.algorithm.method.name().to_owned(),
        steps: stage.steps,
        sequences_per_step: sequences,
        new_tokens_per_step: new_tokens.map(|n| n * sampled),
        max_staleness: stage.schedule().max_staleness,
        max_tokens_per_step: model.map(|m| m.max_positions as u64 * sequences),
        memory: model.map(|m| memory(stage, m, m.max_positions as u64 * sequences, engine)),
    }
}

/// Estimates the memory of a stage. Each model is stored twice, as f32 and packed for the kernels in the model's dtype;
/// there is one set of gradients and two of AdamW moments.
fn memory(stage: &Stage, model: &ModelConfig, max_tokens: u64, engine: Option<&RolloutSettings>) -> Memory {
    let weights = model.parameter_count() * F32;
    let held = weights + model.parameter_count() * model.dtype.bytes() as u64;
    let tokens = (stage.trainer.micro_batch_tokens as u64).min(max_tokens);
    let cache = engine.map_or(0, |engine| {
        kv_cache_bytes(
            model.kv_bytes_per_token(),
            model.max_positions as u64,
            engine.max_batch as u64,
            engine.kv_memory_mib as u64,
        )
    });
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
    Memory {
        weights: held * (1 + kept),
        gradients: weights,
        optimizer: 2 * weights,
        reference: references * held,
        auxiliary_models: auxiliary * (held + 3 * weights + activations),
        activations,
        cache,
    }
}

/// Default limit of the engine's key-value cache.
const AUTOMATIC_KV_BYTES: u64 = 2 << 30;

/// Upper bound of the engine's key-value cache in bytes: `kv_memory_mib` if set, else the full contexts of `max_batch`
/// sequences within the default limit, but at least one full context.
fn kv_cache_bytes(bytes_per_token: u64, max_positions: u64, max_batch: u64, kv_memory_mib: u64) -> u64 {
    let full_context = bytes_per_token * max_positions;
    match kv_memory_mib {
        0 => (full_context * max_batch).min(AUTOMATIC_KV_BYTES.max(full_context)),
        mib => mib << 20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_limited_and_holds_at_least_one_context() {
        assert_eq!(kv_cache_bytes(10, 100, 8, 0), 8000);
        assert_eq!(kv_cache_bytes(1 << 20, 1024, 8, 0), AUTOMATIC_KV_BYTES);
        assert_eq!(kv_cache_bytes(1 << 20, 4096, 8, 0), 4 << 30);
        assert_eq!(kv_cache_bytes(10, 100, 8, 3), 3 << 20);
    }
}
