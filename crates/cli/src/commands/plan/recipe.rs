//! Extracts from a recipe the stage to simulate: its schedule, its workload, and the properties that determine its
//! speed.

use rloom_config::{Config, PolicySettings, Stage};
use rloom_core::{Purpose, RandomKey};
use rloom_engine::RolloutEngineSettings;
use rloom_model::ModelConfig;
use rloom_sched::{ScheduleSettings, SchedulerSettings};
use rloom_sim::{Demand, Distribution, ModelShape, Profile, Scenario, Split, Workload};

use super::error::PlanError;
use crate::arguments::Plan;
use crate::failure::Failure;

/// Event limit of a simulation, for recipes whose filters or failures leave nothing to train on.
const MAX_EVENTS: u64 = 500_000_000;

/// One stage, independent of the hardware.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) stage: String,
    pub(crate) method: String,
    pub(crate) schedule: ScheduleSettings,
    pub(crate) groups_per_batch: u64,
    pub(crate) steps: u64,
    evaluate_every: u64,
    checkpoint_every: u64,
    pub(crate) workload: Workload,
    pub(crate) demand: Demand,
    /// Number of inference servers; `None` with the embedded engine.
    pub(crate) servers: Option<u32>,
    /// Servers and trainer take turns on the same devices.
    pub(crate) sleeps: bool,
    seed: u64,
}

impl Recipe {
    pub(crate) fn new(config: &Config, arguments: &Plan, profile: &Profile) -> Result<Self, Failure> {
        let stage = stage(config, arguments.stage.as_deref())?;
        let rollout = stage.rollout.as_ref().ok_or_else(|| PlanError::NotSampling(stage.name.clone()))?;
        let model = crate::plan::shape(config)?;
        let workload = workload(stage, profile, rollout.sampling.max_new_tokens as f64, arguments)?;
        let completion =
            workload.turns.mean() * (workload.turn_tokens.mean() + workload.observation_tokens.mean());
        let demand = Demand {
            model: model.as_ref().map(model_shape),
            scoring_passes: u32::from(stage.algorithm.needs_reference()),
            context_tokens: workload.prompt_tokens.mean() + 0.5 * completion,
            max_batch: rollout.engine.max_running() as u32,
            policies: 1 + config.policies.values().map(PolicySettings::ids).sum::<u32>(),
        };
        Ok(Self {
            stage: stage.name.clone(),
            method: stage.algorithm.method.name().to_owned(),
            schedule: rollout.schedule,
            groups_per_batch: stage.groups_per_batch,
            steps: stage.steps,
            evaluate_every: stage.eval_every,
            checkpoint_every: stage.checkpoint_every,
            workload,
            demand,
            servers: match &rollout.engine {
                RolloutEngineSettings::Embedded(_) => None,
                RolloutEngineSettings::Vllm(servers) | RolloutEngineSettings::Sglang(servers) => {
                    Some(arguments.replicas.unwrap_or(servers.servers() as u32))
                }
            },
            sleeps: rollout.engine.sleeps(),
            seed: config.run.seed,
        })
    }

    pub(crate) fn samples_per_step(&self) -> u64 {
        (self.groups_per_batch * u64::from(self.workload.group_size)).max(1)
    }

    /// Adds the extra scoring pass over stale samples, by the policy at the start of their batch.
    fn demand(&self, max_staleness: u64) -> Demand {
        let schedule = ScheduleSettings { max_staleness, ..self.schedule };
        let extra = u32::from(schedule.max_trained_age() > 0);
        Demand { scoring_passes: self.demand.scoring_passes + extra, ..self.demand }
    }

    fn scheduler(&self, max_staleness: u64, steps: u64) -> SchedulerSettings {
        let schedule = ScheduleSettings { max_staleness, ..self.schedule };
        SchedulerSettings::new(
            &schedule,
            self.groups_per_batch,
            steps,
            self.evaluate_every,
            self.checkpoint_every,
            RandomKey::new(0, 0, Purpose::Reuse, 0),
        )
    }

    /// True if the other settings of the schedule allow this staleness bound.
    pub(crate) fn allows(&self, max_staleness: u64) -> bool {
        self.scheduler(max_staleness, self.steps).validate().is_ok()
    }

    /// Inference servers and the trainer.
    pub(crate) fn split_of_servers(&self, replicas: u32) -> Split {
        if self.sleeps {
            Split::Shared { devices: replicas }
        } else {
            Split::Separate { rollout: replicas, train: 1 }
        }
    }

    /// The stage on a split of a profile's devices.
    pub(crate) fn scenario(
        &self,
        profile: &Profile,
        split: Split,
        max_staleness: u64,
        steps: u64,
    ) -> Scenario {
        Scenario {
            scheduler: self.scheduler(max_staleness, steps),
            on_update: self.schedule.on_update,
            priority: self.schedule.priority,
            workload: self.workload.clone(),
            hardware: profile.hardware(split, &self.demand(max_staleness)),
            failures: profile.failures.clone(),
            seed: self.seed,
            max_events: MAX_EVENTS,
        }
    }
}

/// The stage of this name, by default the last one that samples.
fn stage<'a>(config: &'a Config, name: Option<&str>) -> Result<&'a Stage, PlanError> {
    let sampling = || config.stages.iter().filter(|s| s.rollout.is_some());
    let Some(name) = name else { return sampling().next_back().ok_or(PlanError::NoSamplingStage) };
    config.stages.iter().find(|s| s.name == name).ok_or_else(|| PlanError::UnknownStage {
        name: name.to_owned(),
        sampling: sampling().map(|s| s.name.clone()).collect(),
    })
}

fn model_shape(model: &ModelConfig) -> ModelShape {
    ModelShape {
        parameters: model.parameter_count() as f64,
        kv_numbers_per_token: (2 * model.layers * model.kv_heads * model.head_dim) as f64,
    }
}

fn workload(
    stage: &Stage,
    profile: &Profile,
    max_new_tokens: f64,
    arguments: &Plan,
) -> Result<Workload, PlanError> {
    let shape = &profile.workload;
    let turn_tokens = match (&arguments.lengths, &shape.turn_tokens, &shape.turn_share) {
        (Some(text), _, _) => lengths(text, max_new_tokens)?,
        (None, Some(tokens), _) => tokens.clone().clamped(max_new_tokens),
        (None, None, Some(share)) => share.clone().scaled(max_new_tokens),
        (None, None, None) => Distribution::Constant { value: max_new_tokens },
    };
    let max_turns = stage.environment.max_turns() as f64;
    let turns = shape.turns.clone().unwrap_or(Distribution::Constant { value: max_turns });
    let episodes = stage.algorithm.group_size + u32::from(stage.algorithm.needs_baseline_episode());
    Ok(Workload {
        group_size: episodes.max(1),
        prompt_tokens: shape.prompt_tokens.clone(),
        turn_tokens,
        group_correlation: shape.group_correlation,
        turns: turns.clamped(max_turns),
        observation_tokens: shape.observation_tokens.clone(),
        environment_seconds: shape.environment_seconds.clone(),
        reward_seconds: shape.reward_seconds.clone(),
        prefix_cache: shape.prefix_cache,
        filter_rate: shape.filter_rate,
    })
}

/// Parses `constant`, `lognormal:SIGMA` or `tail:SHARE` into a distribution of lengths up to `max`.
fn lengths(text: &str, max: f64) -> Result<Distribution, PlanError> {
    let (kind, number) = text.split_once(':').unwrap_or((text, ""));
    let number: Option<f64> = number.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    match (kind, number) {
        ("constant", None) => Ok(Distribution::Constant { value: 0.25 * max }),
        ("lognormal", Some(sigma)) => Ok(Distribution::Lognormal { median: 0.25 * max, sigma, max }),
        ("tail", Some(share)) if share < 1.0 => Ok(Distribution::Tail {
            body: Box::new(Distribution::Lognormal { median: 0.15 * max, sigma: 0.4, max }),
            tail: Box::new(Distribution::Constant { value: max }),
            share,
        }),
        _ => Err(PlanError::Lengths(text.to_owned())),
    }
}
