//! What a run will take, estimated before it starts.

use std::fmt::Write as _;
use std::path::Path;

use rloom_config::{Config, ModelSource, Stage};
use rloom_model::ModelConfig;
use rloom_rollout::RolloutSettings;
use rloom_text::Tokenizer;
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::numbers::{bytes, count, thousands};

const F32: u64 = 4;
/// What the engine takes at most for keys and values where the settings leave it to it.
const AUTOMATIC_CACHE: u64 = 2 << 30;

/// An estimate of the whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) run_directory: String,
    /// `None` for a hub model that is not on this machine: nothing is downloaded for an estimate.
    pub(crate) parameters: Option<u64>,
    pub(crate) stages: Vec<StagePlan>,
    /// Bytes of the greediest stage.
    pub(crate) memory: Option<u64>,
}

/// An estimate of one stage.
#[derive(Debug, Serialize)]
pub(crate) struct StagePlan {
    pub(crate) name: String,
    pub(crate) method: String,
    pub(crate) steps: u64,
    /// Sequences trained on in a step.
    pub(crate) sequences_per_step: u64,
    /// New tokens of a step, if every completion has full length; `None` where nothing is sampled.
    pub(crate) new_tokens_per_step: Option<u64>,
    /// Tokens of a step that are trained on, if every sequence fills the context.
    pub(crate) most_tokens_per_step: Option<u64>,
    /// Versions that rollouts may be behind training.
    pub(crate) max_staleness: u64,
    pub(crate) memory: Option<Memory>,
}

/// Bytes of one stage.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Memory {
    pub(crate) weights: u64,
    pub(crate) gradients: u64,
    pub(crate) optimizer: u64,
    pub(crate) reference: u64,
    /// A critic of its own or a process-reward model: weights, gradients, moments and activations.
    pub(crate) learned_beside: u64,
    pub(crate) activations: u64,
    pub(crate) cache: u64,
}

impl Memory {
    pub(crate) fn total(&self) -> u64 {
        self.weights
            + self.gradients
            + self.optimizer
            + self.reference
            + self.learned_beside
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

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![format!("run         {}", self.run_directory)];
        lines.push(match self.parameters {
            Some(parameters) => format!("model       {} parameters", thousands(parameters)),
            None => "model       not on this machine yet: no estimate of its size".to_owned(),
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
            if let Some(most) = stage.most_tokens_per_step {
                let _ = write!(text, ", at most {} tokens trained on", count(most));
            }
            if stage.max_staleness > 0 {
                let versions = if stage.max_staleness == 1 { "version" } else { "versions" };
                let _ = write!(text, ", up to {} {versions} old", thousands(stage.max_staleness));
            }
            lines.push(text);
            if let Some(memory) = stage.memory {
                let parts = [
                    ("weights", memory.weights),
                    ("gradients", memory.gradients),
                    ("optimiser", memory.optimizer),
                    ("reference", memory.reference),
                    ("critic or reward model", memory.learned_beside),
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

/// The model's shape, if it is known without a download.
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
    shape.dtype = config.compute;
    Ok(Some(shape))
}

fn stage(config: &Config, stage: &Stage, model: Option<&ModelConfig>) -> StagePlan {
    let sequences = stage.batch * u64::from(stage.algorithm.group_size);
    let new_tokens =
        stage.rollout.as_ref().map(|r| (r.sampling.max_new_tokens * stage.environment.max_turns()) as u64);
    let algorithm = &stage.algorithm;
    let episodes = u64::from(algorithm.group_size) + u64::from(algorithm.needs_baseline_episode());
    // Groups that are replaced are sampled, too.
    let sampled = stage.batch * episodes * u64::from(algorithm.filters.max_draws.max(1));
    let eval = config.eval.as_ref().filter(|_| stage.eval_every > 0);
    let engine = stage.rollout.as_ref().map(|r| &r.engine).or(eval.map(|e| &e.rollout));
    StagePlan {
        name: stage.name.clone(),
        method: stage.algorithm.method.name().to_owned(),
        steps: stage.steps,
        sequences_per_step: sequences,
        new_tokens_per_step: new_tokens.map(|n| n * sampled),
        max_staleness: stage.schedule().max_staleness,
        most_tokens_per_step: model.map(|m| m.max_positions as u64 * sequences),
        memory: model.map(|m| memory(stage, m, m.max_positions as u64 * sequences, engine)),
    }
}

/// Each copy of weights is held twice (as they are, and packed for the kernels in the format that is computed in),
/// gradients once, AdamW's moments twice.
fn memory(stage: &Stage, model: &ModelConfig, most_tokens: u64, engine: Option<&RolloutSettings>) -> Memory {
    let weights = model.parameter_count() * F32;
    let held = weights + model.parameter_count() * model.dtype.bytes() as u64;
    let tokens = (stage.trainer.micro_batch_tokens as u64).min(most_tokens);
    let whole = model.kv_bytes_per_token() * model.max_positions as u64;
    let cache = engine.map_or(0, |engine| match engine.kv_memory_mib {
        0 => (whole * engine.max_batch as u64).min(AUTOMATIC_CACHE.max(whole)),
        mib => (mib as u64) << 20,
    });
    let activations = tokens * model.training_bytes_per_token(stage.trainer.recompute);
    let algorithm = &stage.algorithm;
    // The process-reward model is held against what it started from, which is the policy's start.
    let references = u64::from(algorithm.needs_reference() || algorithm.prm.is_some());
    let beside =
        u64::from(algorithm.critic.is_some_and(|c| !c.is_shared())) + u64::from(algorithm.prm.is_some());
    // Beside training rollouts keep theirs; pinned groups those of each version that is still sampled under.
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
        learned_beside: beside * (held + 3 * weights + activations),
        activations,
        cache,
    }
}
