//! What limits a stage on inference servers: each part is simulated twice as fast, or without its time.

use rloom_sim::{Distribution, Profile, Scenario, SimError, Split, simulate};
use serde::Serialize;

use super::recipe::Recipe;

/// Part of a stage that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// The inference servers.
    Servers,
    /// The trainer.
    Trainer,
    /// Rewards and environments.
    Rewards,
    /// Publication and loading of weights.
    WeightUpdates,
    /// Rollout and training wait for each other.
    Staleness,
}

/// Effect of a change of one part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Limit {
    /// The part.
    pub(super) part: Part,
    /// The change.
    pub(super) change: String,
    /// Seconds per step with it.
    pub(super) seconds_per_step: f64,
    /// Fraction of the time of a step that it saves.
    pub(super) saved: f64,
}

/// Effects of changing each part, the largest first.
pub(super) fn of(recipe: &Recipe, profile: &Profile, own: Split, steps: u64) -> Result<Vec<Limit>, SimError> {
    let bound = recipe.schedule.max_staleness;
    let scenario = |split, bound| recipe.scenario(profile, split, bound, steps);
    let configured = simulate(&scenario(own, bound))?.seconds_per_step;
    let mut limits = Vec::new();
    for (part, change, changed) in changes(recipe, own, bound, scenario) {
        let seconds_per_step = simulate(&changed)?.seconds_per_step;
        let saved = 1.0 - seconds_per_step / configured;
        limits.push(Limit { part, change, seconds_per_step, saved });
    }
    limits.sort_by(|a, b| b.saved.total_cmp(&a.saved));
    Ok(limits)
}

/// Each change, with the stage after it.
fn changes(
    recipe: &Recipe,
    own: Split,
    bound: u64,
    scenario: impl Fn(Split, u64) -> Scenario,
) -> Vec<(Part, String, Scenario)> {
    let (replicas, doubled) = match own {
        Split::Shared { devices } => (devices, Split::Shared { devices: 2 * devices }),
        Split::Separate { rollout, train } => (rollout, Split::Separate { rollout: 2 * rollout, train }),
    };
    let mut trainer = scenario(own, bound);
    trainer.hardware.train.tokens_per_second *= 2.0;
    trainer.hardware.train.fixed_seconds /= 2.0;
    let mut rewards = scenario(own, bound);
    rewards.workload.reward_seconds = Distribution::ZERO;
    rewards.workload.environment_seconds = Distribution::ZERO;
    let mut updates = scenario(own, bound);
    updates.hardware.train.publish_seconds = 0.0;
    updates.hardware.rollout.load_seconds = 0.0;
    let mut changes = vec![
        (Part::Servers, format!("{} servers instead of {replicas}", 2 * replicas), scenario(doubled, bound)),
        (Part::Trainer, "a trainer twice as fast".to_owned(), trainer),
        (Part::Rewards, "rewards that take no time".to_owned(), rewards),
        (Part::WeightUpdates, "weight updates that take no time".to_owned(), updates),
    ];
    if !recipe.sleeps && recipe.allows(bound + 1) {
        changes.push((
            Part::Staleness,
            format!("max_staleness = {} instead of {bound}", bound + 1),
            scenario(own, bound + 1),
        ));
    }
    changes
}

/// Smallest saving that is worth a name.
const NOTABLE: f64 = 0.03;

/// Lines for people.
pub(super) fn text(limits: &[Limit]) -> Vec<String> {
    let percent = |limit: &Limit| format!("{:.0} %", 100.0 * limit.saved.max(0.0));
    let Some((first, others)) = limits.split_first() else { return Vec::new() };
    let limited_by = match first.part {
        _ if first.saved < NOTABLE => "nothing in particular",
        Part::Servers => "the number of inference servers",
        Part::Trainer => "the trainer",
        Part::Rewards => "rewards",
        Part::WeightUpdates => "weight updates",
        Part::Staleness => "rollout and training waiting for each other",
    };
    let mut lines = vec![
        format!("limited by {limited_by}"),
        format!("  {} would save {} of the time of a step", first.change, percent(first)),
    ];
    let others: Vec<String> =
        others.iter().map(|limit| format!("{}: {}", limit.change, percent(limit))).collect();
    lines.push(format!("  {}", others.join("; ")));
    lines
}
