//! Results of a simulation.

use serde::{Deserialize, Serialize};

use super::replica::ReplicaActivity;
use super::scenario::Scenario;
use super::totals::{Ends, Totals, TrainerActivity};

/// Fractions of the replicas' time; they add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RolloutShares {
    /// Decoding.
    pub generate: f64,
    /// Prefill of prompts and contexts.
    pub prefill: f64,
    /// Loading new weights.
    pub load: f64,
    /// Paused while the devices train.
    pub shared: f64,
    /// Failed and not yet restarted.
    pub down: f64,
    /// Without work because of the staleness bound, the end of a batch, or environment latency.
    pub idle: f64,
}

/// Fractions of the trainer's time; they add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrainShares {
    /// Training.
    pub train: f64,
    /// Publishing weights.
    pub publish: f64,
    /// Evaluation.
    pub evaluate: f64,
    /// Checkpointing.
    pub checkpoint: f64,
    /// Waiting for a batch.
    pub idle: f64,
}

/// Length of a queue over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Mean over time.
    pub mean: f64,
    /// Maximum over the whole simulation.
    pub max: f64,
}

/// Numbers of samples and groups in each state over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Queues {
    /// Samples waiting for a replica.
    pub waiting: Queue,
    /// Mean time that a sample waits before each turn, in seconds.
    pub wait_seconds: f64,
    /// Samples being decoded.
    pub running: Queue,
    /// Samples waiting for their environment or reward.
    pub external: Queue,
    /// Groups ready and not yet in a batch.
    pub ready: Queue,
}

/// Ages in versions at the time of training: element `i` is the fraction with age `i`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Staleness {
    /// Ages of the oldest token of each group, which the bound limits.
    pub groups: Vec<f64>,
    /// Ages of all generated tokens.
    pub tokens: Vec<f64>,
}

impl Staleness {
    /// Mean age of the tokens.
    pub fn mean(&self) -> f64 {
        self.tokens.iter().enumerate().map(|(age, share)| age as f64 * share).sum()
    }
}

/// Result of a simulation. Rates, fractions and queues are measured over the steady window, counts over the whole stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Batches trained.
    pub steps: u64,
    /// Simulated time from the first command to the last event, in seconds.
    pub seconds: f64,
    /// Batches in the steady window, which excludes those that fill and drain the pipeline.
    pub window_steps: u64,
    /// Seconds per batch.
    pub seconds_per_step: f64,
    /// Batches per hour.
    pub steps_per_hour: f64,
    /// Samples trained on per second.
    pub samples_per_second: f64,
    /// Tokens generated per second.
    pub generated_tokens_per_second: f64,
    /// Tokens generated per second that were trained on.
    pub useful_tokens_per_second: f64,
    /// Fraction of the generated tokens that are never trained on.
    pub wasted: f64,
    /// Generated tokens as a fraction of those that replicas at full concurrency would generate.
    pub rollout_efficiency: f64,
    /// Time of the replicas by activity.
    pub rollout: RolloutShares,
    /// Time of the trainer by activity.
    pub train: TrainShares,
    /// Ages of the trained data.
    pub staleness: Staleness,
    /// Queue lengths.
    pub queues: Queues,
    /// Tickets issued.
    pub groups: u64,
    /// Outcomes of the tickets.
    pub ends: Ends,
    /// Number of times a group was deferred.
    pub deferred: u64,
    /// Number of replica failures.
    pub replica_failures: u64,
    /// Events simulated: starts and ends of turns, observations, rewards, training steps, loads, failures, and scheduler
    /// events.
    pub events: u64,
}

impl Report {
    pub(crate) fn new(scenario: &Scenario, whole: &Totals, window: &Totals) -> Self {
        let seconds = window.seconds.max(f64::MIN_POSITIVE);
        let steps = window.version.max(1) as f64;
        let replicas = f64::from(scenario.hardware.rollout.replicas);
        let replica = |what: ReplicaActivity| window.replica_seconds[what as usize] / (replicas * seconds);
        let trainer = |what: TrainerActivity| window.trainer_seconds[what as usize] / seconds;
        let prefill = window.prefill / (replicas * seconds);
        let queue = |gauge| {
            let (mean, max) = window.mean_and_max(gauge);
            Queue { mean, max }
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
            useful_tokens_per_second: window.useful / seconds,
            wasted: whole.wasted / whole.generated.max(f64::MIN_POSITIVE),
            rollout_efficiency: window.generated / seconds / scenario.hardware.peak_tokens_per_second(),
            rollout: RolloutShares {
                generate: replica(ReplicaActivity::Generate) - prefill,
                prefill,
                load: replica(ReplicaActivity::Load),
                shared: replica(ReplicaActivity::Shared),
                down: replica(ReplicaActivity::Down),
                idle: replica(ReplicaActivity::Idle),
            },
            train: TrainShares {
                train: trainer(TrainerActivity::Train),
                publish: trainer(TrainerActivity::Publish),
                evaluate: trainer(TrainerActivity::Evaluate),
                checkpoint: trainer(TrainerActivity::Checkpoint),
                idle: trainer(TrainerActivity::Idle),
            },
            staleness: Staleness { groups: shares(&window.group_ages), tokens: shares(&window.token_ages) },
            queues: Queues {
                waiting: queue(&window.waiting),
                wait_seconds: window.wait_seconds / (window.admitted.max(1) as f64),
                running: queue(&window.running),
                external: queue(&window.external),
                ready: queue(&window.ready),
            },
            groups: whole.started,
            ends: whole.ends,
            deferred: whole.deferred,
            replica_failures: whole.replica_failures,
            events: whole.events,
        }
    }
}
