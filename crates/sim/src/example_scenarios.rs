//! Scenarios that tests start from.

use super::{
    DecodeRate, Distribution, Failures, Hardware, RolloutHardware, Scenario, TrainHardware, Workload,
};
use rloom_core::OnUpdate;
use rloom_sched::{CutOrder, Priority, SchedulerSettings, Stragglers};

pub(crate) fn constant(value: f64) -> Distribution {
    Distribution::Constant { value }
}

/// Every sequence decodes at 100 tokens/s at any concurrency; training takes 2 + tokens/1000 seconds.
pub(crate) fn simple_scenario(batch: u64, steps: u64, eta: u64) -> Scenario {
    Scenario {
        scheduler: SchedulerSettings {
            groups_per_batch: batch,
            batches: steps,
            max_staleness: eta,
            pin_version: false,
            oversample: 0,
            cut_order: CutOrder::Ticket,
            stragglers: Stragglers::Drop,
            evaluate_every: 0,
            checkpoint_every: 0,
            reuse: None,
        },
        on_update: OnUpdate::Finish,
        priority: Priority::Oldest,
        workload: Workload {
            group_size: 2,
            prompt_tokens: constant(100.0),
            turn_tokens: constant(500.0),
            group_correlation: 0.0,
            turns: constant(1.0),
            observation_tokens: constant(0.0),
            environment_seconds: constant(0.0),
            reward_seconds: constant(0.0),
            prefix_cache: 0.0,
            filter_rate: 0.0,
        },
        hardware: Hardware {
            rollout: RolloutHardware {
                replicas: 1,
                max_concurrency: 64,
                decode: DecodeRate::Roofline { step_seconds: 0.01, step_seconds_per_sequence: 0.0 },
                prefill_tokens_per_second: 1e12,
                load_seconds: 0.0,
            },
            train: TrainHardware {
                tokens_per_second: 1000.0,
                fixed_seconds: 2.0,
                publish_seconds: 0.5,
                evaluate_seconds: 0.0,
                checkpoint_seconds: 0.0,
            },
            shared: false,
        },
        failures: Failures::NONE,
        seed: 1,
        max_events: 10_000_000,
    }
}
