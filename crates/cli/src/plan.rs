//! Estimate of a run's size and memory before it starts.

use std::fmt::Write as _;
use std::num::NonZero;
use std::path::Path;

use rloom_config::{Config, ModelSource, Stage};
use rloom_engine::RolloutEngineSettings;
use rloom_model::ModelConfig;
use rloom_ops::Isa;
use rloom_run::assembly::{Offer, Placement};
use rloom_telemetry::PromptSummary;
use rloom_text::Tokenizer;
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::event_text;
use crate::progress::numbers::{count, thousands};

mod memory;
mod placement;

pub(crate) use memory::Memory;
use memory::Sizes;
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

    /// Memory of each stage that this process trains, by name, without reading any data.
    pub(crate) fn memory_of(config: &Config) -> Result<Vec<(String, Memory)>, Failure> {
        let Some(model) = shape(config)? else { return Ok(Vec::new()) };
        let stages = config.stages.iter().map(|s| stage(config, s, Some(&model)));
        let stages = stages.collect::<Result<Vec<StagePlan>, Failure>>()?;
        Ok(stages.into_iter().filter_map(|stage| Some((stage.name, stage.memory?))).collect())
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
            lines.extend(stage.memory.iter().flat_map(|memory| memory.lines("  memory")));
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
            let rollout = engine.and_then(RolloutEngineSettings::embedded);
            let evaluates = eval.is_some();
            let threads = threads(config);
            let order = config.numeric_path.order().unwrap_or(Isa::detect().order());
            let sizes = Sizes { stage, model, rollout, evaluates, threads, order, sequences, new_tokens };
            Some(sizes.memory().map_err(Failure::usage)?)
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
