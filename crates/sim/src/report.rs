//! What a simulation found.

use serde::{Deserialize, Serialize};

use super::account::{Ends, Lane, Totals};
use super::replica::Doing;
use super::scenario::Scenario;

/// Shares of the replicas' time; they add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RolloutShares {
    /// Decoding.
    pub generate: f64,
    /// Reading prompts and contexts.
    pub prefill: f64,
    /// Taking new weights.
    pub load: f64,
    /// The devices were training instead.
    pub shared: f64,
    /// Broken down.
    pub down: f64,
    /// Nothing to do: the bound on staleness, the end of a batch, or environments that think.
    pub idle: f64,
}

/// Shares of the trainer's time; they add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrainShares {
    /// Optimiser steps.
    pub train: f64,
    /// Publishing weights.
    pub publish: f64,
    /// Evaluating.
    pub evaluate: f64,
    /// Saving.
    pub checkpoint: f64,
    /// Waiting for a batch.
    pub idle: f64,
}

/// A number of things over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its mean over time.
    pub mean: f64,
    /// Its largest value in the whole simulation.
    pub most: f64,
}

/// How many of what there were.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Queues {
    /// Samples that wait for a replica.
    pub waiting: Queue,
    /// Seconds that a sample waits before each turn.
    pub wait_seconds: f64,
    /// Samples that are being decoded.
    pub running: Queue,
    /// Samples with their environment or their reward.
    pub away: Queue,
    /// Groups that are ready and in no batch yet.
    pub ready: Queue,
}

/// Ages in versions at the time of training: the share of age `i` is at place `i`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Staleness {
    /// Of the oldest token of each group: what the bound is about.
    pub groups: Vec<f64>,
    /// Of every generated token.
    pub tokens: Vec<f64>,
}

impl Staleness {
    /// Mean age of the tokens.
    pub fn mean(&self) -> f64 {
        self.tokens.iter().enumerate().map(|(age, share)| age as f64 * share).sum()
    }
}

/// What a simulation found. Rates, shares and queues are those of the steady window, counts those of everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Batches that were trained.
    pub steps: u64,
    /// Seconds from the first command to the last event.
    pub seconds: f64,
    /// Batches in the window: without those that fill the pipeline and those that empty it.
    pub window_steps: u64,
    /// Seconds per batch.
    pub seconds_per_step: f64,
    /// Batches in an hour.
    pub steps_per_hour: f64,
    /// Samples trained on per second.
    pub samples_per_second: f64,
    /// Tokens generated per second.
    pub generated_tokens_per_second: f64,
    /// Tokens generated per second that were trained on.
    pub useful_tokens_per_second: f64,
    /// Share of the generated tokens that will never be trained on.
    pub wasted: f64,
    /// Generated tokens as a share of what full replicas would generate.
    pub rollout_efficiency: f64,
    /// What the replicas did.
    pub rollout: RolloutShares,
    /// What the trainer did.
    pub train: TrainShares,
    /// How old the data were.
    pub staleness: Staleness,
    /// How long the queues were.
    pub queues: Queues,
    /// Groups that were given a ticket.
    pub groups: u64,
    /// How they ended.
    pub ends: Ends,
    /// How often a group was put off.
    pub put_off: u64,
    /// How often a replica broke down.
    pub replica_failures: u64,
    /// Events that were simulated: starts and ends of turns, answers, rewards, optimiser steps, loads, failures, and what
    /// the scheduler was told.
    pub events: u64,
}

impl Report {
    pub(crate) fn new(scenario: &Scenario, whole: &Totals, window: &Totals) -> Self {
        let seconds = window.seconds.max(f64::MIN_POSITIVE);
        let steps = window.version.max(1) as f64;
        let replicas = f64::from(scenario.hardware.rollout.replicas);
        let doing = |what: Doing| window.doing[what as usize] / (replicas * seconds);
        let lane = |what: Lane| window.lanes[what as usize] / seconds;
        let prefill = window.prefill / (replicas * seconds);
        let queue = |level| {
            let (mean, most) = window.of(level);
            Queue { mean, most }
        };
        let shares = |ages: &[f64]| {
            let sum: f64 = ages.iter().sum();
            ages.iter().map(|a| a / sum.max(f64::MIN_POSITIVE)).collect()
        };
        let groups = f64::from(scenario.workload.group_size) * scenario.scheduler.groups_per_batch as f64;
        Self {
            steps: whole.version,
            seconds: whole.seconds,
            window_steps: window.version,
            seconds_per_step: seconds / steps,
            steps_per_hour: 3600.0 * steps / seconds,
            samples_per_second: groups * steps / seconds,
            generated_tokens_per_second: window.generated / seconds,
            useful_tokens_per_second: window.learned / seconds,
            wasted: whole.wasted / whole.generated.max(f64::MIN_POSITIVE),
            rollout_efficiency: window.generated / seconds / scenario.hardware.peak_tokens_per_second(),
            rollout: RolloutShares {
                generate: doing(Doing::Generate) - prefill,
                prefill,
                load: doing(Doing::Load),
                shared: doing(Doing::Shared),
                down: doing(Doing::Down),
                idle: doing(Doing::Idle),
            },
            train: TrainShares {
                train: lane(Lane::Train),
                publish: lane(Lane::Publish),
                evaluate: lane(Lane::Evaluate),
                checkpoint: lane(Lane::Checkpoint),
                idle: lane(Lane::Wait),
            },
            staleness: Staleness { groups: shares(&window.group_ages), tokens: shares(&window.token_ages) },
            queues: Queues {
                waiting: queue(&window.waiting),
                wait_seconds: window.wait_seconds / (window.admitted.max(1) as f64),
                running: queue(&window.running),
                away: queue(&window.away),
                ready: queue(&window.ready),
            },
            groups: whole.started,
            ends: whole.ends,
            put_off: whole.put_off,
            replica_failures: whole.replica_failures,
            events: whole.events,
        }
    }
}
