//! The scheduler under random worlds: groups finish in any order, some slowly, fail, are filtered; runs stop, die and
//! resume. The rules of the crate's documentation are checked after every event.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod reference;
mod restarts;
mod rules;
mod world;

use proptest::prelude::*;
use rloom_sched::{CutOrder, SchedulerSettings, Stragglers};

use crate::world::Schedule;

/// Any settings that are valid.
fn settings() -> impl Strategy<Value = SchedulerSettings> {
    let numbers = (1u64..5, 0u64..7, 0u64..4, 0u64..5, 0u64..4, 0u64..4);
    (numbers, any::<bool>(), 0u8..4).prop_map(|(numbers, completion, kind)| {
        let (batch_groups, batches, max_staleness, oversample, evaluate_every, checkpoint_every) = numbers;
        let plain = SchedulerSettings {
            batch_groups,
            batches,
            max_staleness,
            pin_version: false,
            oversample,
            cut_order: if completion { CutOrder::Completion } else { CutOrder::Ticket },
            stragglers: Stragglers::Drop,
            evaluate_every,
            checkpoint_every,
        };
        match kind {
            0 => SchedulerSettings { pin_version: true, oversample: 0, cut_order: CutOrder::Ticket, ..plain },
            1 => put_off(plain),
            _ => plain,
        }
    })
}

/// The same with tail batching.
fn put_off(settings: SchedulerSettings) -> SchedulerSettings {
    SchedulerSettings {
        max_staleness: 0,
        pin_version: false,
        oversample: settings.oversample.max(1),
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::PutOff,
        ..settings
    }
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let steps = prop::collection::vec((any::<u64>(), 0u8..12, any::<u64>()), 0..300);
    let rejects = prop_oneof![Just((0, 0)), (0usize..60, 0usize..120).prop_map(|(a, n)| (a, a + n))];
    (steps, rejects, prop_oneof![Just(0u64), 2u64..6]).prop_map(|(steps, rejects, slow_every)| Schedule {
        steps,
        rejects,
        slow_every,
    })
}

/// One in which no group is lost.
fn gentle() -> impl Strategy<Value = Schedule> {
    schedule().prop_map(|mut schedule| {
        schedule.rejects = (0, 0);
        for step in &mut schedule.steps {
            step.1 = 7;
        }
        schedule
    })
}
