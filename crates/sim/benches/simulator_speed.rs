//! Speed of the simulator, from a small stage to ten thousand replicas and a million groups.
//!
//!     cargo bench --bench simulator_speed

#![expect(clippy::print_stdout, reason = "it prints its measurements")]

use std::time::Instant;

use rloom_core::OnUpdate;
use rloom_sched::{CutOrder, Priority, SchedulerSettings, Stragglers};
use rloom_sim::{
    DecodeRate, Distribution, Failures, Hardware, RolloutHardware, Scenario, SimError, TrainHardware,
    Workload, simulate,
};

fn scenario(replicas: u32, groups_per_batch: u64, batches: u64) -> Scenario {
    let zero = Distribution::ZERO;
    Scenario {
        scheduler: SchedulerSettings {
            groups_per_batch,
            batches,
            max_staleness: 2,
            pin_version: false,
            oversample: groups_per_batch / 4,
            cut_order: CutOrder::Completion,
            stragglers: Stragglers::Drop,
            evaluate_every: 0,
            checkpoint_every: 0,
            reuse: None,
        },
        on_update: OnUpdate::Keep,
        priority: Priority::Oldest,
        workload: Workload {
            group_size: 8,
            prompt_tokens: Distribution::Constant { value: 500.0 },
            turn_tokens: Distribution::Lognormal { median: 3000.0, sigma: 0.9, max: 32_000.0 },
            group_correlation: 0.3,
            turns: Distribution::Constant { value: 1.0 },
            observation_tokens: zero.clone(),
            environment_seconds: zero.clone(),
            reward_seconds: zero,
            prefix_cache: 0.9,
            filter_rate: 0.1,
        },
        hardware: Hardware {
            rollout: RolloutHardware {
                replicas,
                max_concurrency: 64,
                decode: DecodeRate::Roofline { step_seconds: 0.006, step_seconds_per_sequence: 1e-4 },
                prefill_tokens_per_second: 30_000.0,
                load_seconds: 2.0,
            },
            train: TrainHardware {
                tokens_per_second: f64::from(replicas) * 8_000.0,
                fixed_seconds: 5.0,
                publish_seconds: 2.0,
                evaluate_seconds: 0.0,
                checkpoint_seconds: 0.0,
            },
            shared: false,
        },
        failures: Failures { group_rate: 0.001, replica_seconds: 1e6, restart_seconds: 120.0 },
        seed: 1,
        max_events: u64::MAX,
    }
}

fn main() -> Result<(), SimError> {
    println!("replicas   groups    samples     events   seconds   million events/s");
    for (replicas, batch, steps) in [(4, 32, 500), (128, 512, 200), (10_000, 20_000, 44)] {
        let scenario = scenario(replicas, batch, steps);
        let begin = Instant::now();
        let report = simulate(&scenario)?;
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{replicas:>8} {:>8} {:>10} {:>10} {seconds:>9.2} {:>18.2}",
            report.groups,
            report.groups * 8,
            report.events,
            report.events as f64 / seconds / 1e6
        );
    }
    Ok(())
}
