//! Randomised simulation of the scheduler: groups finish in any order, some slowly, fail or are filtered; runs stop, crash
//! and resume. The rules of the crate's documentation are checked after every event.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod driver;
mod quotas;
mod reference;
mod restarts;
mod reuse;
mod rules;

use proptest::prelude::*;
use rloom_core::{Purpose, RandomKey};
use rloom_sched::{CutOrder, ReuseRule, SchedulerSettings, Stragglers};

use crate::driver::Schedule;

/// Arbitrary valid settings.
fn settings() -> impl Strategy<Value = SchedulerSettings> {
    let numbers = (1u64..5, 0u64..7, 0u64..4, 0u64..5, 0u64..4, 0u64..4);
    (numbers, any::<bool>(), 0u8..5, reuse()).prop_map(|(numbers, completion, kind, reuse)| {
        let (groups_per_batch, batches, max_staleness, oversample, evaluate_every, checkpoint_every) =
            numbers;
        let plain = SchedulerSettings {
            groups_per_batch,
            batches,
            max_staleness,
            pin_version: false,
            oversample,
            cut_order: if completion { CutOrder::Completion } else { CutOrder::Ticket },
            stragglers: Stragglers::Drop,
            evaluate_every,
            checkpoint_every,
            reuse,
        };
        match kind {
            0 => SchedulerSettings { pin_version: true, oversample: 0, cut_order: CutOrder::Ticket, ..plain },
            1 => deferring(plain),
            2 => waiting(plain),
            _ => plain,
        }
    })
}

/// The same settings with batches that wait for the groups that are due.
fn waiting(settings: SchedulerSettings) -> SchedulerSettings {
    SchedulerSettings {
        max_staleness: settings.max_staleness.max(1),
        pin_version: false,
        oversample: 0,
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::Wait,
        ..settings
    }
}

/// No reuse of trained groups, or an arbitrary rule.
fn reuse() -> impl Strategy<Value = Option<ReuseRule>> {
    let rule = (1u64..5, 1u64..5, 1u64..4, any::<u64>()).prop_map(|(groups, max_age, max_uses, seed)| {
        ReuseRule { groups, max_age, max_uses, draws: RandomKey::new(seed, 0, Purpose::Reuse, 0) }
    });
    prop_oneof![Just(None), rule.prop_map(Some)]
}

/// The same settings with tail batching.
fn deferring(settings: SchedulerSettings) -> SchedulerSettings {
    SchedulerSettings {
        max_staleness: 0,
        pin_version: false,
        oversample: settings.oversample.max(1),
        cut_order: CutOrder::Completion,
        stragglers: Stragglers::Defer,
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

/// A schedule in which no group is filtered or fails.
fn lossless_schedule() -> impl Strategy<Value = Schedule> {
    schedule().prop_map(|mut schedule| {
        schedule.rejects = (0, 0);
        for step in &mut schedule.steps {
            step.1 = 7;
        }
        schedule
    })
}
