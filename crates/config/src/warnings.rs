//! Settings that are valid and cannot act as they are combined.

use std::fmt;

use crate::settings::{Config, Stage};

/// A setting that has no effect, or another one than it seems to have. The run starts nevertheless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Index of the stage.
    pub stage: usize,
    /// The setting and the reason.
    pub message: String,
    /// Suggested changes.
    pub hint: String,
    /// True if the setting does act with a sampler whose log-probabilities differ from the trainer's.
    pub exact_sampler_only: bool,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}

impl Config {
    /// Settings that cannot act, in the order of the stages.
    pub fn warnings(&self) -> Vec<Warning> {
        let of_stage = |(index, stage)| clips(index, stage).into_iter().chain(warmup(index, stage));
        self.stages.iter().enumerate().flat_map(of_stage).collect()
    }
}

/// Bounds of the ratio where every ratio is 1.
fn clips(index: usize, stage: &Stage) -> Option<Warning> {
    let idle = stage.algorithm.idle_on_policy();
    if idle.is_empty() || stage.rollout.is_none() || stage.schedule().overlaps() {
        return None;
    }
    let names: Vec<String> =
        idle.iter().map(|key| format!("`stage.{}.algorithm.{key}`", stage.name)).collect();
    let (have, it) = if names.len() == 1 { ("has", "it") } else { ("have", "them") };
    // Minibatches divide the batch.
    let parts = (2..=stage.groups_per_batch).find(|&parts| stage.groups_per_batch.is_multiple_of(parts));
    let steps = parts.map_or("algorithm.epochs = 2".to_owned(), |n| format!("algorithm.minibatches = {n}"));
    Some(Warning {
        stage: index,
        message: format!(
            "{} {have} no effect: each batch is trained in a single optimiser step by the policy that sampled it, \
             whose importance ratios are all 1",
            names.join(", ")
        ),
        hint: format!("set `{steps}` or `schedule.max_staleness = 1`, or remove {it}"),
        exact_sampler_only: true,
    })
}

/// A warm-up that does not end within the stage.
fn warmup(index: usize, stage: &Stage) -> Option<Warning> {
    let steps = stage.steps.saturating_mul(stage.algorithm.steps_per_batch());
    let warmup = stage.optimizer.warmup_steps;
    (warmup >= steps).then(|| Warning {
        stage: index,
        message: format!(
            "`stage.{}.trainer.warmup_steps` is {warmup}, but the stage has {steps} optimiser steps: `learning_rate` is \
             never reached",
            stage.name
        ),
        hint: "lower `warmup_steps`, or raise `steps`".to_owned(),
        exact_sampler_only: false,
    })
}
