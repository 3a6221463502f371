//! What of a recipe is simulated: a stage's scheduling, its work, and what its speed depends on.

use rloom_config::{Config, Stage};
use rloom_engine::OnUpdate as InFlight;
use rloom_model::ModelConfig;
use rloom_sched::SchedulerSettings;
use rloom_sim::{Demand, Distribution, ModelShape, OnUpdate, Priority, Profile, Scenario, Split, Workload};

use crate::arguments::Plan;
use crate::failure::Failure;

/// A world in which nothing is ever trained is given up after so many events.
const MOST_EVENTS: u64 = 500_000_000;

/// One stage, ready to be put on any hardware.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) stage: String,
    pub(crate) method: String,
    pub(crate) scheduler: SchedulerSettings,
    pub(crate) on_update: OnUpdate,
    pub(crate) priority: Priority,
    pub(crate) workload: Workload,
    pub(crate) demand: Demand,
    seed: u64,
}

impl Recipe {
    pub(crate) fn new(config: &Config, arguments: &Plan, profile: &Profile) -> Result<Self, Failure> {
        let stage = stage(config, arguments.stage.as_deref())?;
        let rollout = stage.rollout.as_ref().ok_or_else(|| {
            Failure::usage(format!("stage `{}` does not sample: there is nothing to schedule", stage.name))
        })?;
        let schedule = &rollout.schedule;
        let scheduler = SchedulerSettings {
            batch_groups: stage.batch,
            batches: stage.steps,
            max_staleness: schedule.max_staleness,
            pin_version: schedule.pin_version,
            oversample: schedule.oversample,
            cut_order: schedule.cut_order,
            stragglers: schedule.stragglers,
            evaluate_every: stage.eval_every,
            checkpoint_every: stage.checkpoint_every,
        };
        let model = crate::plan::shape(config)?;
        let workload = workload(stage, profile, rollout.sampling.max_new_tokens as f64, arguments)?;
        let answer =
            workload.turns.mean() * (workload.turn_tokens.mean() + workload.observation_tokens.mean());
        let demand = Demand {
            model: model.as_ref().map(model_shape),
            scoring_passes: u32::from(stage.algorithm.needs_reference()),
            context_tokens: workload.prompt_tokens.mean() + 0.5 * answer,
            max_batch: rollout.engine.max_batch as u32,
        };
        Ok(Self {
            stage: stage.name.clone(),
            method: stage.algorithm.method.name().to_owned(),
            scheduler,
            on_update: match schedule.on_update {
                InFlight::Finish => OnUpdate::Finish,
                InFlight::Keep => OnUpdate::Keep,
                InFlight::Recompute => OnUpdate::Recompute,
                InFlight::Abort => OnUpdate::Abort,
            },
            priority: match schedule.priority {
                rloom_config::Priority::Oldest => Priority::Oldest,
                rloom_config::Priority::Arrival => Priority::Arrival,
            },
            workload,
            demand,
            seed: config.run.seed,
        })
    }

    pub(crate) fn samples_per_step(&self) -> u64 {
        (self.scheduler.batch_groups * u64::from(self.workload.group_size)).max(1)
    }

    /// Stale samples are scored once more, by the policy as it is when their batch begins.
    fn demand(&self, max_staleness: u64) -> Demand {
        let again = u32::from(max_staleness > 0);
        Demand { scoring_passes: self.demand.scoring_passes + again, ..self.demand }
    }

    /// Whether the other settings of the scheduler go with a bound on staleness.
    pub(crate) fn allows(&self, max_staleness: u64) -> bool {
        SchedulerSettings { max_staleness, ..self.scheduler }.validate().is_ok()
    }

    /// The stage on a profile's devices.
    pub(crate) fn scenario(
        &self,
        profile: &Profile,
        split: Split,
        max_staleness: u64,
        steps: u64,
    ) -> Scenario {
        Scenario {
            scheduler: SchedulerSettings { batches: steps, max_staleness, ..self.scheduler },
            on_update: self.on_update,
            priority: self.priority,
            workload: self.workload.clone(),
            hardware: profile.hardware(split, &self.demand(max_staleness)),
            failures: profile.failures.clone(),
            seed: self.seed,
            most_events: MOST_EVENTS,
        }
    }
}

fn stage<'a>(config: &'a Config, name: Option<&str>) -> Result<&'a Stage, Failure> {
    let found = match name {
        Some(name) => config.stages.iter().find(|s| s.name == name),
        None => config.stages.iter().rev().find(|s| s.rollout.is_some()),
    };
    found.ok_or_else(|| {
        let sampling: Vec<&str> =
            config.stages.iter().filter(|s| s.rollout.is_some()).map(|s| s.name.as_str()).collect();
        let hint = if sampling.is_empty() {
            "supervised stages have no rollouts to schedule".to_owned()
        } else {
            format!("stages that sample: {}", sampling.join(", "))
        };
        let what = name.map_or("the recipe has no stage that samples".to_owned(), |name| {
            format!("the recipe has no stage `{name}`")
        });
        Failure::usage(format!("{what}\nhint: {hint}"))
    })
}

fn model_shape(model: &ModelConfig) -> ModelShape {
    ModelShape {
        parameters: model.parameter_count() as f64,
        kv_numbers_per_token: (2 * model.layers * model.kv_heads * model.head_dim) as f64,
    }
}

fn workload(stage: &Stage, profile: &Profile, most: f64, arguments: &Plan) -> Result<Workload, Failure> {
    let shape = &profile.workload;
    let turn_tokens = match (&arguments.lengths, &shape.turn_tokens, &shape.turn_share) {
        (Some(text), _, _) => lengths(text, most)?,
        (None, Some(tokens), _) => tokens.clone().at_most(most),
        (None, None, Some(share)) => share.clone().times(most),
        (None, None, None) => Distribution::Constant { value: most },
    };
    let most_turns = stage.environment.max_turns() as f64;
    let turns = shape.turns.clone().unwrap_or(Distribution::Constant { value: most_turns });
    let episodes = stage.algorithm.group_size + u32::from(stage.algorithm.needs_baseline_episode());
    Ok(Workload {
        group_size: episodes.max(1),
        prompt_tokens: shape.prompt_tokens.clone(),
        turn_tokens,
        group_correlation: shape.group_correlation,
        turns: turns.at_most(most_turns),
        observation_tokens: shape.observation_tokens.clone(),
        environment_seconds: shape.environment_seconds.clone(),
        reward_seconds: shape.reward_seconds.clone(),
        prefix_cache: shape.prefix_cache,
        filter_rate: shape.filter_rate,
    })
}

/// `constant`, `lognormal:SIGMA` or `tail:SHARE`, as shares of the longest turn that the recipe allows.
fn lengths(text: &str, most: f64) -> Result<Distribution, Failure> {
    let (kind, number) = text.split_once(':').unwrap_or((text, ""));
    let number: Option<f64> = number.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    match (kind, number) {
        ("constant", None) => Ok(Distribution::Constant { value: 0.25 * most }),
        ("lognormal", Some(sigma)) => Ok(Distribution::Lognormal { median: 0.25 * most, sigma, most }),
        ("tail", Some(share)) if share < 1.0 => Ok(Distribution::Tail {
            body: Box::new(Distribution::Lognormal { median: 0.15 * most, sigma: 0.4, most }),
            tail: Box::new(Distribution::Constant { value: most }),
            share,
        }),
        _ => Err(Failure::usage(format!(
            "--lengths: `{text}` is no shape of lengths\nhint: constant, lognormal:0.8 or tail:0.05"
        ))),
    }
}
